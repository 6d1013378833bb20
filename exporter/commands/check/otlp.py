"""Tries the collector: a POST without any record to the address that records go to, answered as one with records is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from exporter.commands.check.network import REACH_WORDS, Reach, clock_of, reach
from exporter.commands.check.report import Finding, ProbeEnvironment, Report, fail, ok, warn
from exporter.config.schema import Settings
from exporter.errors import Failure
from exporter.http.transport import environment_proxy
from exporter.sinks.otlp.sink import OtlpDestination

TOPIC: Final = "otlp"


def probe_otlp(settings: Settings, environment: ProbeEnvironment) -> Report:
    """At most `timeouts.connect` seconds and `otlp.timeout`."""
    url = settings.otlp.logs_url
    parts = urlsplit(url)
    shown, host = origin(url), parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    proxy_of_environment = environment_proxy(url, environment.environ)
    proxy = proxy_of_environment.variable if proxy_of_environment else ""
    reached = Reach.OPEN if proxy else reach(host, port, environment.timeouts.connect)
    if reached is not Reach.OPEN:
        return Report((fail(TOPIC, _unreachable(reached, shown, host)),))
    began = time.monotonic()
    try:
        headers = _post(settings)
    except Failure as failure:
        return Report((_explained(failure, shown, proxy),))
    clocks = clock_of("the collector", headers.get("Date", ""), environment.wall(), time.monotonic() - began)
    through = f" through the proxy that {proxy} names" if proxy else ""
    return Report((ok(TOPIC, f"{shown} took an empty request{through}; no record was sent"),), clocks)


def origin(url: str) -> str:
    """A URL's scheme, host and port: some backends have a token in the path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _post(settings: Settings) -> Mapping[str, str]:
    try:
        destination = OtlpDestination(settings.otlp)
    except ValueError as error:
        raise Failure("configuration", str(error)) from error
    try:
        return destination.probe()
    finally:
        destination.close()


def _unreachable(reached: Reach, shown: str, host: str) -> str:
    if reached is Reach.UNKNOWN_NAME:
        return f"the name {host} is not known to this machine's DNS: correct otlp.endpoint"
    what = REACH_WORDS[reached]
    return f"{shown} {what}: start the collector there (OTLP over HTTP, port 4318 as a rule), or correct otlp.endpoint"


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


def _explained(failure: Failure, shown: str, proxy: str) -> Finding:
    sentence = _SENTENCES.get(failure.reason, "fails: see the collector's own log")
    hint = (
        f"; the request went through the proxy that {proxy} names, add the host to NO_PROXY if it must not"
        if proxy
        else ""
    )
    verdict = warn if failure.reason in _PASSING else fail
    return verdict(TOPIC, f"{shown} {sentence}{hint} ({failure.detail})")
