"""`replay` of an agent's recording yields the agent's records: the same functions, with the same observations."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.commands.replay.engine import ReplayEngine, ReplayOptions
from exporter.commands.replay.inputs import read_input, replay_plans
from exporter.core.policy import DEFAULT_RULES, Coordination, Mode, Policy, Presence, Rule
from exporter.core.records import Record, Vm, VmIdentity, unknown_tags
from exporter.core.state import Interruption, InterruptionKind
from exporter.metadata.errors import MetadataError
from exporter.recorder.recorder import RecordingFiles
from tests.support.agent_environment import NAME, VM, AgentEnvironment, document, event, started
from tests.support.approval_case import hours
from tests.support.effort import LONG, MEMORY, Tried, examples

OTHER: Final = "web-2"
TAGS: Final = ("owner", "Environment")
POLL_SECONDS: Final = 0.97
"""No limit of the policy is a multiple of it, so that rounding doesn't matter."""
IDS: Final = ("aaaa", "bbbb", "cccc")
RESOURCES: Final[tuple[Any, ...]] = ([NAME], [NAME], [OTHER], [NAME, OTHER], [OTHER, NAME], NAME)
POSTS: Final = {
    "taken": None,
    "refused": MetadataError("status-400", "no", status_code=400),
    "unanswered": MetadataError("timeout", "no answer"),
}
RULES: Final = (
    (Rule("minute", ("Reboot", "Freeze"), hours=hours("14:14-14:15"), settle=5.0), *DEFAULT_RULES),
    (Rule("far", ("Reboot", "Freeze"), hours=hours("20:00-18:15", timezone="Asia/Kathmandu"), max_resources=1),),
)
"""The scenarios begin at 14:13:20 UTC, twenty seconds after 19:58 in Kathmandu."""
NO_DOCUMENTS: Final = (b'{"error": "busy"}', b'{"error": "still busy"}', b'{"Events": []}', b"{")
STEPS: Final = st.one_of(
    st.tuples(
        st.just("shows"),
        st.sampled_from(IDS),
        st.sampled_from(RESOURCES),
        st.sampled_from(["Reboot", "Freeze"]),
        st.sampled_from(["Scheduled", "Scheduled", "Started", "Paused"]),
    ),
    st.tuples(st.just("moves"), st.sampled_from(IDS), st.sampled_from(["Started", "Scheduled", "Paused"])),
    st.tuples(st.just("goes"), st.sampled_from(IDS)),
    st.tuples(st.just("renumbers"), st.sampled_from([-3, 0, 2])),
    st.tuples(st.just("is_called"), st.sampled_from([NAME, NAME, OTHER])),
    st.tuples(st.just("is_tagged"), st.sampled_from(["", "web"]), st.sampled_from(["", "test"])),
    st.tuples(st.just("answers_posts"), st.sampled_from(list(POSTS))),
    st.tuples(st.just("fails"), st.sampled_from([1.0, 4.0, 13.0, 80_000.0])),
    st.tuples(st.just("shows_a_page"), st.sampled_from([1.0, 13.0])),
    st.tuples(st.just("shows_no_document"), st.sampled_from(NO_DOCUMENTS), st.sampled_from([1.0, 7.0])),
    st.tuples(st.just("stands_still"), st.sampled_from(list(InterruptionKind)), st.sampled_from([0.4, 3.0])),
    st.tuples(st.just("has_just_stood_still"), st.sampled_from(list(InterruptionKind)), st.sampled_from([0.4, 3.0])),
    st.tuples(st.just("restarts"), st.booleans(), st.sampled_from(["boot-1", "boot-2"])),
    st.tuples(st.just("crashes_while_failing"), st.sampled_from([0.5, 4.0, 13.0]), st.sampled_from([1.0, 9.0])),
    st.tuples(st.just("doubts_its_name"), st.booleans(), st.booleans()),
    st.tuples(st.just("waits"), st.sampled_from([1.0, 7.0, 40.0, 70.0])),
    st.tuples(st.just("is_set_to_hold"), st.booleans()),
    st.tuples(st.just("prepares"), st.sampled_from(IDS), st.booleans()),
    st.tuples(st.just("restarts_with"), st.integers(0, 9)),
    st.tuples(st.just("fills_its_disk"), st.booleans()),
)


