"""Complete life cycles: each recorded or counted beginning of an event has one end, and each end one beginning.

The document names neighbours, `Resources` change, and the VM's name becomes known late or changes with a restart. Agent
and outbox are the real ones, and `replay` must print the same.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.commands.replay.engine import ReplayEngine, ReplayOptions
from exporter.commands.replay.inputs import read_input, replay_plans
from exporter.core.policy import Presence
from exporter.core.records import Record, Vm, VmIdentity
from exporter.core.state import Interruption, InterruptionKind
from exporter.text.timeline import record_lines
from tests.support.agent_environment import FREEZE, NAME, REBOOT, VM, AgentEnvironment, document, event, policy, started
from tests.support.effort import LONG, MEMORY, Tried, examples

OTHER: Final = "web-2"
FIRST: Final = ("scheduled", "started")
CLOSING: Final = ("completed", "canceled", "ended")
SCHEMA: Final = json.loads(
    (Path(__file__).parents[2] / "exporter" / "schema" / "record.v1.json").read_text(encoding="utf-8")
)


def recorded(environment: AgentEnvironment, event_id: str = REBOOT) -> list[str]:
    """Return the published transitions of one event."""
    kinds = (*FIRST, "updated", *CLOSING)
    return [found.kind for found in environment.records(*kinds) if found.subject.casefold() == event_id.casefold()]


def counted(environment: AgentEnvironment, name: str) -> float:
    """Return the sum of a counter over all labels."""
    prefix = f"azure_scheduled_events_{name}{{"
    lines = environment.sink.render(openmetrics=False)[1].decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(prefix))


def counts(environment: AgentEnvironment) -> tuple[float, float, float]:
    return (
        counted(environment, "events_observed_total"),
        counted(environment, "events_started_total"),
        counted(environment, "events_closed_total"),
    )


def has_series(environment: AgentEnvironment) -> bool:
    return "azure_scheduled_events_event_info{" in environment.sink.render(openmetrics=False)[1].decode()


def only(environment: AgentEnvironment, kind: str) -> Record:
    (found,) = environment.records(kind)
    jsonschema.validate(json.loads(found.to_json()), SCHEMA)
    return found


# -- name known late


def test_neighbours_event_ends_when_the_name_becomes_known(tmp_path: Path) -> None:
    """It was recorded while it could have been the VM's own; its later changes are not recorded."""
    with AgentEnvironment(tmp_path, policy("dry-run"), vm=Vm()) as environment:
        environment.see(document(2, event(REBOOT, "Reboot", OTHER), event(FREEZE)), 3)
        assert recorded(environment) == recorded(environment, FREEZE) == ["scheduled"]
        environment.identity = VmIdentity(VM)
        environment.live(3)
        assert recorded(environment) == ["scheduled", "ended"]
        ended = only(environment, "ended")
        assert ended.data["unseen"] == ["not-this-vm"]
        assert ended.data["summary"]["unseen"] == ["not-this-vm"]
        assert ended.data["summary"]["outcome"] == "ended"
        assert ended.data["message"] == f"Reboot of {OTHER} does not name this VM"
        assert ended.severity == "INFO"
        environment.see(document(3, started(event(REBOOT, "Reboot", OTHER)), event(FREEZE)), 2)
        environment.see(document(4, event(FREEZE)), 2)
        assert recorded(environment) == ["scheduled", "ended"]
        assert recorded(environment, FREEZE) == ["scheduled"]
        environment.see(document(5), 2)
        assert recorded(environment, FREEZE) == ["scheduled", "canceled"]


def test_events_are_not_counted_while_the_name_is_unknown(tmp_path: Path) -> None:
    """They have no series either. An own event is then counted once at each end, with its first notice."""
    with AgentEnvironment(tmp_path, policy("dry-run"), vm=Vm()) as environment:
        environment.live(2)
        environment.see(document(2, event(REBOOT, "Reboot", OTHER), event(FREEZE, "Freeze")), 2)
        environment.see(document(3, event(REBOOT, "Reboot", OTHER), started(event(FREEZE, "Freeze"))), 2)
        assert counts(environment) == (0, 0, 0)
        assert not has_series(environment)
        assert environment.value("events", event_type="Freeze", event_status="Started") == 0
        environment.identity = VmIdentity(VM)
        environment.live(2)
        assert counts(environment) == (1, 1, 0)
        assert has_series(environment)
        assert environment.value("events", event_type="Freeze", event_status="Started") == 1
        assert environment.value("notice_seconds_count", event_type="Freeze") == 1
        environment.see(document(4), 2)
        assert counts(environment) == (1, 1, 1)


