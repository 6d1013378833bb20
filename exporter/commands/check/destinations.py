"""Probes the destinations, with the code that would send records, and sends none.

Event Hubs: name, port, identity, and the link on which records would be sent. OTLP: a POST without any record to the
address that records go to, answered as one with records is.
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
"""What a token is asked for [Authenticate an application with Microsoft Entra ID to access Event Hubs]."""

_ROLE: Final = "the role Azure Event Hubs Data Sender on the event hub or its namespace"


def probe_event_hubs(settings: Settings, environment: ProbeEnvironment) -> Report:
    """Connect, sign in with an identity, open the link; done a second before `timeouts.total` has passed."""
    from exporter.sinks.event_hubs.address import default_credential  # noqa: PLC0415  # only what is configured

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
    """Host and port that the destination connects to."""
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
    """Why no connection can be made, and what to do."""
    if obstacle == UNKNOWN_NAME:
        return (
            f"the name {host} is not known to this machine's DNS: correct the name of the namespace; with a private "
            "endpoint, link the zone privatelink.servicebus.windows.net to this network"
        )
    if hubs.connection is not None and hubs.connection.emulator:
        return f"{host}:{port} {obstacle}: start the emulator there, or correct Endpoint in the connection string"
    other = f", or set event_hubs.transport to websocket, which uses {WEBSOCKET_PORT}"
    proxied = " (a proxy of the environment is not used)"
    return (
        f"{host}:{port} {obstacle}: let this machine out to port {port}{other if hubs.transport == 'amqp' else proxied}"
    )


def _sign_in(make_credential: Callable[[], Any], seconds: float) -> str:
    """Why there is no token for Event Hubs; "" when there is one."""
    thread = LoopThread("probe-identity")
    try:
        thread.run(_token(make_credential, seconds), seconds + 1)
    except Exception as error:  # azure-identity raises classes of many packages, and its texts are pages
        return (
            f"this VM has no Azure identity that can sign in ({type(error).__name__}): give it a managed identity (for "
            f"a user-assigned one set AZURE_CLIENT_ID) with {_ROLE}, and see that 169.254.169.254 can be reached"
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
    from exporter.sinks.event_hubs.sink import EventHubsDestination  # noqa: PLC0415  # only what is configured

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
    return ok(EVENT_HUBS, f"{address} lets us send to {hubs.event_hub}, up to {size} bytes a message; nothing was sent")


def explained(failure: Failure, hubs: EventHubsSettings, address: str) -> Finding:
    """The finding for a link that could not be opened."""
    namespace = hubs.fully_qualified_namespace
    sentences: Mapping[str, str] = {
        "unauthorized": (
            f"refuses the identity of this VM: give it {_ROLE}, and wait some minutes for it to take effect"
            if namespace
            else "refuses the key: take the connection string afresh from a policy with the claim Send, of this "
            "namespace or of this event hub (a rotated key, a policy without Send, a clock that is off and the "
            "namespace's firewall all look like this)"
        ),
        "not-found": f"has no event hub {hubs.event_hub}: correct event_hubs.event_hub or EntityPath (the event hub's "
        "own name, not the namespace's)",
        "tls": "shows a certificate that is not trusted, or speaks no TLS: give the CA of what inspects TLS on the way "
        "as event_hubs.certificate, or correct that or the address",
        "configuration": "cannot be asked: correct what is said in brackets",
        "timeout": "takes the connection and says nothing: it may be no Event Hubs; correct the address, or look for a "
        "firewall that inspects AMQP and set event_hubs.transport to websocket",
        "throttled": "is busy or has too many connections (Basic allows 100, Standard 5000): try again, and if it "
        "stays, raise the namespace's tier or units",
        "unavailable": "cannot at the moment, or the event hub is disabled: enable it in the portal, or try again",
        "connect": "takes the connection and hangs up: it may be no Event Hubs; correct the address and "
        "event_hubs.transport",
    }
    sentence = sentences.get(failure.reason, "fails")
    verdict = warn if failure.reason == "throttled" else fail
    return verdict(EVENT_HUBS, f"{address} {sentence} ({failure.detail})")


def probe_otlp(settings: Settings, environment: ProbeEnvironment) -> Report:
    """At most `timeouts.connect` seconds and `otlp.timeout`."""
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
    through = f" through the proxy that {proxy} names" if proxy else ""
    return Report((ok(OTLP, f"{shown} took an empty request{through}; no record was sent"),), clocks)


def origin(url: str) -> str:
    """A URL's scheme, host and port: some backends have a token in the path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _post(settings: Settings) -> Mapping[str, str]:
    from exporter.sinks.otlp.sink import OtlpDestination  # noqa: PLC0415  # only what is configured

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
        return f"the name {host} is not known to this machine's DNS: correct otlp.endpoint"
    return f"{shown} {obstacle}: start the collector (OTLP over HTTP, port 4318 as a rule), or correct otlp.endpoint"


_SENTENCES: Final[Mapping[str, str]] = {
    "unauthorized": "refuses us: correct the credentials in otlp.headers",
    "not-found": "has no /v1/logs there: give the base URL of a receiver of OTLP over HTTP as otlp.endpoint (/v1/logs "
    "is appended), and see that its logs pipeline is on",
    "redirect": "sends us elsewhere, to a log in page or to https, and redirections are not followed: give the final "
    "address as otlp.endpoint",
    "protocol": "answers with something that is not OTLP (an HTML page, mostly): correct otlp.endpoint, this is a web "
    "server or a proxy",
    "tls": "does not agree on TLS: for a certificate of your own CA set otlp.certificate, for a client certificate "
    "otlp.client_certificate, and for a collector without TLS write http://",
    "timeout": "takes the connection and gives no answer in time: see what the collector waits for and that this is "
    "its port for OTLP over HTTP (4318 as a rule, 4317 is gRPC), or raise otlp.timeout",
    "throttled": "asks us to slow down: it is there, and overloaded",
    "unavailable": "cannot at the moment: see the collector's own log",
    "rejected": "refused the empty request of this probe, as some backends do: whether it takes records shows with the "
    "first one",
    "connect": "takes the connection and hangs up: see that this is the port for OTLP over HTTP (4318 as a rule, 4317 "
    "is gRPC) and that http or https is right",
    "configuration": "cannot be asked: correct what is said in brackets",
}
_PASSING: Final = frozenset({"throttled", "unavailable", "rejected"})


def _refused_by_collector(failure: Failure, shown: str, proxy: str) -> Finding:
    sentence = _SENTENCES.get(failure.reason, "fails: see the collector's own log")
    hint = (
        f"; the request went through the proxy that {proxy} names, add the host to NO_PROXY if it must not"
        if proxy
        else ""
    )
    verdict = warn if failure.reason in _PASSING else fail
    return verdict(OTLP, f"{shown} {sentence}{hint} ({failure.detail})")
