"""Tries the metadata service: can it be reached, does Azure answer, who does it say we are, do the events name us.

It asks what the agent asks, with the agent's own client, and approves nothing. As with any reader, the first question
for the events switches Scheduled Events on for the VM [Enabling and disabling].
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
"""Characters of an answer that is quoted."""


class _Asked(Struct, Generic[T], frozen=True):
    """One question: its answer or its failure, and the headers that came."""

    value: T | None
    error: MetadataError | None
    headers: Mapping[str, str]
    clocks: tuple[ClockReading, ...]
    took: float


def probe_metadata(settings: Settings, environment: ProbeEnvironment) -> Report:
    """At most `timeouts.connect` + `timeouts.answer` seconds."""
    parts = urlsplit(settings.source.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if obstacle := reach(parts.hostname or "", port, environment.timeouts.connect):
        return Report((fail(TOPIC, unreachable(obstacle, settings.source.url, environment)),))
    with ThreadPoolExecutor(2) as pool:
        asking_identity = pool.submit(_ask, settings, environment, MetadataClient.instance)
        events = _ask(settings, environment, lambda client: client.fetch().body)
        identity = asking_identity.result()
    findings = [*_events(events, identity, settings, environment), *_identity(identity, events, settings)]
    # What answers in the place of the service has a clock of its own.
    clocks = identity.clocks or events.clocks if findings[0].verdict is FindingVerdict.OK else ()
    return Report(tuple(findings), clocks, identity.value.id if identity.value else "")


def _ask(settings: Settings, environment: ProbeEnvironment, question: Callable[[MetadataClient], T]) -> _Asked[T]:
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
    return _Asked(value, error, client.headers, clocks, took)


def _events(
    events: _Asked[bytes], identity: _Asked[Vm], settings: Settings, environment: ProbeEnvironment
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
        return [warn(TOPIC, f"{url} answers, but {other}: nothing may stand between this agent and Azure")]
    count = document.elements
    what = f"document {document.incarnation}, {count or 'no'} event{'' if count == 1 else 's'}"
    answered = ok(TOPIC, f"{url} answered in {events.took * 1000:.0f} ms: {what}")
    return [answered, *_unnamed(document, identity.value, settings)]


def _unnamed(document: Document, vm: Vm | None, settings: Settings) -> list[Finding]:
    """A warning when there are events and none is ours: normal among neighbours, and what a wrong name looks like."""
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
            f"no event names this VM ({one_line(name)}): they name {shown}; normal for a neighbour in a scale set or "
            "availability set, but if one of these is this VM, set source.vm_name to that name",
        )
    ]


def _identity(identity: _Asked[Vm], events: _Asked[bytes], settings: Settings) -> list[Finding]:
    configured = settings.source.vm_name
    if identity.error is not None:
        if events.error is not None and events.error.reason == identity.error.reason:
            return []  # said already
        detail = one_line(identity.error.detail)
        return [
            (warn if configured else fail)(
                "identity",
                f"Azure does not say who this VM is ({identity.error.reason}: {detail}); "
                + (f"the configured name {configured} stands" if configured else _NAMELESS),
            )
        ]
    azure = identity.value or Vm()
    return [_named(azure, configured), *_tags(azure)]


def _tags(azure: Vm) -> list[Finding]:
    """Which of the configured tags this VM has: a name that is misspelled shows as one that it does not have."""
    has = [f"{one_line(name)} ({one_line(value)})" for name, value in azure.tags if value]
    lacks = [one_line(name) for name, value in azure.tags if not value]
    if lacks:
        beside = f"; it has {', '.join(has)}" if has else ""
        return [warn("tags", f"this VM has no tag {' or '.join(lacks)} of source.tags, or an empty one{beside}")]
    return []


_NAMELESS: Final = (
    "nothing is approved while the name is not known: try again, or set source.vm_name to the name as it stands in "
    "Resources"
)


def _named(azure: Vm, configured: str) -> Finding:
    """The name as Azure says it, beside the name as configured."""
    if not azure.name and configured:
        return warn("identity", f"Azure says no name of this VM; the configured name {configured} stands")
    if not azure.name:
        scale_set = f"; in the scale set {azure.vmss_name} it is {azure.vmss_name}_NUMBER" if azure.vmss_name else ""
        return fail("identity", f"Azure says no name of this VM (compute.name is empty): {_NAMELESS}{scale_set}")
    if configured and not alike(configured, azure.name):
        hint = "in a scale set the host name is not it; " if azure.vmss_name else ""
        return fail(
            "identity",
            f"source.vm_name is {configured}, but Azure calls this VM {azure.name}: nothing is approved while the two "
            f"differ; {hint}remove source.vm_name, or set it to {azure.name}",
        )
    scale_set = f" of the scale set {azure.vmss_name}" if azure.vmss_name else ""
    where = f" in {azure.location}" if azure.location else ""
    return ok("identity", f"this VM is {azure.name}{scale_set}{where}")


_PROXY: Final = (
    "a proxy or service mesh stands in between; take the metadata service out of it (transparent proxy: no redirection "
    "for 169.254.169.254; Istio: traffic.sidecar.istio.io/excludeOutboundIPRanges: 169.254.169.254/32)"
)


def unreachable(obstacle: str, url: str, environment: ProbeEnvironment) -> str:
    """Why no connection can be made, most likely."""
    if obstacle == UNKNOWN_NAME:
        return f"the name in source.url ({url}) is not known: correct it, or leave it out to use 169.254.169.254"
    sentence = f"{url} {obstacle}"
    if "169.254.169.254" not in url:
        return f"{sentence}: nothing listens there; correct source.url, or leave it out to use 169.254.169.254"
    if environment.in_kubernetes:
        return (
            f"{sentence}: this pod has no host network, and Azure answers the node alone; set hostNetwork: true and "
            "dnsPolicy: ClusterFirstWithHostNet in the pod's spec"
        )
    return (
        f"{sentence}: this is not an Azure VM, or a firewall rule, a route, a VPN or a container without host network "
        "keeps the address from this process"
    )


def only_late(url: str, seconds: float, identified: bool) -> Finding:
    """Connected, and no whole answer in the time that a probe waits."""
    if identified:
        return warn(
            TOPIC,
            f"{url} is there, but gave no events within {seconds:g} s: Azure may just be switching Scheduled Events on "
            "for this VM, which takes up to 2 minutes; try again then (the agent itself waits that long)",
        )
    return fail(
        TOPIC,
        f"{url} takes connections and gave no answer within {seconds:g} s; Azure's first answer may take 2 minutes: "
        "try again then, and if it stays silent, look for a proxy or firewall in between",
    )


def stranger(headers: Mapping[str, str]) -> str:
    """Who else shows in the headers, as the beginning of a sentence; "" for nobody."""
    for name in ("via", "x-squid-error", "proxy-authenticate", "x-cache", "x-envoy-upstream-service-time", "server"):
        value = headers.get(name)
        if value is not None and (name != "server" or re.match(r"(?i)squid|envoy|istio|zscaler|bluecoat", value)):
            return f"through a proxy (its header {name}: {one_line(value)[:60]})"
    return ""


def not_a_document(error: DocumentError, body: bytes, headers: Mapping[str, str], url: str) -> str:
    """A 200 that is no document of Azure's."""
    html = body.lstrip()[:1] == b"<" or "html" in headers.get("content-type", "")
    if html:
        return f"{url} answers with an HTML page: {_PROXY}"
    sign = stranger(headers)
    tail = f"{sign}; {_PROXY}" if sign else "something else answers in Azure's place; correct source.url"
    return f"{url} answers with what is no document of events ({error.detail}): {tail}"


