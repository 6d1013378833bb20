"""From inputs to plans: which entries belong together, and times for documents that have none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from exporter.commands.replay.entries import (
    ACCEPTED,
    EARLIEST,
    Entry,
    Failed,
    Posted,
    Reading,
    Steady,
    Unreadable,
)
from exporter.commands.replay.inputs import Input
from exporter.core.document import MINIMUM_NOTICE, Document, DocumentError, parse_document
from exporter.core.lifecycle import phase_of
from exporter.core.state import Phase
from exporter.simulator.metadata.platform import Approval, Platform
from exporter.simulator.metadata.scenario import Scenario
from exporter.text.format import counted

LEAST_NOTICE: Final = 30.0  # of a Spot VM's eviction, the shortest of all [Event scheduling]


class ReplayPlan(Struct, frozen=True):
    """Entries that belong together. `vm_name` is the scenario's own VM; `notes` are assumptions, for a person."""

    entries: tuple[Entry, ...]
    title: str = ""
    vm_name: str = ""
    notes: tuple[str, ...] = ()
    scenario: Scenario | None = None


def replay_plans(inputs: Sequence[Input], poll_interval: float, now: datetime) -> list[ReplayPlan]:
    """Recordings and documents as one plan, each scenario as one of its own; every reading has a time."""
    recorded = [item for item in inputs if item.scenario is None]
    if all(_first_time(item) for item in recorded if item.entries):  # an empty one was begun, and no more
        # The files of one recording are numbered from the newest to the oldest. Several may begin with the same time.
        recorded.sort(key=lambda item: (_last_time(item) or now, _first_time(item) or now))
    entries = [entry for item in recorded for entry in item.entries]
    made = [_timed(entries, timedelta(seconds=poll_interval), now)] if entries else []
    return made + [scenario_plan(item.scenario, poll_interval) for item in inputs if item.scenario is not None]


def _first_time(item: Input) -> datetime | None:
    return next(filter(None, map(_time_of, item.entries)), None)


def _last_time(item: Input) -> datetime | None:
    return next(filter(None, map(_time_of, reversed(item.entries))), None)


def _time_of(entry: Entry) -> datetime | None:
    return None if isinstance(entry, Unreadable) else entry.at


def _timed(entries: list[Entry], interval: timedelta, now: datetime) -> ReplayPlan:
    """The entries, with a time for those that have none: one poll interval after the entry before them."""
    untimed = [entry for entry in entries if isinstance(entry, Reading) and entry.at is None]
    last: datetime | None = None
    timed: list[Entry] = []
    for entry in entries:
        made = entry
        if isinstance(entry, Reading) and entry.at is None:
            made = replace(entry, at=last + interval if last else _assumed_start(untimed, interval, now))
        timed.append(made)
        last = last if isinstance(made, Unreadable) else made.at
    notes = (_assumption(timed, untimed),) if untimed else ()
    return ReplayPlan(tuple(timed), notes=notes)


def _assumption(timed: list[Entry], untimed: list[Reading]) -> str:
    first = next((entry.at for entry in timed if isinstance(entry, Reading)), None)
    when = f"{first:%Y-%m-%d %H:%M:%SZ}" if first else "now"
    return (
        f"{counted(len(untimed), 'document')} without a time: assumed to have been read one poll "
        f"interval apart, the first at {when}"
    )


def _assumed_start(readings: Sequence[Reading], interval: timedelta, now: datetime) -> datetime:
    """When the first document was read: so that the last is read now, or as early as Azure would have announced the
    first start, if that has passed."""
    latest = now - interval * (len(readings) - 1)
    announced = [
        event.not_before - timedelta(seconds=MINIMUM_NOTICE.get(event.event_type or "", LEAST_NOTICE))
        for document in (_document(reading.body) for reading in readings)
        for event in (document.events if document else ())
        if event.not_before is not None and event.not_before.year >= EARLIEST and phase_of(event) is Phase.SCHEDULED
    ]
    return min([latest, *announced])


def _document(body: bytes) -> Document | None:
    try:
        return parse_document(body)
    except DocumentError:
        return None


def scenario_plan(scenario: Scenario, poll_interval: float, approvals: Sequence[Approval] = ()) -> ReplayPlan:
    """The scenario as the agent would read it, with these approvals as the agent would have sent them."""
    platform = Platform(scenario, scenario.start)
    timeline, interval = platform.timeline(approvals), timedelta(seconds=poll_interval)
    entries: list[Entry] = []
    silent = False
    for change in timeline:
        if entries and not silent:
            entries.append(Steady(change.at - interval))
        if change.silent and not silent:
            entries.append(Failed(change.at, "timeout"))
        silent = change.silent
        if not silent:
            body = json.dumps(change.document()).encode()
            entries.append(Reading(change.at, body, f"scenario {scenario.name}"))
    end = platform.end(timeline)
    if not silent and end > timeline[-1].at:
        entries.append(Steady(end))
    for approval in approvals:
        entries += [Steady(approval.at), Posted(approval.at, approval.event_id, ACCEPTED)]
    entries.sort(key=lambda entry: _time_of(entry) or platform.start)  # stable: what was read comes before the POST
    note = "the simulated Azure takes the approvals that the rules would send" if approvals else "nobody approves"
    title = f"scenario {scenario.name}: {scenario.description}"
    return ReplayPlan(tuple(entries), title, scenario.vms[0].name, (f"a story: {note}",), scenario)
