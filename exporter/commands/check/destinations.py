"""Probes the destinations with the code that sends records, and sends none.

Event Hubs: name, port, identity, and the AMQP link for records. OTLP: a POST without records to the address of the
logs, which the collector answers as it would answer one with records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from exporter.commands.check.report import (
    UNKNOWN_NAME,
    Finding,
    ProbeEnvironment,
    Report,
    clock_of,
    fail,
    ok,
    reach,
    warn,
)
from exporter.config.event_hubs import AMQP_PORT, AMQPS_PORT
from exporter.config.schema import EventHubsSettings, Settings
from exporter.errors import Failure
from exporter.http.transport import environment_proxy
from exporter.sinks.event_hubs.event_loop import LoopThread

EVENT_HUBS: Final = "event_hubs"
OTLP: Final = "otlp"
WEBSOCKET_PORT: Final = 443
SCOPE: Final = "https://eventhubs.azure.net/.default"
"""The scope of a token [Authenticate an application with Microsoft Entra ID to access Event Hubs]."""

_ROLE: Final = "the role Azure Event Hubs Data Sender on the event hub or its namespace"


def probe_event_hubs(settings: Settings, environment: ProbeEnvironment) -> Report:
    """Connect, sign in with an identity, open the link; done a second before `timeouts.total` has passed."""
    from exporter.sinks.event_hubs.address import default_credential  # noqa: PLC0415  # only if configured

    end = time.monotonic() + environment.timeouts.total - 1
    hubs = settings.event_hubs
    host, port = address_of(hubs)
    if obstacle := reach(host, port, environment.timeouts.connect):
        return Report((fail(EVENT_HUBS, unreachable(obstacle, host, port, hubs)),))
    try:
        make_credential = (environment.credential or default_credential()) if hubs.fully_qualified_namespace else None
    except ValueError as error:
        return Report((fail(EVENT_HUBS, str(error)),))
    if make_credential is not None:
        refusal = _sign_in(make_credential, environment.timeouts.answer)
        if refusal:
            return Report((fail(EVENT_HUBS, refusal),))
    left = max(0.5, end - time.monotonic() - 1)  # closing takes up to a second
    further = {"deadline": min(environment.timeouts.answer, left), "credential": make_credential}
    return Report((_link(settings, f"{host}:{port}", further),))


def address_of(hubs: EventHubsSettings) -> tuple[str, int]:
    """Return the host and port that the destination connects to."""
    connection, websocket = hubs.connection, hubs.transport == "websocket"
    usual = WEBSOCKET_PORT if websocket else AMQPS_PORT
    if hubs.custom_endpoint:
        parts = urlsplit(hubs.custom_endpoint)
        return parts.hostname or "", parts.port or usual
    if connection is None:
        return hubs.fully_qualified_namespace, usual
    if connection.emulator and not websocket:
        usual = AMQP_PORT
    return connection.host, connection.port or usual


def unreachable(obstacle: str, host: str, port: int, hubs: EventHubsSettings) -> str:
    """Return the sentence for an address that accepts no connection, with the remedy."""
    if obstacle == UNKNOWN_NAME:
        return (
            f"the name {host} does not resolve: correct the name of the namespace; for a private endpoint, link the "
            "zone privatelink.servicebus.windows.net to this network"
        )
    if hubs.connection is not None and hubs.connection.emulator:
        return f"{host}:{port} {obstacle}: start the emulator there, or correct Endpoint in the connection string"
    other = f", or set event_hubs.transport to websocket, which uses port {WEBSOCKET_PORT}"
    proxied = " (proxies set in the environment are not used)"
    hint = other if hubs.transport == "amqp" else proxied
    return f"{host}:{port} {obstacle}: allow outbound connections to port {port}{hint}"


def _sign_in(make_credential: Callable[[], Any], seconds: float) -> str:
    """Request a token for Event Hubs and return the error; "" if there is none. Blocks for up to `seconds` + 1."""
    thread = LoopThread("probe-identity")
    try:
        thread.run(_token(make_credential, seconds), seconds + 1)
    except Exception as error:  # azure-identity raises classes of many packages, and its texts are pages
        return (
            f"no Azure identity of this VM can sign in ({type(error).__name__}): assign a managed identity (for a "
            f"user-assigned one set AZURE_CLIENT_ID) with {_ROLE}, and check that 169.254.169.254 is reachable"
        )
    finally:
        thread.stop(0.3)
    return ""


async def _token(make_credential: Callable[[], Any], seconds: float) -> None:
    credential = make_credential()
    try:
        await asyncio.wait_for(credential.get_token(SCOPE), seconds)
    finally:
        await credential.close()


def _link(settings: Settings, address: str, further: Mapping[str, Any]) -> Finding:
    from exporter.sinks.event_hubs.sink import EventHubsDestination  # noqa: PLC0415  # only if configured

    hubs = settings.event_hubs
    try:
        destination = EventHubsDestination(hubs, **further)
    except ValueError as error:
        return fail(EVENT_HUBS, str(error))
    try:
        size = destination.probe()
    except Failure as failure:
        return explained(failure, hubs, address)
    finally:
        destination.close()
    return ok(EVENT_HUBS, f"{address} allows sending to {hubs.event_hub}, {size} bytes a message; nothing was sent")


def explained(failure: Failure, hubs: EventHubsSettings, address: str) -> Finding:
    """Return the finding for a link that could not be opened."""
    namespace = hubs.fully_qualified_namespace
    sentences: Mapping[str, str] = {
        "unauthorized": (
            f"rejects the identity of this VM: assign it {_ROLE}, and wait some minutes until it takes effect"
            if namespace
            else "rejects the key: copy the connection string again from a policy of this namespace or event hub with "
            "the claim Send (possible causes: a rotated key, a policy without Send, a wrong clock, the namespace's "
            "firewall)"
        ),
        "not-found": f"has no event hub {hubs.event_hub}: correct event_hubs.event_hub or EntityPath (the name of the "
        "event hub, not of the namespace)",
        "tls": "does not use TLS, or its certificate is not trusted: set event_hubs.certificate to the CA of the proxy "
        "that inspects TLS, or correct the address",
        "configuration": "cannot be tested: correct the setting",
        "timeout": "accepts the connection but does not respond; it might not be an Event Hubs endpoint: correct the "
        "address, or look for a firewall that inspects AMQP and set event_hubs.transport to websocket",
        "throttled": "is busy or has too many connections (Basic allows 100, Standard 5000): try again; if it "
        "persists, raise the namespace's tier or units",
        "unavailable": "is unavailable, or the event hub is disabled: enable it in the portal, or try again",
        "connect": "accepts the connection and closes it; it might not be an Event Hubs endpoint: correct the address "
        "and event_hubs.transport",
    }
    sentence = sentences.get(failure.reason, "fails")
    verdict = warn if failure.reason == "throttled" else fail
    return verdict(EVENT_HUBS, f"{address} {sentence} ({failure.detail})")


def probe_otlp(settings: Settings, environment: ProbeEnvironment) -> Report:
    """Send an empty request to the collector; takes at most `timeouts.connect` + `otlp.timeout` seconds."""
    url = settings.otlp.logs_url
    parts = urlsplit(url)
    shown, host = origin(url), parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    proxy_of_environment = environment_proxy(url, environment.environ)
    proxy = proxy_of_environment.variable if proxy_of_environment else ""
    obstacle = "" if proxy else reach(host, port, environment.timeouts.connect)
    if obstacle:
        return Report((fail(OTLP, _no_collector(obstacle, shown, host)),))
    began = time.monotonic()
    try:
        headers = _post(settings)
    except Failure as failure:
        return Report((_refused_by_collector(failure, shown, proxy),))
    clocks = clock_of("the collector", headers.get("Date", ""), environment.wall(), time.monotonic() - began)
    through = f" through the proxy set in {proxy}" if proxy else ""
    return Report((ok(OTLP, f"{shown} accepted an empty request{through}; no record was sent"),), clocks)


def origin(url: str) -> str:
    """Return a URL's scheme, host, and port, without its user and its path: some backends have a token there."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _post(settings: Settings) -> Mapping[str, str]:
    from exporter.sinks.otlp.sink import OtlpDestination  # noqa: PLC0415  # only if configured

    try:
        destination = OtlpDestination(settings.otlp)
    except ValueError as error:
        raise Failure("configuration", str(error)) from error
    try:
        return destination.probe()
    finally:
        destination.close()


