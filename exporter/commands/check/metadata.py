"""Probes the metadata service: whether it is reachable, Azure answers, and the VM's name occurs in the events.

It sends the agent's requests with the agent's client, and approves nothing. As with any client, the first request for
the events enables Scheduled Events for the VM [Azure, Scheduled Events: Enabling and disabling].
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from exporter.commands.check.report import (
    UNKNOWN_NAME,
    ClockReading,
    Finding,
    FindingVerdict,
    ProbeEnvironment,
    Report,
    clock_of,
    fail,
    ok,
    reach,
    warn,
)
from exporter.config.schema import Settings
from exporter.core.document import Document, DocumentError, alike, parse_document
from exporter.core.records import Vm
from exporter.core.scope import ownership_of
from exporter.core.state import Ownership
from exporter.metadata.client import MetadataClient
from exporter.metadata.errors import MetadataError, one_line
from exporter.secrets import redact

T = TypeVar("T")

TOPIC: Final = "metadata"
_MAX_NAMES: Final = 5
_MAX_QUOTED: Final = 120
"""Characters of a response that a finding quotes."""


class _Response(Struct, Generic[T], frozen=True):
    """The response to one request: `value` or `error`, the headers, and the seconds that it `took`."""

    value: T | None
    error: MetadataError | None
    headers: Mapping[str, str]
    clocks: tuple[ClockReading, ...]
    took: float


def probe_metadata(settings: Settings, environment: ProbeEnvironment) -> Report:
    """Probe the metadata service, for at most `timeouts.connect` + `timeouts.answer` seconds."""
    parts = urlsplit(settings.source.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if obstacle := reach(parts.hostname or "", port, environment.timeouts.connect):
        return Report((fail(TOPIC, unreachable(obstacle, settings.source.url, environment)),))
    with ThreadPoolExecutor(2) as pool:
        asking_identity = pool.submit(_ask, settings, environment, MetadataClient.instance)
        events = _ask(settings, environment, lambda client: client.fetch().body)
        identity = asking_identity.result()
    findings = [*_events(events, identity, settings, environment), *_identity(identity, events, settings)]
    # A proxy or another server has its own clock.
    clocks = identity.clocks or events.clocks if findings[0].verdict is FindingVerdict.OK else ()
    return Report(tuple(findings), clocks, identity.value.id if identity.value else "")


def _ask(settings: Settings, environment: ProbeEnvironment, question: Callable[[MetadataClient], T]) -> _Response[T]:
    source, answer = settings.source, environment.timeouts.answer
    client = MetadataClient(
        source.url, source.api_version, deadline=answer, first_deadline=answer, clock=environment.wall, tags=source.tags
    )
    began = time.monotonic()
    value, error = None, None
    try:
        value = question(client)
    except MetadataError as caught:
        error = caught
    finally:
        client.close()
    took = time.monotonic() - began
    clocks = clock_of("the metadata service", client.headers.get("date", ""), environment.wall(), took)
    return _Response(value, error, client.headers, clocks, took)


def _events(
    events: _Response[bytes], identity: _Response[Vm], settings: Settings, environment: ProbeEnvironment
) -> list[Finding]:
    url = settings.source.url
    if events.error is not None:
        if events.error.reason == "timeout":
            return [only_late(url, environment.timeouts.answer, identity.error is None)]
        return [explained(events.error, events.headers, settings, environment)]
    try:
        document = parse_document(events.value or b"")
    except DocumentError as error:
        return [fail(TOPIC, not_a_document(error, events.value or b"", events.headers, url))]
    other = stranger(events.headers)
    if other:
        return [warn(TOPIC, f"{url} answers, but {other}: {_PROXY}")]
    count = document.elements
    what = f"document {document.incarnation}, {count or 'no'} event{'' if count == 1 else 's'}"
    answered = ok(TOPIC, f"{url} answered in {events.took * 1000:.0f} ms: {what}")
    return [answered, *_unnamed(document, identity.value, settings)]


def _unnamed(document: Document, vm: Vm | None, settings: Settings) -> list[Finding]:
    """Return a warning if there are events, but none of this VM.

    That is normal for neighbouring VMs, and the sign of a wrong name.
    """
    name = settings.source.vm_name or (vm.name if vm else "")
    if (
        not {ownership_of(event.resources, name) for event in document.events} <= {Ownership.THEIRS}
        or not document.events
    ):
        return []
    names = dict.fromkeys(name for event in document.events for name in event.resources or ())
    shown = ", ".join(one_line(name) for name in list(names)[:_MAX_NAMES]) + (
        ", ..." if len(names) > _MAX_NAMES else ""
    )
    return [
        warn(
            "events",
            f"no event names this VM ({one_line(name)}); the events name {shown}: this is normal in a scale set or "
            "availability set; if one of these names is this VM's, set source.vm_name to it",
        )
    ]


def _identity(identity: _Response[Vm], events: _Response[bytes], settings: Settings) -> list[Finding]:
    configured = settings.source.vm_name
    if identity.error is not None:
        if events.error is not None and events.error.reason == identity.error.reason:
            return []  # reported already
        detail = one_line(identity.error.detail)
        return [
            (warn if configured else fail)(
                "identity",
                f"the metadata service did not return this VM's identity ({identity.error.reason}: {detail}): "
                + (f"the configured name {configured} is used" if configured else _NAMELESS),
            )
        ]
    azure = identity.value or Vm()
    return [_named(azure, configured), *_tags(azure)]


def _tags(azure: Vm) -> list[Finding]:
    """Return a warning if a configured tag is missing or empty, for example because its name is misspelled."""
    has = [f"{one_line(name)} ({one_line(value)})" for name, value in azure.tags if value]
    lacks = [one_line(name) for name, value in azure.tags if not value]
    if lacks:
        found = f"; found {', '.join(has)}" if has else ""
        missing = f"this VM's tag {' or '.join(lacks)} is missing or empty{found}: correct source.tags or the VM's tags"
        return [warn("tags", missing)]
    return []


_NAMELESS: Final = (
    "nothing is approved while the name is unknown; try again, or set source.vm_name to the name in Resources"
)


def _named(azure: Vm, configured: str) -> Finding:
    """Compare Azure's name of this VM with the configured one."""
    if not azure.name and configured:
        return warn("identity", f"Azure returned no name of this VM: the configured name {configured} is used")
    if not azure.name:
        scale_set = f" (scale set {azure.vmss_name}: {azure.vmss_name}_NUMBER)" if azure.vmss_name else ""
        return fail("identity", f"Azure returned no name of this VM (compute.name is empty): {_NAMELESS}{scale_set}")
    if configured and not alike(configured, azure.name):
        hint = "the host name is not the name of a scale set's VM; " if azure.vmss_name else ""
        return fail(
            "identity",
            f"source.vm_name is {configured}, but this VM's name in Azure is {azure.name}: nothing is approved while "
            f"they differ; {hint}remove source.vm_name, or set it to {azure.name}",
        )
    scale_set = f" of the scale set {azure.vmss_name}" if azure.vmss_name else ""
    where = f" in {azure.location}" if azure.location else ""
    return ok("identity", f"this VM is {azure.name}{scale_set}{where}")


