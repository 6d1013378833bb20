"""Approval requests (POSTs): what is sent, at most once, and without delaying polls."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from exporter.core.memory import CLOSED_KEPT
from exporter.core.policy import Rule
from exporter.core.records import Vm, VmIdentity
from tests.support.agent_environment import (
    NAME,
    REBOOT,
    TIMEOUT,
    VM,
    AgentEnvironment,
    document,
    event,
    policy,
    started,
)


def ids(count: int, prefix: str = "event") -> list[str]:
    return [f"{prefix}-{number:04}" for number in range(count)]


def neighbours(count: int) -> list[dict[str, Any]]:
    return [event(name, "Freeze", f"web-{name}", EventSource="Platform") for name in ids(count, "near")]


def held(environment: AgentEnvironment) -> bool:
    return environment.agent.status.held


# -- commit, POST, publish


def test_post_is_sent_after_the_commit_and_before_counters_and_log_lines(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(1), 2)
        seen: list[tuple[list[str], list[str], float | None]] = []
        environment.source.asked = lambda: seen.append(
            (
                [record.kind for record in environment.records("approval.decided")],
                environment.said("approval.decided"),
                environment.value("approval_requests_total"),
            )
        )
        environment.see(document(2, event()), 1)
        assert seen == [(["approval.decided"], [], 0)]
        assert len(environment.said("approval.decided")) == 1
        assert environment.value("approval_requests_total") == 1


def test_read_time_of_a_document_is_consistent_on_both_clocks(tmp_path: Path) -> None:
    """The time is that of the last byte. In the recording, an earlier response to a POST has no later time."""
    with AgentEnvironment(tmp_path, recording=tmp_path / "rec") as environment:
        environment.see(document(1), 2)
        ahead = environment.clock.wall - environment.clock.mono
        environment.source.hangs = lambda _event_id: 2.0
        environment.see(document(2, event()), 1)
        environment.clock.go(2)
        environment.outbox.takes = lambda: environment.clock.go(0.02)
        environment.source.takes = 0.01
        environment.live(0)
        read = environment.agent.status.state.last_good
        assert read is not None
        assert read.wall.timestamp() - read.monotonic == pytest.approx(ahead, abs=1e-5)
        assert environment.kinds()[-1] == "approval.accepted"
    entries = [json.loads(line) for line in (tmp_path / "rec").read_text().splitlines()]
    times = [entry.get("at") or entry["read_at"] for entry in entries]
    assert times == sorted(times)
    assert any("status" in entry for entry in entries)


def test_hanging_post_delays_no_counter_or_log_line(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(1), 2)
        environment.source.hangs = lambda _event_id: 4.0
        environment.see(document(2, event()), 1)
        assert environment.source.hanging
        assert len(environment.said("approval.decided")) == 1
        assert environment.value("approval_requests_total") == 1
        assert environment.records("approval.accepted") == []


# -- at most one POST


@pytest.mark.parametrize("all_events", [False, True])
def test_approved_id_is_posted_once_in_a_large_document(tmp_path: Path, all_events: bool) -> None:
    """141 events disappear and come back three times, and once more after a restart."""
    with AgentEnvironment(tmp_path, all_events=all_events) as environment:
        crowd = [event(), *neighbours(140)]
        for number in range(2, 10, 2):
            environment.see(document(number, *crowd), 3)
            environment.see(document(number + 1), 1)
        environment.restart()
        environment.see(document(20, *crowd), 12)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]


def test_approved_ids_are_remembered_longer_than_closed_events(tmp_path: Path) -> None:
    """More own events than closed events are kept: none is posted twice when it comes back."""
    with AgentEnvironment(tmp_path) as environment:
        wanted = ids(CLOSED_KEPT + 60)
        for number in range(2, 10, 2):
            environment.see(document(number, *(event(name) for name in wanted)), 3)
            environment.see(document(number + 1), 1)
        assert sorted(event_id for _, event_id in environment.source.posts) == wanted
        assert len(environment.agent.status.state.closed) <= CLOSED_KEPT
        environment.restart()
        environment.see(document(20, *(event(name) for name in wanted)), 15)
        assert len(environment.source.posts) == len(wanted)
        assert environment.records("approval.accepted", destination="otlp") != []


def test_started_event_is_not_approved_when_it_is_scheduled_again(tmp_path: Path) -> None:
    """In the same process, after a gap, and after the closed event was dropped."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, started(event())), 2)
        environment.see(document(3, event()), 15)
        environment.see(document(4), 2)
        environment.see(document(5, event()), 15)
        environment.see(document(6), 2)
        environment.see(document(7, *(event(name, EventSource="Platform") for name in ids(CLOSED_KEPT + 9))), 2)
        environment.see(document(8), 2)
        assert REBOOT.lower() not in environment.agent.status.state.closed
        environment.restart()
        environment.see(document(9, event()), 15)
        assert environment.source.posts == []
        assert environment.agent.status.state.process.decisions[REBOOT.lower()].reason.value == "not-scheduled"