def policies(folder: Path) -> list[Policy]:
    """Return the default policy and others with files, times, and `when_quiet`."""
    asking = (
        Rule("prepared", ("Reboot",), require_file=str(folder / "ready-{event_id}")),
        Rule("settled", ("Freeze",), settle=6.0, when_quiet=True),
    )
    hold = str(folder / "hold")
    return [
        Policy(Mode.ENFORCE),
        Policy(Mode.DRY_RUN),
        Policy(Mode.ENFORCE, rules=asking),
        Policy(Mode.ENFORCE, Coordination.LEADER, 20.0, hold, (*asking, *DEFAULT_RULES)),
        Policy(Mode.DRY_RUN, Coordination.ANY, hold_file=hold, rules=asking[:1]),
        Policy(Mode.OFF, Coordination.SINGLE, hold_file=hold),
        *(Policy(mode, rules=rules) for mode in (Mode.ENFORCE, Mode.DRY_RUN) for rules in RULES),
    ]


class Life:
    """One agent with its recording, and the document of its source."""

    def __init__(self, folder: Path, policy: Policy, name: str) -> None:
        vm = Vm(name=name, id=VM.id, tags=unknown_tags(TAGS)) if name else Vm(tags=unknown_tags(TAGS))
        self.environment = AgentEnvironment(
            folder, policy, vm=vm, poll_interval=POLL_SECONDS, recording=folder / "recording"
        )
        self.folder = folder
        self.number = 1
        self.items: dict[str, dict[str, Any]] = {}

    def shows(self, event_id: str, resources: Any, kind: str, status: str) -> None:
        given = event(event_id, kind, Resources=resources, DurationInSeconds=5)
        self.items[event_id] = started(given) if status == "Started" else {**given, "EventStatus": status}

    def moves(self, event_id: str, status: str) -> None:
        if event_id in self.items:
            item = self.items[event_id]
            self.shows(event_id, item["Resources"], item["EventType"], status)

    def goes(self, event_id: str) -> None:
        self.items.pop(event_id, None)

    def renumbers(self, step: int) -> None:
        self.number = max(1, self.number + step)

    def is_called(self, name: str) -> None:
        self.environment.identity = VmIdentity(Vm(name=name, id=VM.id, tags=self.environment.identity.vm.tags))

    def is_tagged(self, *tags: str) -> None:
        """Set or change its tags."""
        self.environment.identity = replace(
            self.environment.identity, vm=replace(self.environment.identity.vm, tags=(*zip(TAGS, tags, strict=True),))
        )

    def answers_posts(self, how: str) -> None:
        self.environment.source.refusal = POSTS[how]

    def fails(self, seconds: float) -> None:
        self.environment.source.answer = MetadataError("timeout", "no answer")
        if seconds < 100:
            self.environment.live(seconds)
            return
        self.environment.live(11.0)
        self.environment.clock.go(seconds)
        self.environment.live(2.0)

    def shows_a_page(self, seconds: float) -> None:
        self.environment.see(b"<html>", seconds)

    def shows_no_document(self, body: bytes, seconds: float) -> None:
        self.environment.see(body, seconds)

    def stands_still(self, kind: InterruptionKind, seconds: float) -> None:
        if kind is InterruptionKind.CLOCK_STEP:
            self.environment.clock.wall += seconds
        else:
            self.environment.clock.go(seconds)
        self.environment.observed_interruptions.append(Interruption(kind, seconds, self.environment.clock.instant()))

    def has_just_stood_still(self, kind: InterruptionKind, seconds: float) -> None:
        """Add an interruption that is noticed with the next document."""
        if kind is InterruptionKind.CLOCK_STEP:
            self.environment.clock.wall += seconds
        else:
            self.environment.clock.go(seconds)
        self.environment.ending.append((kind, seconds))

    def restarts(self, in_good_order: bool, boot_id: str) -> None:
        if in_good_order:
            self.environment.stop()
        self.environment.restart(boot_id=boot_id)

    def crashes_while_failing(self, seconds: float, down: float) -> None:
        self.environment.source.answer = MetadataError("timeout", "no answer")
        self.environment.live(seconds)
        self.environment.restart(down)

    def doubts_its_name(self, conflict: bool, confirmed: bool) -> None:
        self.environment.identity = VmIdentity(self.environment.identity.vm, conflict, confirmed)

    def is_set_to_hold(self, hold: bool) -> None:
        self.touches("hold", hold)

    def prepares(self, event_id: str, ready: bool) -> None:
        self.touches(f"ready-{event_id}", ready)

    def touches(self, name: str, there: bool) -> None:
        if there:
            (self.folder / name).touch()
        else:
            (self.folder / name).unlink(missing_ok=True)

    def restarts_with(self, number: int) -> None:
        self.environment.options = replace(self.environment.options, policy=policies(self.folder)[number])
        self.restarts(True, "boot-1")

    def fills_its_disk(self, full: bool) -> None:
        self.environment.disk_is_full = full

    def waits(self, seconds: float) -> None:
        self.environment.live(seconds)

    def step(self, name: str, *arguments: Any) -> None:
        before = dict(self.items)
        getattr(self, name)(*arguments)
        self.number += before != self.items
        self.environment.see(document(self.number, *self.items.values()), 2)

    def recorded(self) -> list[Path]:
        """Return the recording as one file."""
        self.environment.close_recording()
        return [self.folder / "recording"]

    def rotated(self, max_bytes: int = 3000) -> list[Path]:
        """Return the same lines in many small files, as with a small size limit."""
        folder = self.folder / f"rotated-{max_bytes}"
        files = RecordingFiles(folder / "recording", max_bytes, 500)
        for text in (self.folder / "recording").read_bytes().splitlines():
            if text:
                line = json.loads(text)
                files.write(line, line.pop("body", "").encode())
        files.close()
        return [*folder.iterdir()]

    def replayed(self, paths: Iterable[Path]) -> list[Record]:
        """Return the records of a replay with the recorded policies only."""
        given = [read_input(str(path), None) for path in paths]
        (plan,) = replay_plans(given, POLL_SECONDS, self.environment.clock.utc())
        options = ReplayOptions(Policy(Mode.OFF, rules=()), POLL_SECONDS, as_found, use_recorded_policy=True)
        return list(ReplayEngine(plan, options).run())