_PROXY: Final = (
    "exclude the metadata service from the proxy or service mesh (transparent proxy: do not redirect 169.254.169.254; "
    "Istio: traffic.sidecar.istio.io/excludeOutboundIPRanges: 169.254.169.254/32)"
)


def unreachable(obstacle: str, url: str, environment: ProbeEnvironment) -> str:
    """Return the sentence for an address that accepts no connection: the likely cause and the remedy."""
    if obstacle == UNKNOWN_NAME:
        return f"the host name in source.url ({url}) does not resolve: correct it, or omit it to use 169.254.169.254"
    sentence = f"{url} {obstacle}"
    if "169.254.169.254" not in url:
        return f"{sentence}: correct source.url, or omit it to use 169.254.169.254"
    if environment.in_kubernetes:
        return (
            f"{sentence}: Azure answers only the node's own network; set hostNetwork: true and "
            "dnsPolicy: ClusterFirstWithHostNet in the pod's spec"
        )
    return (
        f"{sentence}: run this on an Azure VM; if it is one, look for a firewall rule, a route, a VPN, or a container "
        "without host network"
    )


def only_late(url: str, seconds: float, identified: bool) -> Finding:
    """Return the finding for a connection without a complete response within the probe's timeout."""
    if identified:
        return warn(
            TOPIC,
            f"{url} responds, but returned no events within {seconds:g} s: Azure may still be enabling Scheduled "
            "Events for this VM; try again after 2 minutes (the agent itself waits that long)",
        )
    return fail(
        TOPIC,
        f"{url} accepts connections, but did not respond within {seconds:g} s: Azure's first response can take 2 "
        "minutes; try again then, and if the timeout persists, look for a proxy or firewall in between",
    )


