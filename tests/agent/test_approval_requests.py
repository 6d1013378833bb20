"""POSTs that hang, that are many, that come after a 200: what is sent, and that the polls go on."""

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


def test_a_post_leaves_after_the_commit_and_before_counters_and_log_lines(tmp_path: Path) -> None:
    """When it arrives the decision is on disk, and nothing was counted or logged about it yet."""
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


def test_a_document_was_read_at_one_moment_on_both_clocks(tmp_path: Path) -> None:
    """The last byte's, however long the commit of an answer takes that came before it; in the recording, whose readers
    go by the times, that answer is no later."""
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


def test_a_post_that_hangs_keeps_no_counter_or_log_line(tmp_path: Path) -> None:
    """While it is on its way, what led to it is counted and logged."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(1), 2)
        environment.source.hangs = lambda _event_id: 4.0
        environment.see(document(2, event()), 1)
        assert environment.source.hanging
        assert len(environment.said("approval.decided")) == 1
        assert environment.value("approval_requests_total") == 1
        assert environment.records("approval.accepted") == []


# -- once


@pytest.mark.parametrize("all_events", [False, True])
def test_an_id_that_was_approved_is_never_posted_again_however_crowded_the_document(
    tmp_path: Path, all_events: bool
) -> None:
    """141 events, with one answer without any of them, three times: one POST, also after a restart."""
    with AgentEnvironment(tmp_path, all_events=all_events) as environment:
        crowd = [event(), *neighbours(140)]
        for number in range(2, 10, 2):
            environment.see(document(number, *crowd), 3)
            environment.see(document(number + 1), 1)
        environment.restart()
        environment.see(document(20, *crowd), 12)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]


def test_ids_of_this_vm_are_remembered_beyond_their_histories(tmp_path: Path) -> None:
    """More own events than histories are kept, approved, gone, and back: none is POSTed twice."""
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


def test_an_event_that_was_started_is_not_approved_when_it_is_scheduled_again(tmp_path: Path) -> None:
    """Once Started there is nothing left to approve: in the same life, after it was away, and when it is forgotten."""
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
def test_an_answer_whose_number_went_down_is_not_acted_on(tmp_path: Path, down: int) -> None:
    """A lower number may come with events that are over: nothing is sent before the third document after it."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(7), 3)
        environment.see(document(7 - down, event()), 3)
        assert environment.source.posts == []
        assert environment.reasons() == ["source-reset"]
        environment.live(1)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]
        assert environment.reasons() == ["source-reset", None]


def test_one_stray_answer_with_a_lower_number_sends_nothing(tmp_path: Path) -> None:
    """It showed an event once, and the next answer knew nothing of it."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(7), 3)
        environment.see(document(3, event()), 1)
        assert environment.kinds()[-2:] == ["scheduled", "approval.decided"]
        environment.see(document(8), 20)
        assert environment.source.posts == []


def test_a_number_that_went_down_while_the_agent_was_away_is_noticed(tmp_path: Path) -> None:
    """The last number is on disk."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(7), 3)
        environment.restart(5)
        environment.see(document(2, event()), 2.5)
        assert environment.source.posts == []
        assert environment.reasons() == ["source-reset"]


# -- who we are


def test_a_configured_name_is_not_acted_on_before_azure_confirmed_it(tmp_path: Path) -> None:
    """A cloned configuration names another VM: until the metadata service has said who this is, nothing is sent."""
    with AgentEnvironment(tmp_path, vm=Vm(name=NAME)) as environment:
        environment.identity = VmIdentity(Vm(name=NAME), confirmed=False)
        environment.see(document(2, event()), 5)
        assert environment.source.posts == []
        assert environment.reasons() == ["identity-unknown"]
        environment.identity = VmIdentity(VM)
        environment.live(2)
        assert len(environment.source.posts) == 1


@pytest.mark.parametrize(("name", "resource"), [("vms-1", "vmſ-1"), ("kube", "\u212aube"), ("grosse", "große")])
def test_a_name_that_only_looks_alike_is_another_vm(tmp_path: Path, name: str, resource: str) -> None:
    """Unicode folds the long s, the Kelvin sign and the sharp s to plain letters; Azure does not."""
    with AgentEnvironment(tmp_path, vm=replace(VM, name=name)) as environment:
        environment.see(document(2, event(REBOOT, "Reboot", resource)), 5)
        assert environment.source.posts == []
        environment.see(document(3, event("second", "Reboot", name.upper())), 5)
        assert [event_id for _, event_id in environment.source.posts] == ["second"]