def test_event_before_the_name_is_known_is_recorded_and_not_counted(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path, policy("dry-run"), vm=Vm()) as environment:
        environment.see(document(2, event(REBOOT, "Reboot", OTHER)), 2)
        environment.see(document(3), 2)
        environment.identity = VmIdentity(VM)
        environment.live(2)
        assert recorded(environment) == ["scheduled", "canceled"]
        assert counts(environment) == (0, 0, 0)


def test_neighbours_event_ends_when_the_next_process_knows_the_name(tmp_path: Path) -> None:
    """With an unchanged document, and from the evidence in it."""
    with AgentEnvironment(tmp_path, policy("dry-run"), vm=Vm()) as environment:
        environment.see(document(2, event(REBOOT, "Reboot", OTHER)), 3)
        environment.identity = VmIdentity(VM)
        environment.restart(boot_id="boot-2")
        environment.live(3)
        assert recorded(environment) == ["scheduled", "ended"]
        ended = only(environment, "ended")
        assert ended.data["unseen"] == ["restart", "not-this-vm"]
        assert ended.data["evidence"] == {"rebooted": True}
        environment.restart()
        environment.see(document(3), 3)
        assert recorded(environment) == ["scheduled", "ended"]


def test_known_neighbours_event_stays_unrecorded_after_a_restart(tmp_path: Path) -> None:
    """While the name is unknown again. A new event may be the VM's own, and is recorded."""
    with AgentEnvironment(tmp_path, policy("dry-run")) as environment:
        environment.see(document(2, event(REBOOT, "Reboot", OTHER)), 3)
        environment.identity = VmIdentity()
        environment.restart()
        environment.see(document(3, event(REBOOT, "Reboot", OTHER, Description="b"), event(FREEZE, "Freeze", OTHER)), 3)
        assert (recorded(environment), recorded(environment, FREEZE)) == ([], ["scheduled"])
        environment.identity = VmIdentity(VM)
        environment.live(2)
        assert (recorded(environment), recorded(environment, FREEZE)) == ([], ["scheduled", "ended"])


# -- Resources change


def test_event_that_joins_counts_as_first_seen_then(tmp_path: Path) -> None:
    """So do its notice, its summary, and its approval; it is marked as joined."""
    with AgentEnvironment(tmp_path, policy(takeover_after=20.0)) as environment:
        environment.live(2)
        environment.see(document(2, event(REBOOT, "Reboot", OTHER)), 100)
        assert recorded(environment) == []
        environment.see(document(3, event(REBOOT, "Reboot", OTHER, NAME)), 15)
        joined = only(environment, "scheduled")
        assert joined.data["joined"] is True
        assert joined.data["seen_before"] == "unbroken"
        assert joined.data["notice_seconds"] == pytest.approx(900 - 102, abs=2)
        assert joined.data["message"].endswith("(it existed before, without this VM)")
        assert counts(environment) == (1, 0, 0)
        assert environment.value("notice_seconds_sum", event_type="Reboot") == pytest.approx(900 - 102, abs=2)
        assert environment.value("event_first_seen_timestamp_seconds", event_id=REBOOT) == joined.time.timestamp()
        assert environment.source.posts == []
        environment.live(10)
        assert len(environment.source.posts) == 1
        environment.see(document(4, started(event(REBOOT, "Reboot", OTHER, NAME))), 2)
        environment.see(document(5), 2)
        assert recorded(environment) == ["scheduled", "started", "completed"]
        assert counts(environment) == (1, 1, 1)
        summary = only(environment, "completed").data["summary"]
        assert summary["first_seen"] == json.loads(joined.to_json())["time"]


def test_event_that_joins_after_its_start_is_recorded_as_started(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path, policy("dry-run")) as environment:
        environment.see(document(2, started(event(REBOOT, "Reboot", OTHER))), 30)
        environment.see(document(3, started(event(REBOOT, "Reboot", OTHER, NAME))), 2)
        joined = only(environment, "started")
        assert joined.data["joined"] is True
        assert counts(environment) == (1, 1, 0)
        environment.see(document(4), 2)
        assert recorded(environment) == ["started", "completed"]
        assert only(environment, "completed").data["summary"]["started_duration_seconds"] == 2
        assert counts(environment) == (1, 1, 1)