def stranger(headers: Mapping[str, str]) -> str:
    """Return the proxy that the headers reveal, as part of a sentence; "" if they reveal none."""
    for name in ("via", "x-squid-error", "proxy-authenticate", "x-cache", "x-envoy-upstream-service-time", "server"):
        value = headers.get(name)
        if value is not None and (name != "server" or re.match(r"(?i)squid|envoy|istio|zscaler|bluecoat", value)):
            return f"through a proxy (its header {name}: {one_line(value)[:60]})"
    return ""


def not_a_document(error: DocumentError, body: bytes, headers: Mapping[str, str], url: str) -> str:
    """Return the sentence for a response of HTTP 200 that isn't a document of Azure's."""
    html = body.lstrip()[:1] == b"<" or "html" in headers.get("content-type", "")
    if html:
        return f"{url} returned an HTML page: {_PROXY}"
    sign = stranger(headers)
    tail = f"it answers {sign}; {_PROXY}" if sign else "another server answers; correct source.url"
    return f"{url} returned an invalid document ({error.detail}): {tail}"


def explained(
    error: MetadataError, headers: Mapping[str, str], settings: Settings, environment: ProbeEnvironment
) -> Finding:
    """Return the finding for a response that the client rejects."""
    url = settings.source.url
    if other := stranger(headers):
        return fail(TOPIC, f"{url} answers {other} with HTTP {error.status_code}: {_PROXY}")
    detail = one_line(error.detail)
    quoted = redact(detail.removeprefix(f"HTTP {error.status_code}").strip(" :"))[:_MAX_QUOTED]
    sentence = _SENTENCES.get(error.reason, f"failed ({error.reason}: {{detail}}): {_PROXY}, or correct source.url")
    verdict = warn if error.reason in _PASSING else fail
    facts = {"status": error.status_code, "detail": detail, "answer": quoted or "empty"}
    pod = _POD if environment.in_kubernetes else ""
    return verdict(TOPIC, f"{url} {sentence.format(**facts, version=settings.source.api_version, pod=pod)}")


_POD: Final = "; in a pod on AKS with metadata restriction, set hostNetwork: true"
_PASSING: Final = frozenset({"throttled", "gone", "server-error"})
_SENTENCES: Final[Mapping[str, str]] = {
    # The response comes last: redaction of the printed line may cut it short.
    "forbidden": "returned HTTP {status}: if the VM uses the Metadata Security Protocol, add this program and its user "
    "to the VM's allow list for the metadata service; otherwise exclude the metadata service from the proxy or "
    "firewall that rejects the request, or correct source.url{pod}; the response was {answer}",
    "status-400": "rejects api-version {version}, or is not the metadata service: set source.api_version to "
    "2020-07-01, or correct source.url ({detail})",
    "redirect": f"returned a redirect (HTTP {{status}}), which Azure never does: {_PROXY}",
    "not-found": "has no Scheduled Events (HTTP 404): it is not Azure's metadata service; correct source.url",
    "tls": "failed the TLS handshake ({detail}): Azure's metadata service uses plain HTTP; correct source.url",
    "throttled": "gets too many requests (HTTP 429): all processes of this VM share 5 requests a second; find the "
    "other clients, or raise source.poll_interval",
    "gone": "is being updated (HTTP 410), for up to 70 s: try again",
    "server-error": "returned a server error (HTTP {status}): try again in a minute; the agent retries by itself",
}