@pytest.mark.parametrize("down", [1, 5])
def test_lower_incarnation_postpones_approvals(tmp_path: Path, down: int) -> None:
    """A lower number can come with ended events: nothing is sent before the third document after it."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(7), 3)
        environment.see(document(7 - down, event()), 3)
        assert environment.source.posts == []
        assert environment.reasons() == ["source-reset"]
        environment.live(1)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]
        assert environment.reasons() == ["source-reset", None]


def test_single_document_with_a_lower_incarnation_causes_no_post(tmp_path: Path) -> None:
    """Only that document contains the event."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(7), 3)
        environment.see(document(3, event()), 1)
        assert environment.kinds()[-2:] == ["scheduled", "approval.decided"]
        environment.see(document(8), 20)
        assert environment.source.posts == []


def test_lower_incarnation_after_a_restart_postpones_approvals(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(7), 3)
        environment.restart(5)
        environment.see(document(2, event()), 2.5)
        assert environment.source.posts == []
        assert environment.reasons() == ["source-reset"]


# -- identity of the VM


def test_unconfirmed_configured_name_holds_approvals(tmp_path: Path) -> None:
    """A cloned configuration contains the name of another VM."""
    with AgentEnvironment(tmp_path, vm=Vm(name=NAME)) as environment:
        environment.identity = VmIdentity(Vm(name=NAME), confirmed=False)
        environment.see(document(2, event()), 5)
        assert environment.source.posts == []
        assert environment.reasons() == ["identity-unknown"]
        environment.identity = VmIdentity(VM)
        environment.live(2)
        assert len(environment.source.posts) == 1


@pytest.mark.parametrize(("name", "resource"), [("vms-1", "vmſ-1"), ("kube", "\u212aube"), ("grosse", "große")])
def test_lookalike_name_is_another_vm(tmp_path: Path, name: str, resource: str) -> None:
    """Unicode case folding maps the long s, the Kelvin sign, and the sharp s to plain letters; Azure doesn't."""
    with AgentEnvironment(tmp_path, vm=replace(VM, name=name)) as environment:
        environment.see(document(2, event(REBOOT, "Reboot", resource)), 5)
        assert environment.source.posts == []
        environment.see(document(3, event("second", "Reboot", name.upper())), 5)
        assert [event_id for _, event_id in environment.source.posts] == ["second"]


def test_lookalike_ids_are_two_events(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event("event-s"), event("event-ſ")), 5)
        assert sorted(event_id for _, event_id in environment.source.posts) == ["event-s", "event-ſ"]
        assert environment.records("event.rejected") == []


# -- last check before a POST


def test_hold_file_created_during_a_hanging_post_stops_the_next_post(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    with AgentEnvironment(tmp_path, policy(hold_file=str(hold))) as environment:
        environment.source.hangs = lambda event_id: 4.5 if event_id == REBOOT else 0.0
        environment.source.asked = hold.touch
        environment.see(document(2, event(), event("second")), 15)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]
        assert environment.value("approval_requests_total") == 1
        environment.source.asked = lambda: None
        hold.unlink()
        environment.live(3)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT, "second"]
        attempts = {record.subject: record.data["attempt"] for record in environment.records("approval.accepted")}
        assert attempts == {REBOOT: 1, "second": 1}


