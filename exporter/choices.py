"""The closed words that a setting shares with the part that it configures, each set once and below both.

A setting offers exactly these words, and the part takes exactly these: neither imports the other. The words of a policy
are in `core.policy`, Azure's own in `core.document`.
"""

from __future__ import annotations

from typing import Literal

Transport = Literal["amqp", "websocket"]
"""How Event Hubs is reached: AMQP over TLS on port 5671, or inside of a websocket on port 443."""

MessageFormat = Literal["cloudevents", "azure-sample"]
"""The body of an Event Hubs message: CloudEvents, or the one of Azure's sample for consumers of that."""

LogLevel = Literal["debug", "info", "warn", "error"]
"""From how serious on a line of the agent's own log is written, the least serious first."""

LogFormat = Literal["logfmt", "json"]
"""How a line of the agent's own log is written."""

Compression = Literal["none", "gzip"]
"""How the body of an OTLP request is packed."""
