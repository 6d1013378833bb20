"""The gauges of `/metrics` follow from the last valid document, whatever happens: compared with `gauges_reading`."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.core.records import Record, VmIdentity
from exporter.metadata.errors import MetadataError
from tests.support.agent_environment import DESTINATIONS, NAME, VM, AgentEnvironment, document, event, policy, started
from tests.support.effort import LONG, MEMORY, Tried, examples
from tests.support.gauges_environment import EVENTS, TIMES, Watched, families
from tests.support.gauges_reading import Series, Sheet, key_of, put

ONCE: Final = ("event_decision", "event_started_by")
OUTBOX: Final = ("outbox_records", "outbox_oldest_record_timestamp_seconds", "destination_records_parked")
INTERVAL: Final = 60.0
"""Seconds by which the saved time of the last valid document may lag."""


class Shown:
    """One agent, the events that happen to it and its source, and a scrape after each."""

    def __init__(self, folder: Path) -> None:
        self.disk, self.away = folder / "disk", folder / "away"
        self.environment = AgentEnvironment(
            folder, policy(coordination="any"), path=self.disk / "outbox.db", source=Watched
        )
        assert isinstance(self.environment.source, Watched)
        self.source = self.environment.source
        self.source.sheet = self.sheet = Sheet(TIMES)
        self.source.environment = self.environment
        self.items: list[Any] = []

    @property
    def vm_name(self) -> str:
        """Return the VM's own name as the agent knows it now."""
        return self.environment.identity.vm.name

    # -- actions

    def floods(self, flood: tuple[int, tuple[str, ...], int], items: list[Any], step: int) -> None:
        """Add this many events of these VMs, every seventh of them Started, after others."""
        many, names, begun = flood
        crowd = [event(f"f-{number}", "Reboot", *names) for number in range(many)]
        self.shows(items + [started(item) if number % 7 < begun else item for number, item in enumerate(crowd)], step)

    def shows(self, items: list[Any], step: int) -> None:
        """Set the elements of the next document; its incarnation rises by `step`."""
        self.items = items
        self.source.number += step
        self.source.answer = document(self.source.number, *items)

    def moves(self, which: int, fields: dict[str, Any], step: int) -> None:
        """Change a field of one event."""
        items = list(self.items)
        if items and isinstance(items[which % len(items)], dict):
            items[which % len(items)] = {**items[which % len(items)], **fields}
        self.shows(items, step)

    def loses(self, which: int, step: int) -> None:
        """Remove one of the elements."""
        items = list(self.items)
        if items:
            del items[which % len(items)]
        self.shows(items, step)

    def source_is(self, broken: str) -> None:
        """Let the source return documents (empty), time out, or return a page."""
        self.source.broken = broken

    def posts_are(self, status: int) -> None:
        """Answer every POST with this status."""
        self.source.refusal = None if status == 200 else MetadataError("server-error", status_code=status)

    def knows_itself(self, known: bool) -> None:
        """Make the VM's own name known, or unknown."""
        self.environment.identity = VmIdentity(VM) if known else VmIdentity()

    def clock_is_set(self, seconds: float) -> None:
        """Set the wall clock."""
        self.environment.clock.wall += seconds

    def polling_pauses(self, seconds: float) -> None:
        """Pause polling for this many seconds."""
        self.environment.clock.go(seconds)

    def freezes(self, seconds: float) -> None:
        """Stop the monotonic clock, and set the wall clock to the right time."""
        self.environment.clock.wall += seconds

    def disk_is(self, there: bool) -> None:
        """Make the folder of the outbox available or unavailable."""
        if there == self.disk.is_dir():
            return
        if there:
            self.disk.unlink()
            shutil.move(self.away, self.disk)
        else:
            shutil.move(self.disk, self.away)
            self.disk.write_text("no folder")

    def restarts(self, seconds: float) -> None:
        """Restart right after a pass whose state is on disk: nothing is lost."""
        if self.disk.is_dir() and self.environment.writable:
            self.sheet.restarts()
            self.environment.restart(seconds)
            self.sheet.begins(self.environment.clock.wall, self.environment.clock.mono)
            self.agrees()

    def is_delivered(self, name: str, parked: bool) -> None:
        """Send or park the oldest record of a destination."""
        for queued in self.environment.outbox.next(name, 1):
            if parked:
                self.environment.outbox.park(name, queued.seq, "never this one")
            else:
                self.environment.outbox.delivered(name, [queued.seq])

    # -- checks

    def lives(self, seconds: float) -> None:
        """Run one pass and check; then run for this many seconds and check again."""
        self.environment.agent.tick()
        self.agrees()
        self.environment.clock.go(0.5)
        if seconds:
            self.environment.live(seconds)
            self.agrees()

    def agrees(self) -> None:
        """Compare the page with the sheet."""
        series = self.scrape()
        shown = {dict(labels)["event_id"] for name, labels in series if name == "event_info"}
        self.sheet.fair(self.vm_name, shown)
        expected = self.sheet.says(self.vm_name, self.environment.clock.mono, shown)
        assert {key: value for key, value in series.items() if key[0] in EVENTS} == pytest.approx(expected, abs=1e-3)
        self.records_each_once(series, shown)
        self.reports_its_age(series)
        if self.disk.is_dir():
            waits = {key: value for key, value in series.items() if key[0] in OUTBOX}
            assert waits == pytest.approx(self.queues(), abs=1e-3)

    def records_each_once(self, series: Series, shown: set[str]) -> None:
        """Check that each event has one decision per process that read a document, one start, and one outcome."""
        for name, expected in (("event_decision", shown), ("event_started_by", self.sheet.started(shown))):
            ids = [dict(labels)["event_id"] for family, labels in series if family == name]
            assert len(ids) == len(set(ids))
            assert set(ids) == expected or (name == "event_decision" and not self.sheet.decided)
        outcomes = [dict(labels) for family, labels in series if family == "event_began_timestamp_seconds"]
        assert len({labels["event_id"] for labels in outcomes}) == len(outcomes)
        assert {labels["event_id"] for labels in outcomes if not labels["outcome"]} == shown

    def scrape(self) -> Series:
        """Return the compared families as a scraper reads them."""
        others = ("event_began_timestamp_seconds", "last_successful_poll_timestamp_seconds")
        return families(self.environment.sink, (*EVENTS, *ONCE, *OUTBOX, *others))

    def reports_its_age(self, series: Series) -> None:
        """Check the read time of the shown document: never later than the real one."""
        shown = series.get(("last_successful_poll_timestamp_seconds", ()))
        good = self.sheet.last_good
        if self.sheet.last_poll is None or good is None:
            assert shown is None or good is not None
        else:
            assert shown is not None
            assert good - INTERVAL - 1 <= shown <= good + 1e-3

    def queues(self) -> Series:
        """Read the content of the outbox from its file."""
        series: Series = {}
        with closing(sqlite3.connect(self.disk / "outbox.db")) as db:
            rows = db.execute("SELECT destination, parked, body FROM queue JOIN records USING (seq) ORDER BY seq")
            queue = [(name, parked, Record.from_json(body)) for name, parked, body in rows]
        for name in DESTINATIONS:
            waiting = [record for destination, parked, record in queue if (destination, parked) == (name, None)]
            put(series, "outbox_records", len(waiting), destination=name)
            oldest = waiting[0].time.timestamp() if waiting else None
            put(series, "outbox_oldest_record_timestamp_seconds", oldest, destination=name)
            parked = sum(1 for destination, why, _ in queue if destination == name and why is not None)
            put(series, "destination_records_parked", parked, destination=name)
        return series


