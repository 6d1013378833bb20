"""The closed sets of keywords that a setting shares with the package it configures.

The setting and the package both import them from here, so that neither imports the other. The keywords of a policy are
in `core.policy`, Azure's values in `core.document`.
"""

from __future__ import annotations

from typing import Literal

Transport = Literal["amqp", "websocket"]
"""The protocol to Event Hubs: AMQP over TLS on port 5671, or inside a websocket on port 443."""

MessageFormat = Literal["cloudevents", "azure-sample"]
"""The body of an Event Hubs message: CloudEvents, or the format of Azure's sample, for its consumers."""

LogLevel = Literal["debug", "info", "warn", "error"]
"""The minimum severity of the agent's log, from lowest to highest."""

LogFormat = Literal["logfmt", "json"]
"""The format of a line of the agent's log."""

Compression = Literal["none", "gzip"]
"""The compression of an OTLP request's body."""