def test_ready_file_is_checked_again_before_the_post(tmp_path: Path) -> None:
    """It is removed after the decision, during a slow commit."""
    ready = tmp_path / "ready"
    ready.touch()
    rules = (Rule("mine", ("Reboot",), require_file=str(ready)),)
    with AgentEnvironment(tmp_path, policy(rules=rules)) as environment:
        environment.outbox.takes = lambda: ready.unlink(missing_ok=True)
        environment.see(document(2, event()), 8)
        assert environment.source.posts == []
        assert len(environment.said("approval.postponed")) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"EventType": None},
        {"EventType": ""},
        {"Resources": NAME},
        {"Resources": [NAME] * 10_001},
        {"NotBefore": "soon"},
        {"EventStatus": None},
        {"EventSource": 5},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_approval_needs_every_field_in_the_current_document(tmp_path: Path, fields: dict[str, Any]) -> None:
    """The ready file appears while a field is unreadable: the POST is sent when the field is readable again."""
    ready = tmp_path / f"ready-{REBOOT}"
    rules = (Rule("mine", ("Reboot",), ("User",), require_file=str(tmp_path / "ready-{event_id}")),)
    with AgentEnvironment(tmp_path, policy(rules=rules)) as environment:
        environment.see(document(2, event()), 3)
        assert environment.reasons() == ["not-prepared"]
        environment.see(document(3, {**event(), **fields}), 3)
        ready.touch()
        environment.live(20)
        environment.restart()
        environment.live(20)
        assert environment.source.posts == []
        environment.see(document(4, event()), 3)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]


def test_missing_folder_of_the_hold_file_holds_approvals(tmp_path: Path) -> None:
    """The gauge shows the hold, and the log line contains the file's presence."""
    hold = tmp_path / "mnt" / "hold"
    with AgentEnvironment(tmp_path, policy(hold_file=str(hold))) as environment:
        environment.see(document(2, event()), 5)
        assert environment.source.posts == []
        assert environment.reasons() == ["held"]
        assert held(environment)
        assert ["found=unknown" in line for line in environment.said("approval.hold_file")] == [True]
        hold.parent.mkdir()
        environment.live(2)
        assert len(environment.source.posts) == 1
        assert not held(environment)
        assert ["found=absent" in line for line in environment.said("approval.hold_file")] == [False, True]


def test_hold_file_is_checked_while_the_metadata_service_is_down(tmp_path: Path) -> None:
    """Also in mode `off`."""
    hold = tmp_path / "hold"
    for mode in ("off", "enforce"):
        with AgentEnvironment(tmp_path / mode, policy(mode, hold_file=str(hold))) as environment:
            assert not held(environment)
            hold.touch()
            environment.see(TIMEOUT, 12)
            assert held(environment)
            hold.unlink()


# -- POSTs that hang