def test_ids_that_only_look_alike_are_two_events(tmp_path: Path) -> None:
    """Each has a history, a decision and an approval of its own."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event("event-s"), event("event-ſ")), 5)
        assert sorted(event_id for _, event_id in environment.source.posts) == ["event-s", "event-ſ"]
        assert environment.records("event.rejected") == []


# -- the last look


def test_a_hold_that_comes_while_a_post_hangs_is_seen_before_the_next(tmp_path: Path) -> None:
    """Two events are due; the hold file is made while the first POST hangs: the second is not sent until it is gone."""
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


def test_what_says_prepared_is_looked_at_once_more_before_the_post(tmp_path: Path) -> None:
    """It was taken back between the decision and the POST, while the disk took its time."""
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
def test_nothing_is_sent_on_a_field_that_only_an_earlier_document_had(tmp_path: Path, fields: dict[str, Any]) -> None:
    """It is prepared once the document can't be read, a restart comes in between: sent when it can be read again."""
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


def test_a_hold_file_whose_folder_is_missing_holds(tmp_path: Path) -> None:
    """An unmounted folder is no word that nothing holds; the gauge says so, and the log says what is there."""
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


def test_whether_it_is_held_is_known_while_the_source_is_down(tmp_path: Path) -> None:
    """The file is looked at whatever the metadata service does, and with approvals switched off."""
    hold = tmp_path / "hold"
    for mode in ("off", "enforce"):
        with AgentEnvironment(tmp_path / mode, policy(mode, hold_file=str(hold))) as environment:
            assert not held(environment)
            hold.touch()
            environment.see(TIMEOUT, 12)
            assert held(environment)
            hold.unlink()


# -- hanging


def test_posts_that_hang_leave_no_gap_in_the_polls(tmp_path: Path) -> None:
    """Eight events whose POSTs hang for five seconds each, for five minutes: a poll each second, no gap, no `ended`."""
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


def test_an_event_waits_for_no_other_events_hang(tmp_path: Path) -> None:
    """While eight POSTs hang, a ninth event is sent with the poll that shows it, and its answer is noted at once."""
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


def test_an_event_is_in_one_post_at_a_time(tmp_path: Path) -> None:
    """While its POST hangs no second one of the same event leaves, and the waits between two are kept."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.hangs = lambda _event_id: 4.9
        environment.see(document(2, event()), 4)
        assert len(environment.source.posts) == 1
        environment.live(20)
        assert len(environment.source.posts) == 1
        assert [record.kind for record in environment.records("approval.accepted")] == ["approval.accepted"]


def test_an_approval_that_is_answered_after_the_start_was_ours(tmp_path: Path) -> None:
    """Azure took it and began; its 200 came later. The closing record and the gauge know who let it start."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.hangs = lambda _event_id: 3.0
        environment.see(document(2, event()), 1.5)
        environment.see(document(3, started(event())), 4)
        environment.see(document(4), 2)
        (closed,) = environment.records("completed")
        assert closed.data["summary"]["started_by"] == "this_vm"


def test_an_answer_for_an_event_that_is_gone_is_noted(tmp_path: Path) -> None:
    """The event left the document while its POST was on its way: it is told as accepted, and never sent again."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.hangs = lambda _event_id: 3.0
        environment.see(document(2, event()), 1.5)
        environment.see(document(3), 5)
        assert [record.subject for record in environment.records("approval.accepted")] == [REBOOT]
        environment.see(document(4, event()), 20)
        assert len(environment.source.posts) == 1


def test_what_is_on_its_way_when_the_process_ends_stays_in_doubt(tmp_path: Path) -> None:
    """Nobody knows whether Azure took it: the next life waits, tries again, and does not say that nobody approved."""
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


def test_of_many_due_events_each_is_sent(tmp_path: Path) -> None:
    """Two hundred own events, answered at once: each once, all within one poll interval or two."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, *(event(name) for name in ids(200))), 3)
        assert sorted(event_id for _, event_id in environment.source.posts) == ids(200)


# -- a small outbox


def test_the_least_outbox_goes_on_approving_through_a_scale_sets_histories(tmp_path: Path) -> None:
    """A mebibyte, neighbours' events by the hundred with five hundred names each: what is over is forgotten in time."""
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


def test_histories_go_before_records_that_still_wait(tmp_path: Path) -> None:
    """At the bound of the outbox an undelivered record is only dropped once nothing is kept of events that are over."""
    with AgentEnvironment(tmp_path, capacity=1 << 20) as environment:
        for number in range(2, 400, 2):
            environment.see(document(number, event(f"own-{number}", Description="x" * 500)), 1)
            environment.see(document(number + 1), 1)
            if environment.value("destination_records_dropped_total", destination="otlp", reason="outbox-full"):
                break
        else:
            raise AssertionError("the outbox never filled")
        assert not environment.agent.status.state.closed
        assert len({event_id for _, event_id in environment.source.posts}) == number // 2