@pytest.mark.parametrize("begun", [False, True])
def test_event_that_leaves_this_vm_ends(tmp_path: Path, begun: bool) -> None:
    """The record of the end has the reason. A return gets new ids."""
    mine, theirs = event(REBOOT, "Reboot", OTHER, NAME), event(REBOOT, "Reboot", OTHER)
    if begun:
        mine, theirs = started(mine), started(theirs)
    first = "started" if begun else "scheduled"
    with AgentEnvironment(tmp_path, policy("dry-run")) as environment:
        environment.see(document(2, mine), 2)
        environment.see(document(3, theirs), 2)
        ended = only(environment, "ended")
        assert ended.data["unseen"] == ["not-this-vm"]
        assert ended.data["changed"] == {"Resources": {"from": [OTHER, NAME], "to": [OTHER]}}
        assert ended.data["message"] == f"Reboot of {OTHER} no longer names this VM"
        assert any("no longer names this VM" in line for line in record_lines(ended))
        assert counts(environment) == (1, begun, 1)
        assert not has_series(environment)
        environment.see(document(4, {**theirs, "Description": "b"}), 2)
        environment.see(document(5, mine), 2)
        environment.see(document(6), 2)
        end = "completed" if begun else "canceled"
        assert recorded(environment) == [first, "ended", first, end]
        assert [record.data.get("joined") for record in environment.records(first)] == [None, True]
        ids = [record.id for record in environment.records()]
        assert len(ids) == len(set(ids))
        assert counts(environment) == (2, 2 * begun, 2)
        assert environment.value("events_closed_total", event_type="Reboot", outcome="ended") == 1


@pytest.mark.parametrize(("last", "end"), [([NAME], "canceled"), ([OTHER], "ended")])
def test_unreadable_resources_do_not_end_an_event(tmp_path: Path, last: list[str], end: str) -> None:
    """It keeps its ownership and its series."""
    with AgentEnvironment(tmp_path, policy("dry-run")) as environment:
        for number, resources in enumerate([[NAME], NAME, last], start=2):
            environment.see(document(number, event(Resources=resources)), 2)
            assert (environment.value("events_observed_total", event_type="Reboot", event_source="User")) == 1
            assert has_series(environment) == (resources in ([NAME], NAME))
        environment.see(document(5), 2)
        assert [kind for kind in recorded(environment) if kind != "updated"] == ["scheduled", end]
        assert counts(environment) == (1, 0, 1)


@pytest.mark.parametrize("began", [event(), started(event())], ids=["Scheduled", "Started"])
def test_last_known_type_and_resources_are_used(tmp_path: Path, began: dict[str, Any]) -> None:
    """Until the end, in a process that never read them itself."""
    unread = {**began, "EventType": None, "Resources": None}
    with AgentEnvironment(tmp_path, policy("dry-run")) as environment:
        environment.see(document(2, began), 2)
        environment.see(document(3, unread), 2)
        words = {"event_type": "Reboot", "event_source": "User", "resource_type": "VirtualMachine"}
        assert environment.value("event_info", event_id=REBOOT, **words) == 1
        updated = only(environment, "updated")
        assert (updated.data["affects_self"], updated.severity) == (True, "WARN")
        assert updated.data["event"] == unread
        if began["EventStatus"] == "Scheduled":
            decided = environment.records("approval.decided")[-1]
            assert decided.data["message"].startswith(f"Held Reboot {REBOOT}: ")
            labels = {"event_type": "Reboot", "decision": "hold", "reason": "malformed", "rule": ""}
            assert environment.value("approval_decisions_total", **labels) == 1
        environment.restart()
        environment.see(document(4, {**unread, "Description": "b"}), 2)
        environment.observed_interruptions.append(
            Interruption(InterruptionKind.CLOCK_STEP, 2.0, environment.clock.instant())
        )
        environment.see(document(5), 2)
        (closed,) = environment.records(*CLOSING)
        assert closed.data["message"].startswith("Reboot of this VM ")
        assert closed.data["affects_self"] is True
        assert closed.data["summary"]["documented_minimum_notice_seconds"] == 900
        assert closed.data["summary"]["interruptions_observed"] == (began["EventStatus"] == "Started")
        assert environment.value("events_closed_total", event_type="Reboot", outcome=closed.kind) == 1