def as_found(_: Policy, paths: Iterable[str], found: Mapping[str, Presence]) -> dict[str, Presence]:
    """Return the recorded presence of files; unknown for others."""
    return {path: found.get(path, Presence.UNKNOWN) for path in paths}


def compared(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    """Return kind, subject, severity, and content of each record, in order.

    Omitted are ids, which depend on a birth that isn't recorded; errors of unanswered POSTs, of which only the reason
    is recorded; and durations over polling gaps, which differ by up to a minute between disk and recording.
    """
    found = []
    for record in records:
        spans = ("gap_seconds", "absent_seconds")
        data = {name: value for name, value in record.data.items() if name not in (*spans, "error", "message")}
        if "summary" in data:
            data["summary"] = {**data["summary"], "gaps": None, "gap_seconds": None}
        found.append((record.kind, record.subject, record.severity, data))
    return found


@settings(max_examples=examples(60))
@given(
    st.sampled_from([NAME, NAME, ""]),
    st.sampled_from([0, 0, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9]),
    st.lists(STEPS, min_size=3, max_size=30 if LONG else 14),
)
def test_replay_of_a_recording_gives_the_records_of_the_agent(
    name: str, number: int, steps: list[tuple[Any, ...]]
) -> None:
    """Records and decisions agree for random events, VMs, POSTs, files, and restarts, with the recorded policies."""
    Tried.example(steps=len(steps))
    with tempfile.TemporaryDirectory(prefix="azse-replay-", dir=MEMORY) as folder:
        life = Life(Path(folder), policies(Path(folder))[number], name)
        try:
            life.step("waits", 1.0)
            for step in steps:
                life.step(*step)
            life.step("fills_its_disk", False)  # records that are only in memory can't be compared
            life.environment.stop()
            recorded = compared(life.environment.records())
            assert compared(life.replayed(life.recorded())) == recorded
            assert compared(life.replayed(life.rotated())) == recorded
        finally:
            life.environment.__exit__()


FULL_DISK: Final = ("fills_its_disk", True)
FREE_DISK: Final = ("fills_its_disk", False)
SHOWS: Final = ("shows", "aaaa", [NAME], "Reboot", "Scheduled")
CRASHES: Final = ("restarts", False, "boot-2")


@pytest.mark.parametrize(
    ("steps", "reasons"),
    [
        ([FULL_DISK, SHOWS, ("waits", 7.0), FREE_DISK], ["outbox-unwritable", None]),
        (
            [SHOWS, FULL_DISK, ("shows", "bbbb", [NAME], "Freeze", "Scheduled"), FREE_DISK],
            [None, "outbox-unwritable", None],
        ),
        ([FULL_DISK, SHOWS, CRASHES, ("waits", 7.0), FREE_DISK], ["outbox-unwritable", None]),
        ([FULL_DISK, SHOWS, FREE_DISK, CRASHES], ["outbox-unwritable", None]),
        ([SHOWS, FULL_DISK, ("fails", 13.0), CRASHES, FREE_DISK], [None]),
        ([FULL_DISK, SHOWS, ("goes", "aaaa"), FREE_DISK], ["outbox-unwritable"]),
    ],
)
def test_replay_holds_events_while_the_outbox_is_unwritable(
    tmp_path: Path, steps: list[tuple[Any, ...]], reasons: list[str | None]
) -> None:
    """It also loses records that a crashed agent had only in memory: with one file, and with many."""
    life = Life(tmp_path, Policy(Mode.ENFORCE), NAME)
    try:
        for step in [("waits", 1.0), *steps, ("waits", 3.0)]:
            life.step(*step)
        life.environment.stop()
        recorded = life.environment.records()
        assert [
            record.data["decision"]["reason"] for record in recorded if record.kind == "approval.decided"
        ] == reasons
        assert compared(life.replayed(life.recorded())) == compared(recorded)
        rotated = [life.rotated(size) for size in (1500, 1700, 2100, 2500)]
        for paths in rotated:
            assert compared(life.replayed(paths)) == compared(recorded)
            for path in paths:
                life.replayed([path])
    finally:
        life.environment.__exit__()


def test_single_file_of_a_full_disk_holds_events(tmp_path: Path) -> None:
    """Each file begins with the state of the outbox."""
    lines = [
        {"at": "2026-03-02T09:00:00Z", "vm": {"name": NAME}},
        {"at": "2026-03-02T09:00:00Z", "outbox": "unwritable"},
        {"read_at": "2026-03-02T09:00:00Z", "body": document(1, event("aaaa")).decode()},
        {"read_at": "2026-03-02T09:00:09Z", "same": 9},
    ]
    path = tmp_path / "recording.1"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (plan,) = replay_plans([read_input(str(path), None)], 1.0, datetime(2026, 3, 2, 10, tzinfo=UTC))
    engine = ReplayEngine(plan, ReplayOptions(Policy(Mode.ENFORCE), 1.0, as_found, use_recorded_policy=True))
    list(engine.run())
    (moments,) = engine.result.decisions.values()
    assert [moment.explanation.decision.reason.value for moment in moments] == ["outbox-unwritable"]
