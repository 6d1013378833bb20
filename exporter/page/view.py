"""The landing page: what a person on call sees first. This VM, what is coming and when, what we decided and why.

A page of one status, complete without scripts and without anything from elsewhere. It never looks calm while the agent
is blind: what is not known is said to be so, and what is shown then is said to be old.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from exporter.core.folding import alike
from exporter.core.record_factory import account
from exporter.core.snapshot import DestinationStatus, Status, urgency
from exporter.core.state import Instant, Outage, Phase, Tracked
from exporter.page.markup import (
    NOTHING,
    STYLE,
    Html,
    icon,
    join,
    listed,
    moment,
    outside,
    table,
    tag,
    terms,
    text,
)
from exporter.text.sentences import (
    COORDINATIONS,
    MEANING,
    MODES,
    UNKNOWN,
    ago,
    approved_by,
    decision,
    distance,
    duration,
    failure,
    felt,
    headline,
    optional_span,
    size,
    span,
    started_by,
    when,
)

REFRESH_SECONDS: Final = 10
ICONS: Final = {"calm": "#1c7c4a", "coming": "#e09a1a", "on": "#d3342b", "blind": "#8a5fc7"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The page in one sentence. `tone` is a class of the style and a colour of the tab's dot."""

    tone: str
    title: str
    lines: tuple[Html, ...] = ()