def test_started_event_that_joins_again_is_still_started(tmp_path: Path) -> None:
    """It never left the document, which shows it as Scheduled now."""
    with AgentEnvironment(tmp_path, policy("dry-run")) as environment:
        for number, shown in enumerate(
            [event(), started(event()), started(event(REBOOT, "Reboot", OTHER)), event()], 2
        ):
            environment.see(document(number, shown), 2)
        assert environment.value("events", event_type="Reboot", event_status="Started") == 1
        since = environment.value("event_started_timestamp_seconds", event_id=REBOOT)
        assert since == environment.value("event_first_seen_timestamp_seconds", event_id=REBOOT)
        assert since is not None


def test_changed_name_after_a_restart_ends_and_joins_events(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path, policy("dry-run")) as environment:
        environment.see(document(2, event(REBOOT), event(FREEZE, "Freeze", OTHER)), 2)
        environment.identity = VmIdentity(Vm(name=OTHER, id=VM.id))
        environment.restart()
        environment.live(3)
        assert (recorded(environment), recorded(environment, FREEZE)) == (["scheduled", "ended"], ["scheduled"])
        assert only(environment, "ended").subject == REBOOT
        assert [record.data.get("joined") for record in environment.records("scheduled")] == [None, True]
        assert counts(environment) == (1, 0, 1)
        environment.see(document(3), 2)
        assert (recorded(environment), recorded(environment, FREEZE)) == (
            ["scheduled", "ended"],
            ["scheduled", "canceled"],
        )


def test_scope_all_records_all_events_and_counts_own_ones(tmp_path: Path) -> None:
    """A change of `Resources` is an update in the records; the counters begin and end with it."""
    with AgentEnvironment(tmp_path, policy("dry-run"), all_events=True) as environment:
        for number, names in enumerate([[OTHER], [OTHER, NAME], [OTHER]], start=2):
            environment.see(document(number, event(REBOOT, "Reboot", *names)), 2)
        assert counts(environment) == (1, 0, 1)
        environment.see(document(5), 2)
        assert recorded(environment) == ["scheduled", "updated", "updated", "canceled"]
        assert counts(environment) == (1, 0, 1)


def test_changed_scope_after_a_restart_ends_and_begins_neighbours_events(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path, policy("dry-run"), all_events=True) as environment:
        environment.see(document(2, event(REBOOT, "Reboot", OTHER)), 2)
        for all_events in (False, True):
            environment.options = replace(environment.options, all_events=all_events)
            environment.restart()
            environment.live(3)
        assert recorded(environment) == ["scheduled", "ended", "scheduled"]
        assert [record.data.get("joined") for record in environment.records("scheduled")] == [None, None]
        assert counts(environment) == (0, 0, 0)


@pytest.mark.parametrize("names", [[OTHER], [OTHER, NAME]])
def test_event_with_an_unknown_status_is_counted_at_its_end(tmp_path: Path, names: list[str]) -> None:
    """Only if it is the VM's own; the record of its beginning is the rejection."""
    with AgentEnvironment(tmp_path, policy("dry-run")) as environment:
        environment.see(document(2, event(REBOOT, "Reboot", *names, EventStatus="Paused")), 2)
        environment.see(document(3), 2)
        ours = NAME in names
        assert [found.kind for found in environment.records("event.rejected", *CLOSING)] == [
            "event.rejected",
            "ended",
        ] * ours
        assert counts(environment) == (ours, 0, ours)


def test_event_with_an_unknown_status_that_leaves_is_counted_at_both_ends(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path, policy("dry-run")) as environment:
        environment.see(document(2, event(REBOOT, "Reboot", NAME, EventStatus="Paused")), 2)
        assert counts(environment) == (0, 0, 0)
        environment.see(document(3, event(REBOOT, "Reboot", OTHER)), 2)
        assert counts(environment) == (1, 0, 1)
        assert [found.kind for found in environment.records("event.rejected", *CLOSING)] == ["event.rejected", "ended"]