def test_hanging_posts_do_not_delay_polls(tmp_path: Path) -> None:
    """Eight POSTs hang for 5 s each, for five minutes: one poll per second, and no event `ended`."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.hangs = lambda _event_id: 5.0
        stuck = [event(name) for name in ids(8)]
        near = event("near", "Freeze", "web-2")
        environment.see(document(2, *stuck, near), 300)
        assert max(later - earlier for earlier, later in pairwise(environment.source.polls)) < 1.5
        assert max(tracked.gaps for tracked in environment.agent.status.state.tracked.values()) == 0
        assert len(environment.source.posts) >= 8 * 5
        environment.source.hangs = None
        environment.see(document(3, *stuck), 70)
        assert environment.value("document_events") == 8


def test_hanging_posts_do_not_delay_the_post_of_another_event(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.source.hangs = lambda event_id: 5.0 if event_id.startswith("event") else 0.0
        stuck = [event(name) for name in ids(8)]
        environment.see(document(2, *stuck), 37)
        seen = environment.clock.wall
        environment.see(document(3, *stuck, event(REBOOT)), 5)
        sent = [at for at, event_id in environment.source.posts if event_id == REBOOT]
        assert len(sent) == 1
        assert sent[0] - seen < 3
        assert [record.subject for record in environment.records("approval.accepted")] == [REBOOT]


def test_event_has_one_post_in_flight_at_most(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.source.hangs = lambda _event_id: 4.9
        environment.see(document(2, event()), 4)
        assert len(environment.source.posts) == 1
        environment.live(20)
        assert len(environment.source.posts) == 1
        assert [record.kind for record in environment.records("approval.accepted")] == ["approval.accepted"]


def test_approval_answered_after_the_start_counts_as_started_by_this_vm(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.source.hangs = lambda _event_id: 3.0
        environment.see(document(2, event()), 1.5)
        environment.see(document(3, started(event())), 4)
        environment.see(document(4), 2)
        (closed,) = environment.records("completed")
        assert closed.data["summary"]["started_by"] == "this_vm"


def test_response_for_a_removed_event_is_recorded(tmp_path: Path) -> None:
    """The event disappears while its POST is in flight: the approval is recorded and never sent again."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.hangs = lambda _event_id: 3.0
        environment.see(document(2, event()), 1.5)
        environment.see(document(3), 5)
        assert [record.subject for record in environment.records("approval.accepted")] == [REBOOT]
        environment.see(document(4, event()), 20)
        assert len(environment.source.posts) == 1


def test_post_in_flight_at_the_end_of_the_process_stays_in_doubt(tmp_path: Path) -> None:
    """The result is unknown: the next process waits before it tries again."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.hangs = lambda _event_id: 4.0
        environment.see(document(2, event()), 1)
        assert len(environment.source.posts) == 1
        environment.restart(1)
        environment.source.hangs = None
        environment.live(4)
        assert len(environment.source.posts) == 1
        environment.live(3)
        assert len(environment.source.posts) == 2


def test_many_due_events_are_each_sent_once(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, *(event(name) for name in ids(200))), 3)
        assert sorted(event_id for _, event_id in environment.source.posts) == ids(200)


# -- a small outbox


def test_smallest_outbox_keeps_approving_with_many_neighbours_events(tmp_path: Path) -> None:
    """1 MiB, and hundreds of neighbours' events with 500 names each: closed events are dropped in time."""
    with AgentEnvironment(tmp_path, all_events=True, capacity=1 << 20) as environment:
        for number in range(2, 24, 2):
            near = [
                event(f"{number}-{name}", "Freeze", *(f"web-{vm}" for vm in range(500)), EventSource="Platform")
                for name in ids(20)
            ]
            environment.see(document(number, *near, event(f"own-{number}")), 2)
            environment.see(document(number + 1), 1)
        assert len({event_id for _, event_id in environment.source.posts}) == 11
        assert environment.writable
        assert "outbox-unwritable" not in environment.reasons()


def test_closed_events_are_dropped_before_undelivered_records(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path, capacity=1 << 20) as environment:
        for number in range(2, 400, 2):
            environment.see(document(number, event(f"own-{number}", Description="x" * 500)), 1)
            environment.see(document(number + 1), 1)
            if environment.value("destination_records_dropped_total", destination="otlp", reason="outbox-full"):
                break
        else:
            raise AssertionError("the outbox is not full")
        assert not environment.agent.status.state.closed
        assert len({event_id for _, event_id in environment.source.posts}) == number // 2


# -- memory of approved ids