def render_page(status: Status, now: Instant, version: str) -> bytes:
    """The landing page of one status, in UTF-8. Send `PAGE_HEADERS` with it."""
    own = sorted(status.own_events, key=urgency)
    verdict = _verdict(status, own, now)
    name = status.vm.name or "this VM"
    head = join(
        (
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<meta name="color-scheme" content="light dark">'),
            Html(f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'),
            tag("title", text(f"{verdict.title} · {name[:100]}")),
            Html(f'<link rel="icon" href="{icon(ICONS[verdict.tone])}">'),
            Html(f"<style>{STYLE}</style>"),
        )
    )
    body = join(
        (
            tag("header", tag("h1", *_name(status)), _about(status), _banner(verdict)),
            tag("main", *sections(status, own, now)),
            _footer(now, version),
        )
    )
    page = f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'
    return page.encode("utf-8", "replace")


def _name(status: Status) -> Iterator[Html]:
    if status.vm.name:
        yield outside(status.vm.name)
    else:
        yield text("This VM (its name is not known yet)")


def _about(status: Status) -> Html:
    vm = status.vm
    zone = f"{vm.location}, zone {vm.zone}" if vm.location and vm.zone else vm.location
    said = [vm.size, zone, vm.resource_group, vm.vmss_name, vm.node]
    parts = [outside(part, limit=120) for part in said if part]
    if vm.priority and vm.priority != "Regular":
        parts.insert(0, outside(vm.priority, limit=40))
    return tag("p", listed((text("Azure scheduled events"), *parts), " · "), class_="soft")


# --- the verdict ------------------------------------------------------------------------------------------------------


def _verdict(status: Status, own: list[Tracked], now: Instant) -> Verdict:
    if _last_read(status) is None:
        return Verdict("blind", "Not known yet", (text(_never_read(status)),))
    if not status.fresh(now):
        return Verdict("blind", "Not known at the moment", (_age(status, now), *_headline(own, now)))
    found = _present(status, own, now)
    return found if status.source.up else replace(found, lines=(*found.lines, _age(status, now)))


def _present(status: Status, own: list[Tracked], now: Instant) -> Verdict:
    """What a document that was just read says."""
    if own:
        return _busy(own, now)
    if status.warming(now):
        say = "Azure may still be enabling the service for this VM: up to five minutes after the first request."
        return Verdict("blind", "Not known yet", (text(say),))
    if status.state.document is not None and status.state.document.rejected:
        say = "The document holds events that can't be read; the log and the records have them."
        return Verdict("blind", "Not known for sure", (text(say),))
    read = _last_read(status)
    as_of = join((text(", as of "), moment(read.wall))) if read else NOTHING
    say = "The metadata service names no event for this VM"
    return Verdict("calm", "Nothing is planned", (join((text(say), as_of, text("."))),))


def _last_read(status: Status) -> Instant | None:
    """When the document that we know was read, perhaps by an earlier process."""
    return status.source.success or (status.state.last_good if status.state.document else None)


def _never_read(status: Status) -> str:
    reason = status.source.failure
    if not reason:
        return "The metadata service has not been asked yet."
    return f"The metadata service gave no document so far: {failure(reason)}."


def _age(status: Status, now: Instant) -> Html:
    """That the source fails, why, and how old everything else on this page is."""
    reason, read = status.source.failure, _last_read(status)
    why = f"can't be read: {failure(reason)}" if reason else "was not read again"
    say = text(f"The metadata service {why}.")
    if read is None:
        return say
    if now.since(read) is None:
        return join(
            (
                say,
                text(" This page shows what was known at "),
                moment(read.wall),
                text(", before the clock was set back."),
            )
        )
    return join((say, text(f" This page shows what was known {ago(read, now)}, at "), moment(read.wall), text(".")))


def _headline(own: list[Tracked], now: Instant) -> Iterator[Html]:
    if own:
        yield text(f"Known then: {headline(own[0], now)}.")
    else:
        yield text("No event of this VM was known then.")


def _busy(own: list[Tracked], now: Instant) -> Verdict:
    first = own[0]
    tone = "on" if first.phase is Phase.STARTED else "coming"
    return Verdict(tone, headline(first, now), tuple(_more(own)))


def _more(own: list[Tracked]) -> Iterator[Html]:
    meaning = MEANING.get(own[0].event.event_type or "")
    if meaning:
        yield text(meaning)
    if len(own) > 1:
        yield text(f"{len(own) - 1} more below.")


def _banner(verdict: Verdict) -> Html:
    lines = (tag("p", line) for line in verdict.lines)
    return tag("div", tag("strong", text(verdict.title)), *lines, class_=f"verdict {verdict.tone}")


def _footer(now: Instant, version: str) -> Html:
    links = (("/metrics", "Metrics"), ("/-/healthy", "Healthy?"), ("/-/ready", "Ready?"))
    items = (tag("li", tag("a", text(name), href=path)) for path, name in links)
    nav = tag("nav", tag("ul", *items), aria_label="Links")
    said = join((text("As of "), moment(now.wall), text(f", renewed every {REFRESH_SECONDS} s · ")))
    return tag("footer", nav, tag("p", said, text(f"azure-scheduled-events-exporter {version}")))


MAX_EVENTS: Final = 20
MAX_CLOSED: Final = 10
MAX_RESOURCES: Final = 5
DESTINATION_NAMES: Final = {"event_hubs": "Event Hubs", "otlp": "OpenTelemetry"}
OUTCOMES: Final = {"completed": "completed", "canceled": "canceled by Azure", "ended": "gone, how was not seen"}


def sections(status: Status, own: list[Tracked], now: Instant) -> Iterator[Html]:
    if own:
        yield _section("Events of this VM", *_events(status, own, now))
    elif status.state.document is not None and (others := _others(status)):
        yield _section("Events of this VM", others)
    closed = [tracked for tracked in status.state.closed.values() if status.concerns_this_vm(tracked)]
    yield _section("What happened last", _closed(closed))
    yield _section("Outputs", _outputs(status, now))
    yield _section("Source and approvals", _source(status, now))


def _section(title: str, *children: Html) -> Html:
    name = title.lower().replace(" ", "-")
    return tag("section", tag("h2", text(title), id=name), *children, aria_labelledby=name)


def _events(status: Status, own: list[Tracked], now: Instant) -> Iterator[Html]:
    if not status.vm.name:
        say = "This VM's own name is not known yet, so every event of the document is shown and none is approved."
        yield tag("p", text(say), class_="note")
    for tracked in own[:MAX_EVENTS]:
        yield _event(status, tracked, now)
    if len(own) > MAX_EVENTS:
        yield tag("p", text(f"{len(own) - MAX_EVENTS} more events of this VM are in the metrics and the records."))
    yield _others(status)


def _others(status: Status) -> Html:
    document = status.state.document
    if document is None:
        return NOTHING
    others, unread = len(status.state.tracked) - len(status.own_events), len(document.rejected)
    said = [f"{others} further event{'s' * (others > 1)} of other VMs" if others else ""]
    said.append(f"{unread} that can't be read" if unread else "")
    words = " and ".join(part for part in said if part)
    return tag("p", text(f"The document also holds {words}."), class_="soft") if words else NOTHING


def _event(status: Status, tracked: Tracked, now: Instant) -> Html:
    event = tracked.event
    started = tracked.phase is Phase.STARTED
    title = outside(event.event_type or "Event of unknown type", limit=60)
    rows = (
        ("What it means", text(MEANING.get(event.event_type or "", ""))),
        ("Azure says", outside(event.description) if event.description else NOTHING),
        ("Not before", _at(event.not_before, now) if not started else NOTHING),
        ("Started", _past(tracked.started, now) if started else NOTHING),
        ("Approved by", text(started_by(tracked.started_by, tracked.approval.rule)) if started else NOTHING),
        ("Interruption", text(duration(event.duration))),
        ("Decision", NOTHING if started else text(decision(status.decisions.get(tracked.key), tracked))),
        ("Approved", _past(tracked.approval.accepted_at, now)),
        ("Outdated", _outdated(tracked)),
        ("Touches", _resources(tracked, status.vm.name)),
        ("Asked for by", outside(event.source, limit=60) if event.source else NOTHING),
        ("Status", outside(event.status or UNKNOWN, limit=60)),
        ("First seen", _past(tracked.sighted, now)),
        ("Can't be read", text(", ".join(event.faults[:10]))),
        ("EventId", outside(event.event_id, "id")),
    )
    return tag(
        "article", tag("h3", title), tag("p", text(when(tracked, now)), class_="when"), terms(rows),
        class_="on" if started else "coming",
    )  # fmt: skip


def _at(value: datetime | None, now: Instant) -> Html:
    """A time that may still come."""
    return NOTHING if value is None else join((moment(value), text(f" ({distance(value, now.wall)})")))


def _past(value: datetime | Instant | None, now: Instant) -> Html:
    """A time that was."""
    if value is None:
        return NOTHING
    then = value if isinstance(value, Instant) else Instant(value)
    return join((moment(then.wall), text(f" ({ago(then, now)})")))


def _outdated(tracked: Tracked) -> Html:
    if not tracked.approval.outdated:
        return NOTHING
    return tag("span", text("it changed after we approved it, and would now be held"), class_="bad")


def _resources(tracked: Tracked, vm_name: str) -> Html:
    names = tracked.event.resources
    if names is None:
        return text("resources that can't be read")
    own = [name for name in names if vm_name and alike(name, vm_name)]
    others = [name for name in names if name not in own]
    shown = [text("this VM")] if own else []
    shown += [outside(name, limit=80) for name in others[:MAX_RESOURCES]]
    rest = len(others) - MAX_RESOURCES
    if rest > 0:
        shown.append(text(f"{rest} more"))
    return listed(shown, ", ") if shown else text("no resources")


def _closed(closed: list[Tracked]) -> Html:
    gone = [tracked for tracked in closed if tracked.closed_at is not None and tracked.outcome is not None]
    if not gone:
        return tag("p", text("No event of this VM has come and gone yet."), class_="soft")
    newest = gone[::-1][:MAX_CLOSED]  # they are kept in the order in which they ended, which no clock can change
    heads = ("Event", "Outcome", "Notice", "Approved by", "Started", "Lasted", "Interruption felt")
    return tag("div", table("The last events that are over, newest first", heads, map(_told, newest)), class_="panel")


def _told(tracked: Tracked) -> tuple[Html, ...]:
    story, event = account(tracked), tracked.event
    name = join((outside(event.event_type or "Event", limit=40), Html("<br>"), outside(event.event_id, "id soft")))
    outcome = OUTCOMES.get(story["outcome"], UNKNOWN)
    return (
        name,
        join((text(outcome), Html(" "), moment(tracked.closed_at or tracked.first_seen))),
        text(optional_span(story["notice_seconds"])),
        text(approved_by(story)),
        moment(tracked.started_at) if tracked.started_at else text("not seen"),
        text(span(story["started_seconds"]) if story["started_seconds"] is not None else "–"),
        text(felt(story)),
    )


def _outputs(status: Status, now: Instant) -> Html:
    heads = ("Destination", "State", "Waiting", "Oldest waiting", "Parked", "Last success")
    rows = [_destination(destination, now) for destination in status.destinations]
    shown = (
        table("Where the records go; parked ones will never be taken and wait for a person", heads, rows)
        if rows
        else tag("p", text("No destination is configured."))
    )
    outbox = status.outbox
    share = f"{size(outbox.bytes)} of {size(outbox.capacity)} used"
    if outbox.writable:
        state = text(share)
    else:
        state = tag("span", text("can't be written: nothing is approved until it can"), class_="bad")
    return tag("div", shown, terms((("Outbox", state),)), class_="panel")


def _destination(destination: DestinationStatus, now: Instant) -> tuple[Html, ...]:
    name = text(DESTINATION_NAMES.get(destination.name, destination.name))
    if not destination.configured:
        return (name, text("not configured"), *[text("–")] * 4)
    good = tag("span", text("works" if destination.last_success else "nothing sent yet"), class_="good")
    state = good if not destination.error else tag("span", text(f"fails: {destination.error}"), class_="bad")
    return (
        name,
        state,
        text(str(destination.records)),
        _past(destination.oldest, now) or text("–"),
        tag("span", text(str(destination.parked)), class_="bad") if destination.parked else text("0"),
        _past(destination.last_success, now) or text("never"),
    )


def _source(status: Status, now: Instant) -> Html:
    source, state = status.source, status.state
    up = tag("span", text("answers"), class_="good")
    down = tag("span", text(failure(source.failure) if source.failure else "not asked yet"), class_="bad")
    outage: Outage | None = state.outage
    since = source.failing or (outage.since if outage and not source.up else None)
    conflict = "the configured name is not the one that the metadata service gives; nothing is approved"
    rows = (
        ("Metadata service", up if source.up else down),
        ("Failing since", _past(since, now) if not source.up else NOTHING),
        ("Last good document", _past(source.success, now) or text("none by this process")),
        ("Polled every", text(span(status.poll_interval))),
        ("Document number", text(str(state.document.incarnation)) if state.document else NOTHING),
        ("Warming up", text("yes: Azure may still be enabling the service") if status.warming(now) else NOTHING),
        ("Approvals", text(MODES[status.mode])),
        ("Coordination", text(COORDINATIONS[status.coordination])),
        ("Name", tag("span", text(conflict), class_="bad") if status.identity_conflict else NOTHING),
        ("Agent started", _past(status.started, now)),
    )
    return tag("div", terms(rows), class_="panel")
