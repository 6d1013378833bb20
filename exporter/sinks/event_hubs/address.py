"""The clients of Azure's SDK for one event hub, configured to fail early and clearly."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import certifi
from azure.eventhub import TransportType
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient

from exporter import __version__
from exporter.config.schema import EventHubsSettings
from exporter.errors import Retryable

_TRANSPORTS: Final = {"amqp": TransportType.Amqp, "websocket": TransportType.AmqpOverWebsocket}
_PORTS: Final = {"amqp": 5671, "websocket": 443}
_SOCKET_TIMEOUT: Final = 10.0  # seconds for one socket operation; the SDK's 0.2 is too short for a busy network


class Address:
    """The address of the event hub: a connection string or a namespace, as validated by `config.event_hubs`."""

    def __init__(self, settings: EventHubsSettings) -> None:
        self._settings = settings
        self._connection_string = settings.connection_string.reveal()

    def client(self, credential: Any, context: ssl.SSLContext | None = None) -> EventHubProducerClient:
        """Return a producer client, not yet connected; `context` is that of `tls_context`."""
        hubs, options = self._settings, self._options(context)
        if hubs.fully_qualified_namespace:
            return EventHubProducerClient(hubs.fully_qualified_namespace, hubs.event_hub, credential, **options)
        return EventHubProducerClient.from_connection_string(
            self._connection_string, eventhub_name=hubs.event_hub or None, **options
        )

    def consumer(self, credential: Any, context: ssl.SSLContext, **options_of_consumer: Any) -> EventHubConsumerClient:
        """Return a consumer client, not yet connected; further options are the SDK's."""
        hubs, options = self._settings, {**self._options(context), **options_of_consumer}
        group, name = hubs.consumer_group, hubs.event_hub
        if hubs.fully_qualified_namespace:
            return EventHubConsumerClient(hubs.fully_qualified_namespace, name, group, credential, **options)
        return EventHubConsumerClient.from_connection_string(
            self._connection_string, group, eventhub_name=name or None, **options
        )

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS context for the next client, read from the current files.

        The SDK would read the files for each connection, even without TLS, on the event loop, where this delays the
        deadline of a send; and its errors don't name the file. Raises `Retryable` if the files can't be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._without_tls:
            return context
        own_file = self._settings.certificate
        try:
            context.load_verify_locations(own_file or certifi.where())
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = getattr(error, "strerror", None)
            if isinstance(error, ssl.SSLError):
                why = "it has no CA certificates in PEM format"
            file = f"event_hubs.certificate {own_file}" if own_file else certifi.where()
            raise Retryable("configuration", f"{file}: cannot be used; {why}", needs_operator=True) from error
        return context

    @property
    def _without_tls(self) -> bool:
        """Whether the SDK connects without TLS, as for an emulator."""
        return self._field("UseDevelopmentEmulator") == "true"

    def _options(self, context: ssl.SSLContext | None) -> dict[str, Any]:
        options: dict[str, Any] = {
            "transport_type": _TRANSPORTS[self._settings.transport],
            "socket_timeout": _SOCKET_TIMEOUT,
            "retry_total": 1,
            "retry_backoff_factor": 0.1,
            "user_agent": f"azure-scheduled-events-exporter/{__version__}",
            "ssl_context": context,
        }
        if endpoint := self._endpoint():
            options["custom_endpoint_address"] = endpoint
        return options

    def _endpoint(self) -> str:
        """Return the custom address to connect to, with its port, or "".

        Over websocket it includes an emulator's address, because the SDK drops an emulator's port otherwise.
        """
        transport, text = self._settings.transport, self._settings.custom_endpoint
        if not text and transport == "websocket" and self._without_tls:
            text = self._field("Endpoint")
        if not text:
            return ""
        parts = urlsplit(text if "//" in text else f"sb://{text}")
        return f"sb://{parts.hostname}:{parts.port or _PORTS[transport]}"

    def _field(self, name: str) -> str:
        for part in self._connection_string.split(";"):
            key, _, value = part.partition("=")
            if key.strip().lower() == name.lower():
                return value.strip()
        return ""


def default_credential(environ: Mapping[str, str] = os.environ) -> Callable[[], Any]:
    """Return a function that makes azure-identity's credential. Raises ValueError if the package is missing.

    The credential requests tokens through a proxy of `environ`. If there is none, it doesn't use the proxy settings of
    Windows or macOS, as its libraries would by default.
    """
    try:
        from azure.identity.aio import DefaultAzureCredential  # noqa: PLC0415  # 40 MiB that few need
    except ImportError as error:
        raise ValueError(
            "event_hubs: signing in with an Azure identity needs the extra `identity`; run "
            "pip install 'azure-scheduled-events-exporter[identity]'"
        ) from error
    has_proxies = any(value and name.lower().endswith("_proxy") for name, value in environ.items())
    return partial(DefaultAzureCredential, use_env_settings=has_proxies)