# -- what is remembered


def test_what_was_sent_is_remembered_for_thirty_days(tmp_path: Path) -> None:
    """An id that comes back after 29 days is not sent again; what is older is kept while there is space for it."""
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
def test_wrong_clock_makes_nothing_be_forgotten(
    tmp_path: Path, at_first: float, in_between: float, was_started: bool
) -> None:
    """The clock is a month wrong while events go, or was when the event was approved or seen Started."""
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


def test_what_could_not_be_remembered_is_not_sent(tmp_path: Path) -> None:
    """With no room for one more id, approvals are held: a second POST would be worse than none."""
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


def test_id_whose_start_could_not_be_remembered_is_not_approved(tmp_path: Path) -> None:
    """With no space for one more Started id, approvals are held, until the ids that are kept are 30 days old."""
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


def test_an_id_that_a_twin_showed_as_started_is_not_approved(tmp_path: Path) -> None:
    """Two objects of one id, one of them Started, in whichever order: it was seen Started, also once alone."""
    for number, twins in enumerate(([event(), started(event())], [started(event()), event()])):
        with AgentEnvironment(tmp_path / str(number)) as environment:
            environment.see(document(2, *twins), 3)
            environment.see(document(3, event()), 15)
            assert environment.source.posts == []
            assert environment.agent.status.state.process.decisions[REBOOT.lower()].reason.value == "not-scheduled"


def test_an_event_that_only_started_is_not_outdated(tmp_path: Path) -> None:
    """Approved, away for one answer, back as Started without NotBefore, as Azure writes it: nothing else changed."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()), 2)
        for number in range(3, 9, 2):
            environment.see(document(number), 1)
            environment.see(document(number + 1, started(event())), 2)
        assert environment.records("approval.outdated") == []
        assert environment.value("approvals_outdated_total") == 0


def test_what_is_outdated_is_told_once(tmp_path: Path) -> None:
    """An event that would be held now, and is away for one answer again and again."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()), 2)
        for number in range(3, 9, 2):
            environment.see(document(number, started(event(EventSource="Platform"))), 2)
            environment.see(document(number + 1), 1)
        assert len(environment.records("approval.outdated")) == 1


def test_a_200_counts_also_where_the_event_was_forgotten_meanwhile(tmp_path: Path) -> None:
    """The event goes while its POST is on its way, and its history with it: it is never sent again all the same."""
    with AgentEnvironment(tmp_path) as environment:
        environment.outbox.close()
        environment.options = replace(environment.options, event_memory_bytes=4096)  # one history is too many
        environment.start()
        environment.source.hangs = lambda _event_id: 3.0
        environment.see(document(2, event()), 1.5)
        environment.see(document(3), 5)
        assert not environment.agent.status.state.closed
        assert [record.data["attempt"] for record in environment.records("approval.accepted")] == [1]
        environment.source.hangs = None
        environment.see(document(4, event()), 20)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]


def test_memory_that_was_full_makes_room_when_what_it_holds_is_old(tmp_path: Path) -> None:
    """Held for want of room, the agent approves again after thirty days, though nothing was sent meanwhile."""
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


def test_a_change_while_the_post_was_on_its_way_is_outdated(tmp_path: Path) -> None:
    """What was approved is no longer what the rules would approve, and the 200 comes after that."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.hangs = lambda _event_id: 3.0
        environment.see(document(2, event()), 1.5)
        environment.see(document(3, event(EventSource="Platform")), 6)
        assert len(environment.records("approval.outdated")) == 1


def test_what_only_waited_for_its_turn_was_not_sent(tmp_path: Path) -> None:
    """A POST hangs, the next has its turn only later, and its event goes before: canceled, not in doubt."""
    with AgentEnvironment(tmp_path, poll_interval=0.125) as environment:
        environment.source.hangs = lambda _event_id: 4.0
        environment.see(document(2, event(), event("second"), event("third")), 0.13)
        environment.see(document(3, event()), 1)
        sent = {event_id for _, event_id in environment.source.posts}
        ends = {record.subject: record.kind for record in environment.records("canceled", "ended")}
        assert ends["third"] == "canceled"
        assert "third" not in sent


def test_a_post_without_a_thread_was_not_sent(tmp_path: Path) -> None:
    """A system that gives no thread: the loop goes on, the event is tried again, and nothing is in doubt."""
    with AgentEnvironment(tmp_path) as environment:
        environment.no_thread = True
        environment.see(document(2, event()), 3)
        assert environment.source.posts == []
        assert not environment.agent.status.state.tracked[REBOOT.lower()].approval.doubtful
        environment.no_thread = False
        environment.live(2)
        assert len(environment.source.posts) == 1
