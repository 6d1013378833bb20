"""Tries the metadata service: can it be reached, does Azure answer, who does it say we are, do the events name us.

It asks what the agent asks, with the agent's own client, and approves nothing. As with any reader, the first question
for the events switches Scheduled Events on for the VM [Enabling and disabling].
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

from exporter.config import Settings
from exporter.events import Document, DocumentError, parse_document
from exporter.folding import alike
from exporter.metadata import Compute, MetadataClient, MetadataError
from exporter.metadata_errors import one_line
from exporter.probe_metadata_words import explained, not_a_document, only_late, stranger, unreachable
from exporter.probe_network import Reach, clock_of, reach
from exporter.probe_report import ClockReading, Finding, Report, World, fail, ok, warn

T = TypeVar("T")

TOPIC: Final = "metadata"
_PROXY_VARIABLES: Final = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_MAX_NAMES: Final = 5


@dataclass(frozen=True, slots=True)
class _Asked(Generic[T]):
    """One question: its answer or its failure, and the headers that came."""

    value: T | None
    error: MetadataError | None
    headers: Mapping[str, str]
    clocks: tuple[ClockReading, ...]
    took: float


def probe_metadata(settings: Settings, world: World) -> Report:
    """At most `patience.connect` + `patience.answer` seconds."""
    parts = urlsplit(settings.source.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found = reach(parts.hostname or "", port, world.patience.connect)
    proxies = _proxies(world)
    if found is not Reach.OPEN:
        return Report((fail(TOPIC, unreachable(found, settings.source.url, world)), *proxies))
    with ThreadPoolExecutor(2) as pool:
        asking_who = pool.submit(_ask, settings, world, MetadataClient.instance)
        events = _ask(settings, world, lambda client: client.fetch().body)
        who = asking_who.result()
    findings = [*_events(events, who, settings, world), *_identity(who, events, settings)]
    return Report((*findings, *proxies), who.clocks or events.clocks, who.value.vm_id if who.value else "")


def _ask(settings: Settings, world: World, question: Callable[[MetadataClient], T]) -> _Asked[T]:
    source, answer = settings.source, world.patience.answer
    client = MetadataClient(source.url, source.api_version, deadline=answer, first_deadline=answer, clock=world.wall)
    began = time.monotonic()
    value, error = None, None
    try:
        value = question(client)
    except MetadataError as caught:
        error = caught
    finally:
        client.close()
    took = time.monotonic() - began
    clocks = clock_of("the metadata service", client.headers.get("date", ""), world.wall(), took)
    return _Asked(value, error, client.headers, clocks, took)


def _proxies(world: World) -> tuple[Finding, ...]:
    names = [name for name in _PROXY_VARIABLES if world.environ.get(name)]
    if not names:
        return ()
    return (ok("proxy", f"{' and '.join(names)} is set and not used for the metadata service, as it must be"),)


def _events(events: _Asked[bytes], who: _Asked[Compute], settings: Settings, world: World) -> list[Finding]:
    url = settings.source.url
    if events.error is not None:
        if events.error.reason == "timeout":
            return [only_late(url, world.patience.answer, who.error is None)]
        return [explained(events.error, events.headers, settings, world)]
    try:
        document = parse_document(events.value or b"")
    except DocumentError as error:
        return [fail(TOPIC, not_a_document(error, events.value or b"", events.headers, url))]
    other = stranger(events.headers)
    if other:
        return [warn(TOPIC, f"{url} answers, but {other}: nothing may stand between this agent and Azure")]
    count = len(document.events) + len(document.rejected)
    what = f"document {document.incarnation}, {count or 'no'} event{'' if count == 1 else 's'}"
    answered = ok(TOPIC, f"{url} answered in {events.took * 1000:.0f} ms: {what}")
    return [answered, *_unnamed(document, who.value, settings)]


def _unnamed(document: Document, who: Compute | None, settings: Settings) -> list[Finding]:
    """A warning when there are events and none is ours: normal among neighbours, and what a wrong name looks like."""
    name = settings.source.vm_name or (who.name if who else "")
    if not document.events or any(event.may_name(name) for event in document.events):
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


def _identity(who: _Asked[Compute], events: _Asked[bytes], settings: Settings) -> list[Finding]:
    configured = settings.source.vm_name
    if who.error is not None:
        if events.error is not None and events.error.reason == who.error.reason:
            return []  # said already
        detail = one_line(who.error.detail)
        return [
            (warn if configured else fail)(
                "identity",
                f"Azure does not say who this VM is ({who.error.reason}: {detail}); "
                + (f"the configured name {configured} stands" if configured else _NAMELESS),
            )
        ]
    found = who.value or Compute()
    return [_named(found, configured)]


_NAMELESS: Final = (
    "nothing is approved while the name is not known: try again, or set source.vm_name to the name as it stands in "
    "Resources"
)


def _named(found: Compute, configured: str) -> Finding:
    """The name as Azure says it, beside the name as configured."""
    if not found.name and configured:
        return warn("identity", f"Azure says no name of this VM; the configured name {configured} stands")
    if not found.name:
        scale_set = f"; in the scale set {found.vmss_name} it is {found.vmss_name}_NUMBER" if found.vmss_name else ""
        return fail("identity", f"Azure says no name of this VM (compute.name is empty): {_NAMELESS}{scale_set}")
    if configured and not alike(configured, found.name):
        hint = "in a scale set the host name is not it; " if found.vmss_name else ""
        return fail(
            "identity",
            f"source.vm_name is {configured}, but Azure calls this VM {found.name}: nothing is approved while the two "
            f"differ; {hint}remove source.vm_name, or set it to {found.name}",
        )
    scale_set = f" of the scale set {found.vmss_name}" if found.vmss_name else ""
    where = f" in {found.location}" if found.location else ""
    return ok("identity", f"this VM is {found.name}{scale_set}{where}")