IDS: Final = st.sampled_from(["a", "A", "b-1", "é", 'quo"te\\', "x" * 100, "x" * 101, "", None, 5])
NAMES: Final = st.sampled_from([[NAME], [NAME.upper(), "web-2"], ["web-2"], [], "web-1", [NAME, 5], None])
FIELDS: Final = st.fixed_dictionaries(
    {},
    optional={
        "EventType": st.sampled_from(["Reboot", "Freeze", "Preempt", "reboot", "Nap", None, 5]),
        "EventStatus": st.sampled_from(["Scheduled", "Started", "Started", "Paused", None]),
        "EventSource": st.sampled_from(["User", "Platform", "Moon", None]),
        "ResourceType": st.sampled_from(["VirtualMachine", "Cluster", 1]),
        "Resources": NAMES,
        "NotBefore": st.sampled_from([*TIMES, "", "soon", None]),
        "DurationInSeconds": st.sampled_from([-1, 0, 5, 8.0, True, "5", None]),
        "Description": st.sampled_from(["One.", "Other."]),
    },
)


def item_of(event_id: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Return an element of the document. tests/core/test_hidden_events.py covers elements without a usable id."""
    item = {**event("z"), "EventId": event_id, **fields}
    return item if key_of(item) else item | {"Resources": ["nobody"]}


ITEMS: Final = st.builds(item_of, IDS, FIELDS)
FLOODS: Final = st.tuples(st.sampled_from([49, 51, 60]), st.sampled_from([(NAME,), ("web-2",)]), st.integers(0, 7))
SOME: Final = st.lists(st.one_of(ITEMS, ITEMS, ITEMS, st.sampled_from([None, "text", {}])), max_size=4)
STEPS: Final = st.sampled_from([1, 1, 1, 2, 0, -3])
WHICH: Final = st.integers(0, 70)


def happening(name: str, *arguments: Any) -> st.SearchStrategy[tuple[str, tuple[Any, ...]]]:
    """Return a strategy for one call of a method of `Shown`."""
    return st.tuples(st.just(name), st.tuples(*arguments))


HAPPENINGS: Final = st.one_of(
    happening("shows", SOME, STEPS),
    happening("shows", st.lists(ITEMS, min_size=1, max_size=3), STEPS),
    happening("floods", FLOODS, SOME, STEPS),
    happening("moves", WHICH, FIELDS, STEPS),
    happening("moves", WHICH, FIELDS, STEPS),
    happening("loses", WHICH, STEPS),
    happening("source_is", st.sampled_from(["", "", "timeout", "html"])),
    happening("posts_are", st.sampled_from([200, 503])),
    happening("knows_itself", st.booleans()),
    happening("clock_is_set", st.sampled_from([-3600.0, -2.0, 2.0, 3600.0])),
    happening("freezes", st.sampled_from([1.0, 9.0])),
    happening("polling_pauses", st.sampled_from([6.0, 400.0])),
    happening("disk_is", st.booleans()),
    happening("restarts", st.sampled_from([0.25, 30.0, 4000.0])),
    happening("is_delivered", st.sampled_from(DESTINATIONS), st.booleans()),
)
SCENARIOS: Final = st.lists(
    st.tuples(HAPPENINGS, st.sampled_from([0.0, 0.0, 1.0, 12.0])), min_size=12, max_size=40 if LONG else 24
)


@settings(max_examples=examples(20))
@given(SCENARIOS)
def test_gauges_match_the_last_valid_document(
    scenario: list[tuple[tuple[str, tuple[Any, ...]], float]],
) -> None:
    """After every step, failed polls, restarts, and full crowds included: exactly those series and values."""
    Tried.example(steps=len(scenario))
    with tempfile.TemporaryDirectory(prefix="azse-gauges-", dir=MEMORY) as folder:
        shown = Shown(Path(folder))
        shown.shows([], 0)
        try:
            shown.agrees()
            for (name, arguments), seconds in scenario:
                getattr(shown, name)(*arguments)
                shown.lives(seconds)
        finally:
            shown.environment.outbox.close()