def _no_collector(obstacle: str, shown: str, host: str) -> str:
    if obstacle == UNKNOWN_NAME:
        return f"the name {host} does not resolve: correct otlp.endpoint"
    return f"{shown} {obstacle}: start the collector (OTLP over HTTP, usually port 4318), or correct otlp.endpoint"


_SENTENCES: Final[Mapping[str, str]] = {
    "unauthorized": "rejects the credentials: correct otlp.headers",
    "not-found": "has no /v1/logs: set otlp.endpoint to the base URL of an OTLP receiver over HTTP (/v1/logs is "
    "appended), and enable its logs pipeline",
    "redirect": "returned a redirect, for example to a login page or to https: set otlp.endpoint to the final address",
    "protocol": "does not respond with OTLP; it might be a web server or a proxy: correct otlp.endpoint",
    "tls": "failed the TLS handshake: for a private CA set otlp.certificate, for a client certificate "
    "otlp.client_certificate, and for a collector without TLS use http://",
    "timeout": "accepts the connection but does not respond in time: check the collector and its port for OTLP over "
    "HTTP (usually 4318; 4317 is gRPC), or raise otlp.timeout",
    "throttled": "is overloaded and throttles requests: reduce its load",
    "unavailable": "is unavailable: see the collector's log",
    "rejected": "rejected the empty request of this test, as some backends do: check the delivery of the first record",
    "connect": "accepts the connection and closes it: use the port for OTLP over HTTP (usually 4318; 4317 is gRPC), "
    "and the right scheme (http or https)",
    "configuration": "cannot be tested: correct the setting",
}
_PASSING: Final = frozenset({"throttled", "unavailable", "rejected"})


def _refused_by_collector(failure: Failure, shown: str, proxy: str) -> Finding:
    sentence = _SENTENCES.get(failure.reason, "fails: see the collector's log")
    hint = f"; the proxy set in {proxy} was used: to bypass it, add the host to NO_PROXY" if proxy else ""
    verdict = warn if failure.reason in _PASSING else fail
    return verdict(OTLP, f"{shown} {sentence}{hint} ({failure.detail})")
