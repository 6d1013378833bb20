"""Probes Event Hubs: name, port, identity, and the link on which records would be sent. Nothing is sent on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from exporter.commands.check.network import REACH_WORDS, Reach, reach
from exporter.commands.check.report import Finding, ProbeEnvironment, Report, fail, ok, warn
from exporter.config.event_hubs import AMQP_PORT, AMQPS_PORT
from exporter.config.schema import EventHubsSettings, Settings
from exporter.errors import Failure
from exporter.sinks.event_hubs.address import default_credential
from exporter.sinks.event_hubs.event_loop import LoopThread
from exporter.sinks.event_hubs.sink import EventHubsDestination

TOPIC: Final = "event_hubs"
WEBSOCKET_PORT: Final = 443
SCOPE: Final = "https://eventhubs.azure.net/.default"
"""What a token is asked for [Authenticate an application with Microsoft Entra ID to access Event Hubs]."""

_ROLE: Final = "the role Azure Event Hubs Data Sender on the event hub or its namespace"


def probe_event_hubs(settings: Settings, environment: ProbeEnvironment) -> Report:
    """Connect, sign in with an identity, open the link; done a second before `timeouts.total` has passed."""
    end = time.monotonic() + environment.timeouts.total - 1
    hubs = settings.event_hubs
    host, port = address_of(hubs)
    reached = reach(host, port, environment.timeouts.connect)
    if reached is not Reach.OPEN:
        return Report((fail(TOPIC, unreachable(reached, host, port, hubs)),))
    try:
        make_credential = (environment.credential or default_credential()) if hubs.fully_qualified_namespace else None
    except ValueError as error:
        return Report((fail(TOPIC, str(error)),))
    if make_credential is not None:
        refusal = _sign_in(make_credential, environment.timeouts.answer)
        if refusal:
            return Report((fail(TOPIC, refusal),))
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


def unreachable(reached: Reach, host: str, port: int, hubs: EventHubsSettings) -> str:
    """Why no connection can be made, and what to do."""
    if reached is Reach.UNKNOWN_NAME:
        return (
            f"the name {host} is not known to this machine's DNS: correct the name of the namespace; with a private "
            "endpoint, link the zone privatelink.servicebus.windows.net to this network"
        )
    what = REACH_WORDS[reached]
    if hubs.connection is not None and hubs.connection.emulator:
        return f"{host}:{port} {what}: start the emulator there, or correct Endpoint in the connection string"
    other = f", or set event_hubs.transport to websocket, which uses {WEBSOCKET_PORT}"
    proxied = " (a proxy of the environment is not used)"
    return f"{host}:{port} {what}: let this machine out to port {port}{other if hubs.transport == 'amqp' else proxied}"


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
    hubs = settings.event_hubs
    try:
        destination = EventHubsDestination(hubs, **further)
    except ValueError as error:
        return fail(TOPIC, str(error))
    try:
        size = destination.probe()
    except Failure as failure:
        return explained(failure, hubs, address)
    finally:
        destination.close()
    return ok(TOPIC, f"{address} lets us send to {hubs.event_hub}, up to {size} bytes a message; nothing was sent")


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
    return verdict(TOPIC, f"{address} {sentence} ({failure.detail})")