def test_approved_ids_are_remembered_for_thirty_days(tmp_path: Path) -> None:
    """Older ids are kept while there is space."""
    with AgentEnvironment(tmp_path) as environment:
        for days in (0, 29):
            environment.clock.go(days * 86_400.0)
            environment.see(document(2 + 6 * days, event(NotBefore="Fri, 01 Jan 2100 00:00:00 GMT")), 15)
            environment.see(document(3 + 6 * days), 2)
            crowd = [event(name) for name in ids(CLOSED_KEPT + 1, f"crowd-{days}")]
            environment.see(document(4 + 6 * days, *crowd), 2)
            environment.see(document(5 + 6 * days), 2)
        assert [event_id for _, event_id in environment.source.posts].count(REBOOT) == 1
        kept = len(environment.agent.status.state.sent)
        environment.clock.go(31 * 86_400.0)
        environment.see(document(999, *(event(name) for name in ids(9, "later"))), 2)
        environment.see(document(1000), 2)
        assert len(environment.agent.status.state.sent) > kept


MONTH = 31 * 86_400.0
LATE = {"NotBefore": "Fri, 01 Jan 2100 00:00:00 GMT"}


@pytest.mark.parametrize("was_started", [False, True])
@pytest.mark.parametrize(("at_first", "in_between"), [(0.0, MONTH), (-MONTH, 0.0)], ids=["ahead", "behind"])
def test_wrong_clock_does_not_expire_remembered_ids(
    tmp_path: Path, at_first: float, in_between: float, was_started: bool
) -> None:
    """The clock is a month wrong when events are removed, or when the event was approved or started."""
    with AgentEnvironment(tmp_path) as environment:
        right = environment.clock.wall
        environment.clock.wall = right + at_first
        environment.see(document(2, started(event()) if was_started else event(**LATE)), 3)
        environment.see(document(3), 2)
        sent = len(environment.source.posts)
        environment.see(document(4, *(event(name, EventSource="Platform") for name in ids(CLOSED_KEPT + 1))), 2)
        environment.see(document(5), 2)
        assert REBOOT.lower() not in environment.agent.status.state.closed
        environment.clock.wall = right + in_between
        shown = [event("other", **LATE), started(event("another"))]
        for number, name in enumerate(("one", "two"), 6):
            more = [event(f"{name}-{other}", EventSource="Platform") for other in ids(CLOSED_KEPT)]
            environment.see(document(2 * number, *shown, *more), 3)
            environment.see(document(2 * number + 1), 2)
        environment.clock.wall = right
        environment.restart()
        environment.see(document(20, event(**LATE)), 15)
        assert [event_id for _, event_id in environment.source.posts].count(REBOOT) == sent == (0 if was_started else 1)


