"""The landing page: what a person on call sees first. This VM, what is coming and when, what was decided and why.

A page of one status, complete without scripts and without anything from elsewhere. It never looks calm while the agent
is blind: what is not known is said to be so, and what is shown then is said to be old.

This module makes plain values of the status; `page.html` lays them out and `style.css` colours them. jinja2 escapes
whatever it is given, and is imported with the first page, not with the agent. What comes from outside (descriptions,
ids, names) is moreover `Quoted`: isolated from the page's own direction, cut to a bearable length, and with every
character that hides or reorders text spelled out.
"""

from __future__ import annotations

import base64
import hashlib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from exporter.core.folding import alike
from exporter.core.record_factory import account
from exporter.core.snapshot import DestinationStatus, Status, urgency
from exporter.core.state import Instant, Phase, Tracked
from exporter.page.sentences import COORDINATIONS, MEANING, MODES, decision_text, failure, headline, when
from exporter.text.account import UNKNOWN, announced_duration, approved_by, observed_interruption, started_by
from exporter.text.format import ago, counted, distance, moment, size, span

if TYPE_CHECKING:
    from jinja2 import Template

REFRESH_SECONDS: Final = 10
MAX_EVENTS: Final = 20
MAX_CLOSED: Final = 10
MAX_RESOURCES: Final = 5
MAX_QUOTED: Final = 600
MAX_MARKS: Final = 3
ICONS: Final = {"calm": "1c7c4a", "coming": "e09a1a", "on": "d3342b", "blind": "8a5fc7"}
DESTINATION_NAMES: Final = {"event_hubs": "Event Hubs", "otlp": "OpenTelemetry"}
OUTCOMES: Final = {"completed": "completed", "canceled": "canceled by Azure", "ended": "gone, how was not seen"}