def test_rejected_field_of_a_neighbours_event_is_recorded_when_it_joins(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path, policy("dry-run")) as environment:
        environment.see(document(2, event(REBOOT, "Reboot", OTHER, NotBefore="soon")), 2)
        assert environment.records("event.rejected") == []
        environment.see(document(3, event(REBOOT, "Reboot", NAME, NotBefore="soon")), 2)
        assert only(environment, "event.rejected").data["fault"] == "NotBefore"
        assert recorded(environment) == ["scheduled"]


# -- outbox found late


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("after", [OTHER, NAME])
def test_event_in_a_late_outbox_ends(tmp_path: Path, after: str, gone: bool) -> None:
    """Also if the process without the outbox would have recorded nothing."""
    folder, away = tmp_path / "state", tmp_path / "away"
    with AgentEnvironment(tmp_path, policy("dry-run"), path=folder / "outbox.db") as environment:
        environment.see(document(2, event(REBOOT, "Reboot", NAME, OTHER)), 2)
        folder.rename(away)
        folder.write_text("no folder")
        environment.restart()
        environment.see(document(3, event(REBOOT, "Reboot", after)), 3)
        if gone:
            environment.see(document(4), 3)
        folder.unlink()
        away.rename(folder)
        environment.live(3)
        environment.see(document(5), 3)
        kinds = [kind for kind in recorded(environment) if kind != "updated"]
        assert kinds[:1] == ["scheduled"]
        assert len(kinds) == 2
        assert kinds[1] in CLOSING


@pytest.mark.parametrize("then", ["Scheduled", "Started"])
@pytest.mark.parametrize("last", ["Scheduled", "Started"])
def test_event_in_a_late_outbox_does_not_begin_again(tmp_path: Path, last: str, then: str) -> None:
    """Whatever happened to it in this process or a previous one."""
    folder, away = tmp_path / "state", tmp_path / "away"
    both = {"Scheduled": event(), "Started": started(event())}
    with AgentEnvironment(tmp_path, policy("dry-run"), path=folder / "outbox.db") as environment:
        shown = [[both["Scheduled"]], [], [both["Started"]], [both[last]]]
        for number, items in enumerate(shown, start=2):
            environment.see(document(number, *items), 2)
        folder.rename(away)
        folder.write_text("no folder")
        environment.restart()
        environment.see(document(6, both[then]), 3)
        folder.unlink()
        away.rename(folder)
        environment.live(3)
        environment.see(document(7), 3)
        kinds = [kind for kind in recorded(environment) if kind != "updated"]
        assert kinds[:3] == ["scheduled", "canceled", "started"]
        assert kinds[3:-1] == (["started"] if (last, then) == ("Scheduled", "Started") else [])
        assert kinds[-1] in CLOSING


# -- replay prints what the agent recorded


def replayed(environment: AgentEnvironment, *, all_events: bool = False) -> list[Record]:
    assert environment.recording is not None
    environment.close_recording()
    (play,) = replay_plans([read_input(str(environment.recording), None)], 1.0, environment.clock.utc())
    options = ReplayOptions(
        environment.options.policy,
        1.0,
        lambda _, paths, __: dict.fromkeys(paths, Presence.ABSENT),
        all_events=all_events,
    )
    return list(ReplayEngine(play, options).run())


