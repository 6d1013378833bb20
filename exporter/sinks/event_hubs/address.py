"""How an event hub is reached: the clients of Azure's SDK, with defaults that fail at once and clearly."""

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
_SOCKET_TIMEOUT: Final = 10.0  # seconds for one operation of the socket; the SDK's 0.2 is none for a busy network


class Address:
    """Where the event hub is, as `config.event_hubs` read and checked it: by a connection string or by a namespace."""

    def __init__(self, settings: EventHubsSettings) -> None:
        self._settings = settings
        self._connection_string = settings.connection_string.reveal()

    def client(self, credential: Any, context: ssl.SSLContext | None = None) -> EventHubProducerClient:
        """A client that is not connected yet; `context` is that of `tls_context`."""
        hubs, options = self._settings, self._options(context)
        if hubs.fully_qualified_namespace:
            return EventHubProducerClient(hubs.fully_qualified_namespace, hubs.event_hub, credential, **options)
        return EventHubProducerClient.from_connection_string(
            self._connection_string, eventhub_name=hubs.event_hub or None, **options
        )

    def consumer(self, credential: Any, context: ssl.SSLContext, **options_of_consumer: Any) -> EventHubConsumerClient:
        """The same for reading; further options are the SDK's."""
        hubs, options = self._settings, {**self._options(context), **options_of_consumer}
        group, name = hubs.consumer_group, hubs.event_hub
        if hubs.fully_qualified_namespace:
            return EventHubConsumerClient(hubs.fully_qualified_namespace, name, group, credential, **options)
        return EventHubConsumerClient.from_connection_string(
            self._connection_string, group, eventhub_name=name or None, **options
        )

    def tls_context(self) -> ssl.SSLContext:
        """Whom the next client trusts, from the files as they are now. Raises `Retryable` when they can't be used.

        The SDK would read them again for each connection of a client, for one without TLS too, on the loop on which the
        deadline of a send runs; and none of its errors names the file.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._without_tls:
            return context
        own_file = self._settings.certificate
        try:
            context.load_verify_locations(own_file or certifi.where())
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = "no CA certificates in PEM" if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
            file = f"event_hubs.certificate {own_file}" if own_file else certifi.where()
            raise Retryable("configuration", f"{file} cannot be used: {why}", needs_operator=True) from error
        return context

    @property
    def _without_tls(self) -> bool:
        """Whether the connection is a plain one, as the SDK makes it to an emulator."""
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
        """Another address to connect to, always with its port, or "".

        Over websocket the SDK drops the port of an emulator, unless it is given once more in this way.
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
    """What makes azure-identity's credential. Raises ValueError where the package is missing.

    It asks for tokens through a proxy of `environ`, never through one of the settings of Windows or macOS, which its
    libraries read if the environment has none.
    """
    try:
        from azure.identity.aio import DefaultAzureCredential  # noqa: PLC0415  # 40 MiB that few need
    except ImportError as error:
        raise ValueError(
            "signing in to Event Hubs with an Azure identity needs the extra `identity`: "
            "pip install 'azure-scheduled-events-exporter[identity]'"
        ) from error
    has_proxies = any(value and name.lower().endswith("_proxy") for name, value in environ.items())
    return partial(DefaultAzureCredential, use_env_settings=has_proxies)