# As text, so that the line ends are those that a browser hashes, whatever a checkout made of them.
STYLE: Final = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
TEMPLATE: Final = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
"""Read at the start, as the style is: an upgrade may replace the files beneath a running agent."""
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
PAGE_CONTENT_TYPE: Final = "text/html; charset=utf-8"
PAGE_HEADERS: Final = (
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
"""To be sent with the page: nothing runs, nothing is loaded, nobody may frame it, and no proxy keeps an old one."""


# --- the values of a page ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marked:
    """The page's own words, in the colour of a class of the style: `good` or `bad`."""

    text: str
    style: str


@dataclass(frozen=True, slots=True)
class Quoted:
    """Text that somebody else wrote, made by `quoted`: visible and cut, with the number of characters left out."""

    text: str
    style: str
    omitted: int


Part = str | datetime | Marked | Quoted
Value = Part | tuple[Part, ...]
"""What stands in one place of the page; "\\n" breaks the line. A row of terms whose value is empty is left out."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The page in one sentence, with lines below it. `tone` is a class of the style."""

    tone: str
    title: str
    lines: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """One event that is not over."""

    tone: str
    title: Value
    when: str
    rows: tuple[tuple[str, Value], ...]


def render_page(status: Status, now: Instant, version: str) -> bytes:
    """The landing page of one status, in UTF-8. Send `PAGE_HEADERS` with it."""
    own = sorted(status.own_events, key=urgency)
    closed = [tracked for tracked in status.state.closed.values() if status.concerns_this_vm(tracked)]
    verdict = _verdict(status, own, now)
    page = _template().render(
        title=f"{verdict.title} · {(status.vm.name or 'this VM')[:100]}",
        icon=ICONS[verdict.tone],
        refresh_seconds=REFRESH_SECONDS,
        name=quoted(status.vm.name) if status.vm.name else "This VM (its name is not known yet)",
        name_known=bool(status.vm.name),
        about=tuple(_about(status)),
        verdict=verdict,
        events=tuple(_card(status, tracked, now) for tracked in own[:MAX_EVENTS]),
        events_omitted=max(0, len(own) - MAX_EVENTS),
        rest=_rest(status),
        closed=tuple(_closed(closed)),
        destinations=tuple(_destination(destination, now) for destination in status.destinations),
        outbox=_outbox(status),
        source=_source(status, now),
        now=now.wall,
        version=version,
    )
    return page.encode("utf-8", "replace")


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415  # 2 MiB that only a viewer pays

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["moment"] = moment
    environment.globals["style"] = STYLE
    return environment.from_string(TEMPLATE)


# --- text from outside ------------------------------------------------------------------------------------------------


def quoted(value: str, style: str = "", limit: int = MAX_QUOTED) -> Quoted:
    """Text that somebody else wrote, at most `limit` characters of it; `style` are further classes."""
    return Quoted(visible(value[:limit]), f"outside {style}".rstrip(), max(0, len(value) - limit))


def visible(value: str) -> str:
    """The same text with each character that would hide, reorder or break it written as its code point.

    Marks that pile up on one letter would be drawn over the lines above and below: the first few are kept.
    """
    shown: list[str] = []
    marks = 0
    for char in value:
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks <= MAX_MARKS:
            shown.append(f"⟨U+{ord(char):04X}⟩" if _deceptive(char, category) else char)
    return "".join(shown)


def _deceptive(char: str, category: str) -> bool:
    return (category in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and char != "\n") or char in _INVISIBLE


_INVISIBLE: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters and symbols that look like nothing


# --- the verdict ------------------------------------------------------------------------------------------------------


def _about(status: Status) -> Iterator[Value]:
    vm = status.vm
    yield "Azure scheduled events"
    if vm.priority and vm.priority != "Regular":
        yield quoted(vm.priority, limit=40)
    zone = f"{vm.location}, zone {vm.zone}" if vm.location and vm.zone else vm.location
    for detail in (vm.size, zone, vm.resource_group, vm.vmss_name, vm.node):
        if detail:
            yield quoted(detail, limit=120)


def _verdict(status: Status, own: list[Tracked], now: Instant) -> Verdict:
    if _last_read(status) is None:
        return Verdict("blind", "Not known yet", (_never_read(status),))
    if not status.fresh(now):
        known = f"Known then: {headline(own[0], now)}." if own else "No event of this VM was known then."
        return Verdict("blind", "Not known at the moment", (_age(status, now), known))
    verdict = _present(status, own, now)
    return verdict if status.source.up else replace(verdict, lines=(*verdict.lines, _age(status, now)))


def _present(status: Status, own: list[Tracked], now: Instant) -> Verdict:
    """What a document that was just read says."""
    if own:
        tone = "on" if own[0].phase is Phase.STARTED else "coming"
        return Verdict(tone, headline(own[0], now), tuple(_below(own)))
    if status.warming(now):
        enabling = "Azure may still be enabling the service for this VM: up to five minutes after the first request."
        return Verdict("blind", "Not known yet", (enabling,))
    if status.state.document is not None and status.state.document.rejected:
        unreadable = "The document holds events that can't be read; the log and the records have them."
        return Verdict("blind", "Not known for sure", (unreadable,))
    read = _last_read(status)
    as_of: tuple[Part, ...] = (", as of ", read.wall) if read else ()
    return Verdict("calm", "Nothing is planned", (("The metadata service names no event for this VM", *as_of, "."),))


def _below(own: list[Tracked]) -> Iterator[str]:
    if meaning := MEANING.get(own[0].event.event_type or ""):
        yield meaning
    if len(own) > 1:
        yield f"{len(own) - 1} more below."


def _last_read(status: Status) -> Instant | None:
    """When the document that we know was read, perhaps by an earlier process."""
    return status.source.success or (status.state.last_good if status.state.document else None)


def _never_read(status: Status) -> str:
    reason = status.source.failure
    if not reason:
        return "The metadata service has not been asked yet."
    return f"The metadata service gave no document so far: {failure(reason)}."


def _age(status: Status, now: Instant) -> Value:
    """That the source fails, why, and how old everything else on this page is."""
    reason, read = status.source.failure, _last_read(status)
    fails = (
        f"The metadata service can't be read: {failure(reason)}."
        if reason
        else ("The metadata service was not read again.")
    )
    if read is None:
        return fails
    if now.since(read) is None:
        return (f"{fails} This page shows what was known at ", read.wall, ", before the clock was set back.")
    return (f"{fails} This page shows what was known {ago(read, now)}, at ", read.wall, ".")


# --- events -----------------------------------------------------------------------------------------------------------


def _card(status: Status, tracked: Tracked, now: Instant) -> Card:
    event, approval = tracked.event, tracked.approval
    started = tracked.phase is Phase.STARTED
    rows: tuple[tuple[str, Value], ...] = (
        ("What it means", MEANING.get(event.event_type or "", "")),
        ("Azure says", quoted(event.description) if event.description else ""),
        ("Not before", _future(event.not_before, now) if not started else ""),
        ("Started", _past(tracked.started, now) if started else ""),
        ("Approved by", started_by(tracked.started_by, approval.rule) if started else ""),
        ("Interruption", announced_duration(event.duration)),
        ("Decision", decision_text(status.decisions.get(tracked.key), tracked) if not started else ""),
        ("Approved", _past(approval.accepted_at, now)),
        (
            "Outdated",
            Marked("it changed after we approved it, and would now be held", "bad") if approval.outdated else "",
        ),
        ("Touches", _resources(tracked, status.vm.name)),
        ("Asked for by", quoted(event.source, limit=60) if event.source else ""),
        ("Status", quoted(event.status or UNKNOWN, limit=60)),
        ("First seen", _past(tracked.first_seen_instant, now)),
        ("Can't be read", ", ".join(event.faults[:10])),
        ("EventId", quoted(event.event_id, "id")),
    )
    title = quoted(event.event_type or "Event of unknown type", limit=60)
    return Card("on" if started else "coming", title, when(tracked, now), rows)


def _future(instant: datetime | None, now: Instant) -> Value:
    """A time that may still come."""
    return "" if instant is None else (instant, f" ({distance(instant, now.wall)})")


def _past(instant: datetime | Instant | None, now: Instant) -> Value:
    """A time that was."""
    if instant is None:
        return ""
    then = instant if isinstance(instant, Instant) else Instant(instant)
    return (then.wall, f" ({ago(then, now)})")


def _resources(tracked: Tracked, vm_name: str) -> Value:
    names = tracked.event.resources
    if names is None:
        return "resources that can't be read"
    own = [name for name in names if vm_name and alike(name, vm_name)]
    others = [name for name in names if name not in own]
    shown: list[Part] = ["this VM"] if own else []
    shown += [quoted(name, limit=80) for name in others[:MAX_RESOURCES]]
    if len(others) > MAX_RESOURCES:
        shown.append(f"{len(others) - MAX_RESOURCES} more")
    return tuple(part for name in shown for part in (", ", name))[1:] or "no resources"


def _rest(status: Status) -> str:
    document = status.state.document
    if document is None:
        return ""
    others, unread = len(status.state.tracked) - len(status.own_events), len(document.rejected)
    parts = [f"{counted(others, 'further event')} of other VMs" if others else ""]
    parts.append(f"{unread} that can't be read" if unread else "")
    return " and ".join(part for part in parts if part)


def _closed(closed: list[Tracked]) -> Iterator[tuple[Value, ...]]:
    """The newest first. They are kept in the order in which they ended, which no clock can change."""
    gone = [tracked for tracked in closed if tracked.closed_at is not None and tracked.outcome is not None]
    for tracked in gone[::-1][:MAX_CLOSED]:
        summary, event = account(tracked), tracked.event
        notice, lasted = summary["notice_seconds"], summary["started_seconds"]
        yield (
            (quoted(event.event_type or "Event", limit=40), "\n", quoted(event.event_id, "id soft")),
            (f"{OUTCOMES.get(summary['outcome'], UNKNOWN)} ", tracked.closed_at or tracked.first_seen),
            UNKNOWN if notice is None else span(max(0.0, notice)),
            approved_by(summary),
            tracked.started_at if tracked.started_at else "not seen",
            "–" if lasted is None else span(lasted),
            observed_interruption(summary),
        )


# --- outputs and source -----------------------------------------------------------------------------------------------


def _destination(destination: DestinationStatus, now: Instant) -> tuple[Value, ...]:
    name = DESTINATION_NAMES.get(destination.name, destination.name)
    if not destination.configured:
        return (name, "not configured", *["–"] * 4)
    works = Marked("works" if destination.last_success else "nothing sent yet", "good")
    return (
        name,
        Marked(f"fails: {destination.error}", "bad") if destination.error else works,
        str(destination.records),
        _past(destination.oldest, now) or "–",
        Marked(str(destination.parked), "bad") if destination.parked else "0",
        _past(destination.last_success, now) or "never",
    )


def _outbox(status: Status) -> Value:
    outbox = status.outbox
    if not outbox.writable:
        return Marked("can't be written: nothing is approved until it can", "bad")
    return f"{size(outbox.bytes)} of {size(outbox.capacity)} used"


def _source(status: Status, now: Instant) -> tuple[tuple[str, Value], ...]:
    source, state = status.source, status.state
    fails = Marked(failure(source.failure) if source.failure else "not asked yet", "bad")
    since = source.failing or (state.outage.since if state.outage else None)
    conflict = "the configured name is not the one that the metadata service gives; nothing is approved"
    return (
        ("Metadata service", Marked("answers", "good") if source.up else fails),
        ("Failing since", _past(since, now) if not source.up else ""),
        ("Last good document", _past(source.success, now) or "none by this process"),
        ("Polled every", span(status.poll_interval)),
        ("Document number", str(state.document.incarnation) if state.document else ""),
        ("Warming up", "yes: Azure may still be enabling the service" if status.warming(now) else ""),
        ("Approvals", MODES[status.mode]),
        ("Coordination", COORDINATIONS[status.coordination]),
        ("Name", Marked(conflict, "bad") if status.identity_conflict else ""),
        ("Agent started", _past(status.started, now)),
    )