def facts(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    """Return what records contain about events, for a comparison with the replay.

    Without ids, which may derive from a random key, and without the gaps of a process and the one before it: the disk
    knows less of them than the recording.
    """
    kinds = (*FIRST, "updated", *CLOSING, "event.rejected", "approval.decided")
    found = []
    for record in records:
        if record.kind in kinds:
            data = {name: value for name, value in record.data.items() if name != "gap_seconds"}
            if "summary" in data:
                data["summary"] = {**data["summary"], "gaps": None, "gap_seconds": None}
            found.append((record.kind, record.subject, record.time, record.severity, data))
    return found


def outline(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    """Return kind, event, starter, and missed observations of each record."""
    return [
        (
            record.kind,
            record.subject,
            record.data.get("started_by"),
            record.data.get("unseen"),
            record.data.get("anomaly"),
        )
        for record in records
        if not record.kind.startswith("agent.")
    ]


@pytest.mark.parametrize("seconds", [7, 13])
@pytest.mark.parametrize("restarts", [False, True])
def test_replay_counts_an_invalid_document_as_a_failed_poll(tmp_path: Path, seconds: int, restarts: bool) -> None:
    """The event is `ended` in both, with the same text."""
    with AgentEnvironment(tmp_path, policy("dry-run"), recording=tmp_path / "rec") as environment:
        environment.see(document(1), 3)
        environment.see(document(2, event()), 5)
        if restarts:
            environment.source.answer = b"<html>"
            environment.restart(1)
        environment.see(b"<html>", seconds)
        environment.see(document(3), 5)
        lived = outline(environment.records())
        assert ("ended", REBOOT) in [entry[:2] for entry in lived]
        assert outline(replayed(environment)) == lived


@pytest.mark.parametrize("then", ["started", "gone", "stays"])
def test_replay_uses_the_time_at_which_a_post_was_sent(tmp_path: Path, then: str) -> None:
    """The event starts, or disappears, before the response arrives."""
    with AgentEnvironment(tmp_path, policy(), recording=tmp_path / "rec") as environment:
        environment.source.hangs = lambda _event_id: 2.5
        environment.see(document(1), 3)
        environment.see(document(2, event()), 1.5)
        environment.see(document(3, *{"started": [started(event())], "gone": [], "stays": [event()]}[then]), 5)
        environment.see(document(4), 5)
        lived = outline(environment.records())
        assert len(environment.source.posts) == 1
        assert outline(replayed(environment)) == lived
        (summary,) = (record.data["summary"] for record in replayed(environment) if record.kind in CLOSING)
        assert summary["started_by"] == ("this_vm" if then == "started" else None)


def test_replay_prints_the_anomalies_of_the_source(tmp_path: Path) -> None:
    """A lower number, and a changed document with the same number."""
    with AgentEnvironment(tmp_path, policy("dry-run"), recording=tmp_path / "rec") as environment:
        environment.see(document(7), 3)
        environment.see(document(3, event()), 3)
        environment.see(document(3, event(Description="other")), 3)
        lived = outline(environment.records())
        assert [entry[4] for entry in lived if entry[4]] == ["incarnation-restarted", "changed-without-incarnation"]
        assert outline(replayed(environment)) == lived


Happening = tuple[Any, ...]
IDS: Final = ("aaaa", "bbbb")
RESOURCES: Final[tuple[Any, ...]] = ([NAME], [OTHER], [OTHER, NAME], [NAME.upper()], NAME, ["web-3"])
HAPPENINGS: Final = st.one_of(
    st.tuples(
        st.just("shows"),
        st.sampled_from(IDS),
        st.sampled_from(RESOURCES),
        st.sampled_from(["Scheduled", "Scheduled", "Started", "Paused"]),
    ),
    st.tuples(st.just("names"), st.sampled_from(IDS), st.sampled_from(RESOURCES)),
    st.tuples(st.just("names"), st.sampled_from(IDS), st.sampled_from(RESOURCES)),
    st.tuples(st.just("moves"), st.sampled_from(IDS), st.sampled_from(["Started", "Started", "Scheduled", "Paused"])),
    st.tuples(st.just("goes"), st.sampled_from(IDS)),
    st.tuples(st.just("changes_its_id"), st.sampled_from(IDS)),
    st.tuples(st.just("is_called"), st.sampled_from(["", NAME, NAME, OTHER])),
    st.tuples(st.just("restarts"), st.sampled_from(["", NAME, OTHER])),
    st.tuples(st.just("polling_pauses"), st.sampled_from([7.0, 1000.0])),
)


class LifecycleRun:
    """One agent with a recording, and the test's own model of open events: recorded or counted, and not ended."""

    def __init__(self, folder: Path, name: str, all_events: bool) -> None:
        self.environment = AgentEnvironment(
            folder, policy("dry-run"), vm=called(name), all_events=all_events, recording=folder / "rec"
        )
        self.number = 1
        self.items: dict[str, dict[str, Any]] = {}
        self.resources: dict[str, list[str]] = {}
        """The last readable ones, by event."""
        self.observed = self.closed = 0.0

    def shows(self, event_id: str, resources: Any, status: str) -> None:
        given = event(event_id, Resources=resources, EventStatus=status)
        self.items[event_id] = started(given) if status == "Started" else given

    def names(self, event_id: str, resources: Any) -> None:
        if event_id in self.items:
            self.items[event_id] = {**self.items[event_id], "Resources": resources}

    def moves(self, event_id: str, status: str) -> None:
        if event_id in self.items:
            self.shows(event_id, self.items[event_id]["Resources"], status)

    def goes(self, event_id: str) -> None:
        self.items.pop(event_id, None)

    def changes_its_id(self, event_id: str) -> None:
        """Give the event another id, as simulators do when they start."""
        if event_id in self.items:
            self.items[f"{event_id}-2"] = {**started(self.items.pop(event_id)), "EventId": f"{event_id}-2"}

    def is_called(self, name: str) -> None:
        if not (self.environment.identity.vm.name and not name):  # the last response stays
            self.environment.identity = VmIdentity(called(name))

    def restarts(self, name: str) -> None:
        self._count()
        self.environment.identity = VmIdentity(called(name))
        self.environment.restart()

    def polling_pauses(self, seconds: float) -> None:
        self.environment.clock.go(seconds)

    def happens(self, name: str, *arguments: Any) -> None:
        before = dict(self.items)
        getattr(self, name)(*arguments)
        self.number += before != self.items
        readable = {key.casefold(): item["Resources"] for key, item in self.items.items()}
        self.resources = {
            key: names if isinstance(names, list) else self.resources[key]
            for key, names in readable.items()
            if isinstance(names, list) or key in self.resources
        }
        self.environment.see(document(self.number, *self.items.values()), 2)
        self.holds()

    def _count(self) -> None:
        """Add the counters of this process, which end with it."""
        self.observed += counted(self.environment, "events_observed_total")
        self.closed += counted(self.environment, "events_closed_total")

    def holds(self) -> None:
        """Check that open events by the records and by the counters are those of the document."""
        tracked = self.environment.agent.status.state.tracked
        name, everything = self.environment.identity.vm.name, self.environment.options.all_events
        recorded_open = self.open_by_the_records()
        assert recorded_open <= set(tracked)
        own = {key for key, names in self.resources.items() if name and name in map(str.lower, names)}
        for key in tracked:
            if everything or key in own:
                assert key in recorded_open
            elif name and key in self.resources:
                assert key not in recorded_open
        observed = self.observed + counted(self.environment, "events_observed_total")
        closed = self.closed + counted(self.environment, "events_closed_total")
        never_understood = {key for key, each in tracked.items() if each.phase.value == "unknown"}
        known = {key for key, each in tracked.items() if each.ownership == "ours"} - never_understood
        assert observed - closed == len(known)
        assert {each.tracked.key for each in self.environment.agent.status.named_events} == own
        if name:
            assert own - never_understood == known

    def open_by_the_records(self) -> set[str]:
        """Return the open events as a consumer sees them. An unknown status begins with its rejection."""
        found: dict[str, list[str]] = {}
        for record in self.environment.records(*FIRST, *CLOSING, "event.rejected"):
            life = found.setdefault(record.subject.casefold(), [])
            if record.kind in CLOSING:
                assert life, "an end without a beginning"
                life.clear()
            else:
                assert record.kind != "scheduled" or not {*FIRST} & {*life}, "two beginnings"
                assert not record.data.get("joined") or not {*FIRST} & {*life}, "two joins"
                life.append(record.kind)
        return {key for key, life in found.items() if life}


def called(name: str) -> Vm:
    return Vm(name=name, id=VM.id) if name else Vm()


@settings(max_examples=examples(60))
@given(
    st.sampled_from(["", NAME]),
    st.booleans(),
    st.lists(HAPPENINGS, min_size=4, max_size=30 if LONG else 14),
)
def test_every_life_cycle_is_complete_and_replay_agrees(name: str, everything: bool, scenario: list[Happening]) -> None:
    """With any sequence of Resources, names, and restarts."""
    Tried.example(steps=len(scenario))
    with tempfile.TemporaryDirectory(prefix="azse-lifecycle-", dir=MEMORY) as folder:
        lifecycle = LifecycleRun(Path(folder), name, everything)
        try:
            lifecycle.happens("polling_pauses", 0.0)
            for happening in scenario:
                lifecycle.happens(*happening)
            lifecycle.items = {}
            lifecycle.happens("polling_pauses", 0.0)
            assert not lifecycle.environment.agent.status.state.tracked
            expected = facts(lifecycle.environment.records())
            again = facts(replayed(lifecycle.environment, all_events=everything))
            assert [each[:3] for each in again] == [each[:3] for each in expected]
            assert again == expected
        finally:
            lifecycle.environment.__exit__()