def test_approval_is_held_without_space_for_its_id(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.outbox.close()
        environment.options = replace(environment.options, event_memory_bytes=8192)
        environment.start()
        for number in range(2, 60, 2):
            environment.see(document(number, event(f"own-{number}")), 1)
            environment.see(document(number + 1), 1)
        sent = [event_id for _, event_id in environment.source.posts]
        assert 5 < len(sent) < 20
        assert environment.reasons()[-1] == "outbox-unwritable"
        for number in range(60, 120, 2):
            environment.see(document(number, *(event(name) for name in sent)), 1)
            environment.see(document(number + 1), 1)
        assert [event_id for _, event_id in environment.source.posts] == sent


def test_approval_is_held_without_space_for_started_ids(tmp_path: Path) -> None:
    """Until the stored ids are 30 days old."""
    with AgentEnvironment(tmp_path) as environment:
        environment.outbox.close()
        environment.options = replace(environment.options, event_memory_bytes=32_768)
        environment.start()
        environment.see(document(2, started(event())), 1)
        for number in range(3, 13, 2):
            environment.see(document(number), 1)
            environment.see(document(number + 1, *(started(event(name)) for name in ids(30, f"other-{number}"))), 1)
        assert REBOOT.lower() not in {
            **environment.agent.status.state.started_ids,
            **environment.agent.status.state.closed,
        }
        environment.see(document(13), 1)
        environment.see(document(14, event()), 15)
        assert environment.source.posts == []
        assert environment.reasons()[-1] == "outbox-unwritable"
        environment.see(document(15), 1)
        environment.clock.go(MONTH)
        environment.see(document(16, event("new", **LATE)), 15)
        assert [event_id for _, event_id in environment.source.posts] == ["new"]


def test_id_with_a_started_duplicate_is_not_approved(tmp_path: Path) -> None:
    """In any order of the two objects, and also if the Scheduled one is later the only one."""
    for number, twins in enumerate(([event(), started(event())], [started(event()), event()])):
        with AgentEnvironment(tmp_path / str(number)) as environment:
            environment.see(document(2, *twins), 3)
            environment.see(document(3, event()), 15)
            assert environment.source.posts == []
            assert environment.agent.status.state.process.decisions[REBOOT.lower()].reason.value == "not-scheduled"


def test_start_of_an_approved_event_does_not_make_its_approval_outdated(tmp_path: Path) -> None:
    """Azure removes NotBefore from a Started event; nothing else changes."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()), 2)
        for number in range(3, 9, 2):
            environment.see(document(number), 1)
            environment.see(document(number + 1, started(event())), 2)
        assert environment.records("approval.outdated") == []
        assert environment.value("approvals_outdated_total") == 0


def test_outdated_approval_is_recorded_once(tmp_path: Path) -> None:
    """The event disappears and comes back several times."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()), 2)
        for number in range(3, 9, 2):
            environment.see(document(number, started(event(EventSource="Platform"))), 2)
            environment.see(document(number + 1), 1)
        assert len(environment.records("approval.outdated")) == 1


def test_response_200_counts_after_the_closed_event_was_dropped(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.outbox.close()
        environment.options = replace(environment.options, event_memory_bytes=4096)  # too small for one closed event
        environment.start()
        environment.source.hangs = lambda _event_id: 3.0
        environment.see(document(2, event()), 1.5)
        environment.see(document(3), 5)
        assert not environment.agent.status.state.closed
        assert [record.data["attempt"] for record in environment.records("approval.accepted")] == [1]
        environment.source.hangs = None
        environment.see(document(4, event()), 20)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]


def test_full_memory_of_ids_has_space_again_after_thirty_days(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.outbox.close()
        environment.options = replace(environment.options, event_memory_bytes=8192)
        environment.start()
        for number in range(2, 80, 2):
            environment.see(document(number, event(f"own-{number}")), 1)
            environment.see(document(number + 1), 1)
        assert environment.reasons()[-1] == "outbox-unwritable"
        sent = len(environment.source.posts)
        environment.clock.go(31 * 86_400.0)
        for number in range(80, 90, 2):
            environment.see(document(number, event(f"own-{number}", NotBefore="Fri, 01 Jan 2100 00:00:00 GMT")), 2)
            environment.see(document(number + 1), 1)
        assert len(environment.source.posts) > sent


def test_change_during_the_post_makes_the_approval_outdated(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.source.hangs = lambda _event_id: 3.0
        environment.see(document(2, event()), 1.5)
        environment.see(document(3, event(EventSource="Platform")), 6)
        assert len(environment.records("approval.outdated")) == 1


def test_queued_approval_was_not_sent(tmp_path: Path) -> None:
    """Its event disappears behind a hanging POST: it is `canceled`, not `ended`."""
    with AgentEnvironment(tmp_path, poll_interval=0.125) as environment:
        environment.source.hangs = lambda _event_id: 4.0
        environment.see(document(2, event(), event("second"), event("third")), 0.13)
        environment.see(document(3, event()), 1)
        sent = {event_id for _, event_id in environment.source.posts}
        ends = {record.subject: record.kind for record in environment.records("canceled", "ended")}
        assert ends["third"] == "canceled"
        assert "third" not in sent


def test_post_without_a_thread_is_tried_again(tmp_path: Path) -> None:
    """The system can't start a thread: the loop continues, and the event isn't in doubt."""
    with AgentEnvironment(tmp_path) as environment:
        environment.no_thread = True
        environment.see(document(2, event()), 3)
        assert environment.source.posts == []
        assert not environment.agent.status.state.tracked[REBOOT.lower()].approval.doubtful
        environment.no_thread = False
        environment.live(2)
        assert len(environment.source.posts) == 1