def explained(
    error: MetadataError, headers: Mapping[str, str], settings: Settings, environment: ProbeEnvironment
) -> Finding:
    """The finding for an answer that the client does not take."""
    url = settings.source.url
    if other := stranger(headers):
        return fail(TOPIC, f"{url} answers {other} with HTTP {error.status_code}: {_PROXY}")
    detail = one_line(error.detail)
    quoted = redact(detail.removeprefix(f"HTTP {error.status_code}").strip(" :"))[:_MAX_QUOTED]
    sentence = _SENTENCES.get(error.reason, f"failed ({error.reason}: {{detail}}): {_PROXY}, or correct source.url")
    verdict = warn if error.reason in _PASSING else fail
    facts = {"status": error.status_code, "detail": detail, "answer": quoted or "without a text"}
    pod = _POD if environment.in_kubernetes else ""
    return verdict(TOPIC, f"{url} {sentence.format(**facts, version=settings.source.api_version, pod=pod)}")


_POD: Final = "; in a pod on AKS, metadata restriction does the same: set hostNetwork: true"
_PASSING: Final = frozenset({"throttled", "gone", "server-error"})
_SENTENCES: Final[Mapping[str, str]] = {
    # Last comes the answer: redaction of the printed line may cut it short.
    "forbidden": "answers HTTP {status}: either the Metadata Security Protocol of this VM refuses this process, so add "
    "this program and its user to the VM's allow list for the metadata service; or something else refuses it, such as "
    "a proxy, a firewall or another service at this address, so take the metadata service out of it, or correct "
    "source.url{pod}; the answer was {answer}",
    "status-400": "does not take api-version {version}, or is no metadata service: set source.api_version to "
    "2020-07-01, or correct source.url ({detail})",
    "redirect": f"answers with a redirection (HTTP {{status}}), which Azure never does: {_PROXY}",
    "not-found": "knows no Scheduled Events (HTTP 404): it is not Azure's metadata service; correct source.url",
    "tls": "does not agree on TLS ({detail}): Azure's metadata service is plain http; correct source.url",
    "throttled": "is asked too often (HTTP 429): all processes of this VM share 5 requests a second; find who else "
    "asks, or raise source.poll_interval",
    "gone": "is away for a moment (HTTP 410), up to 70 s: try again",
    "server-error": "is in trouble itself (HTTP {status}): try again in a minute; the agent goes on asking",
}
