"""Decisions and approvals of a running agent: what it holds, what it sends, and when."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from exporter.core.memory import CLOSED_KEPT
from exporter.core.policy import Coordination, Policy, Reason, Rule
from exporter.core.records import Vm, VmIdentity
from exporter.metadata.errors import MetadataError
from tests.support.agent_environment import (
    FREEZE,
    NAME,
    REBOOT,
    START,
    TIMEOUT,
    VM,
    AgentEnvironment,
    apart,
    document,
    event,
    policy,
    started,
)
from tests.support.approval_case import hours

USER = Rule("user", ("Reboot",), ("User",))


def ruled(**more: Any) -> tuple[Rule, ...]:
    return (Rule("mine", ("Reboot",), **more),)


# -- holding


HELD: dict[Reason, tuple[Policy, dict[str, Any]]] = {
    Reason.OFF: (policy(mode="off"), event()),
    Reason.NOT_THIS_VM: (policy(), event(REBOOT, "Reboot", "web-2")),
    Reason.MALFORMED: (policy(), event(NotBefore="soon")),
    Reason.UNKNOWN_TYPE: (policy(), event(REBOOT, "Teleport")),
    Reason.NO_RULE: (policy(), event(EventSource="Platform")),
    Reason.SEVERAL_RESOURCES: (policy(coordination=Coordination.SINGLE), event(REBOOT, "Reboot", NAME, "web-2")),
    Reason.NOT_LEADER: (policy(), event(REBOOT, "Reboot", "web-0", NAME)),
    Reason.SETTLING: (policy(rules=ruled(settle=3600.0)), event()),
    Reason.NOT_PREPARED: (policy(rules=ruled(require_file="/nowhere/{event_id}")), event()),
    Reason.TOO_MANY_RESOURCES: (policy(rules=ruled(max_resources=1)), event(REBOOT, "Reboot", NAME, "web-2")),
    Reason.OUT_OF_HOURS: (policy(rules=ruled(hours=hours("14:14-14:13"))), event()),
    Reason.HELD: (policy(hold_file="/proc"), event()),
    Reason.DRY_RUN: (policy(mode="dry-run"), event()),
}


@pytest.mark.parametrize("reason", HELD, ids=str)
def test_hold_reason_is_recorded_once_and_counted(tmp_path: Path, reason: Reason) -> None:
    """Nothing is sent."""
    recorded, given = HELD[reason]
    with AgentEnvironment(tmp_path, recorded, all_events=True) as environment:
        environment.see(document(2, given), 5)
        assert environment.source.posts == []
        assert environment.reasons() == [reason.value]
        assert "approval.accepted" not in environment.kinds()


def test_unknown_name_holds_approvals(tmp_path: Path) -> None:
    """Once the name is known, the event is approved, without a second record of its first sighting."""
    with AgentEnvironment(tmp_path, vm=Vm()) as environment:
        environment.see(document(2, event()), 5)
        assert environment.source.posts == []
        environment.identity = VmIdentity(VM)
        environment.live(3)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]
        assert environment.reasons() == [Reason.IDENTITY_UNKNOWN.value, None]
        assert environment.kinds().count("scheduled") == 1


def test_conflicting_names_hold_approvals(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.identity = VmIdentity(VM, conflict=True)
        environment.see(document(2, event()), 3)
        assert environment.source.posts == []
        assert environment.reasons() == [Reason.IDENTITY_CONFLICT.value]


def test_when_quiet_waits_for_a_started_event_of_another_vm(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path, policy(rules=ruled(when_quiet=True))) as environment:
        other = started(event(FREEZE, "Freeze", "web-2"))
        environment.see(document(2, event(), other), 3)
        assert environment.source.posts == []
        environment.see(document(3, event()), 3)
        assert len(environment.source.posts) == 1
        assert environment.reasons() == [Reason.NOT_QUIET.value, None]


def test_hold_file_is_checked_for_each_decision(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with AgentEnvironment(tmp_path, policy(hold_file=str(hold))) as environment:
        environment.see(document(1), 3)
        assert environment.value("approval_held") == 1
        environment.see(document(2, event()), 3)
        assert environment.source.posts == []
        assert environment.value("approval_held") == 1
        assert (
            environment.value("event_decision", event_id=REBOOT, decision="hold", reason="held", rule="user-initiated")
            == 1
        )
        hold.unlink()
        environment.live(2)
        assert len(environment.source.posts) == 1
        assert environment.value("approval_held") == 0


def test_require_file_waits_for_the_ready_file(tmp_path: Path) -> None:
    """A folder of that name doesn't count."""
    with AgentEnvironment(tmp_path, policy(rules=ruled(require_file=f"{tmp_path}/ready-{{event_id}}"))) as environment:
        (tmp_path / f"ready-{REBOOT}").mkdir()
        environment.see(document(2, event()), 3)
        assert environment.source.posts == []
        (tmp_path / f"ready-{REBOOT}").rmdir()
        (tmp_path / f"ready-{REBOOT}").touch()
        environment.live(2)
        assert len(environment.source.posts) == 1


# At START it is 14:13:20 UTC on Monday, the 21st of September 2026.


def test_approval_is_sent_only_within_the_hours(tmp_path: Path) -> None:
    """From the second they begin until the second before they end; each change of the decision is recorded."""
    with AgentEnvironment(tmp_path, policy(rules=ruled(hours=hours("14:14-14:15")))) as environment:
        environment.source.refusal = MetadataError("server-error", "busy", status_code=503)
        environment.see(document(2, event()), 200)
        sent = [datetime.fromtimestamp(wall, UTC).strftime("%H:%M:%S") for wall, _ in environment.source.posts]
        assert sent[0] == "14:14:00"
        assert "14:14:30" < max(sent) < "14:15:00"
        assert environment.reasons() == ["out-of-hours", None, "out-of-hours"]


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_hours_that_end_during_the_commit_hold_the_approval(tmp_path: Path, seconds: float) -> None:
    """The clock is read again right before each POST."""
    with AgentEnvironment(tmp_path, policy(rules=ruled(hours=hours("00:00-14:14")))) as environment:
        environment.live(3)
        environment.clock.go(START + 39.5 - environment.clock.wall)
        environment.outbox.takes = lambda: environment.clock.go(seconds)
        environment.source.answer = document(2, event())
        environment.agent.tick()
        assert len(environment.source.posts) == (0 if seconds else 1)
        assert environment.reasons() == [None]
        environment.outbox.takes = lambda: None
        environment.live(3)
        assert len(environment.source.posts) == (0 if seconds else 1)
        assert environment.reasons()[1:] == (["out-of-hours"] if seconds else [])


def test_hours_follow_a_clock_that_is_set(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path, policy(rules=ruled(hours=hours("22:00-05:00")))) as environment:
        environment.see(document(2, event()), 3)
        environment.clock.wall += 9 * 3600
        environment.source.refusal = MetadataError("server-error", "busy", status_code=503)
        environment.live(3)
        assert len(environment.source.posts) == 1
        environment.clock.wall -= 9 * 3600
        environment.live(120)
        assert len(environment.source.posts) == 1
        assert environment.reasons() == ["out-of-hours", None, "out-of-hours"]


@pytest.mark.parametrize(
    ("outage", "changed", "posts"),
    [(8, False, 1), (50, False, 1), (8, True, 0), (70, False, 0)],
    ids=["equal-documents", "almost-a-minute", "another-document", "longer-than-a-minute"],
)
def test_settle_counts_a_gap_of_up_to_a_minute_between_equal_documents(
    tmp_path: Path, outage: int, changed: bool, posts: int
) -> None:
    """After a longer gap, `settle` starts again."""
    with AgentEnvironment(tmp_path, policy(rules=ruled(settle=10.0))) as environment:
        environment.see(document(2, event()), 6)
        environment.see(TIMEOUT, outage)
        other = [event(FREEZE, "Freeze", "web-2")] if changed else []
        environment.see(document(2 + changed, event(), *other), 3)
        assert len(environment.source.posts) == posts
        environment.live(12)
        assert len(environment.source.posts) == 1


def answered_every(environment: AgentEnvironment, seconds: float, body: bytes, times: int) -> None:
    """Let the source return a document at this interval, and 429 in between."""
    for _ in range(times):
        environment.see(MetadataError("throttled", "too many requests", status_code=429), seconds - 2)
        environment.see(body, 2)


@pytest.mark.parametrize("reason", ["settling", "not-leader", "source-reset"])
def test_settle_ends_when_every_second_response_is_a_refusal(tmp_path: Path, reason: str) -> None:
    rules = ruled(settle=30.0) if reason == "settling" else ruled()
    given = event(REBOOT, "Reboot", *(["web-0", NAME] if reason == "not-leader" else [NAME]))
    with AgentEnvironment(tmp_path, policy(rules=rules, takeover_after=30.0)) as environment:
        environment.see(document(9), 3)
        number = 2 if reason == "source-reset" else 10
        answered_every(environment, 8, document(number, given), 1)
        assert environment.reasons() == [reason]
        answered_every(environment, 8, document(number, given), 5)
        assert environment.reasons() == [reason, None]
        assert len(environment.source.posts) == 1


def test_dry_run_sends_no_post(tmp_path: Path) -> None:
    """Through changes, restarts, and outages."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run", coordination=Coordination.ANY)) as environment:
        for number in range(2, 12):
            environment.see(document(number, event(DurationInSeconds=number)), 7)
            environment.see(TIMEOUT, 15)
            environment.restart()
        assert environment.source.posts == []
        assert environment.value("approval_requests_total") == 0


# -- sending


def test_accepted_approval_is_never_sent_again(tmp_path: Path) -> None:
    """Not while the event stays Scheduled, nor after restarts and changes."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()), 120)
        environment.restart()
        environment.live(60)
        environment.see(document(3, event(Description="other")), 60)
        environment.restart(3600)
        environment.live(120)
        assert len(environment.source.posts) == 1
        assert environment.kinds().count("approval.accepted") == 1
        assert environment.value("approval_requests_total") == 0  # counted by this process


def test_decision_is_committed_before_the_post(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        seen: list[list[str]] = []
        environment.source.asked = lambda: seen.append(environment.kinds())
        environment.source.answer = document(2, event())
        environment.live(2)
        assert seen == [["agent.started", "scheduled", "approval.decided"]]
        (decided,) = environment.records("approval.decided")
        assert decided.data["decision"]["rule"] == "user-initiated"
        assert decided.data["decision"]["fields"]["EventSource"] == "User"


def test_failed_approval_is_retried_with_growing_waits(tmp_path: Path) -> None:
    """After 5, 10, 20, 40, 60, and 60 s; a failure is recorded once per reason."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.refusal = MetadataError("server-error", "HTTP 500", status_code=500)
        environment.see(document(2, event()), 300)
        assert apart(environment.source.posts)[:6] == [5, 10, 20, 40, 60, 60]
        assert environment.kinds().count("approval.failed") == 1
        environment.source.refusal = MetadataError("timeout")
        environment.live(61)
        assert environment.kinds().count("approval.failed") == 2
        environment.source.refusal = None
        environment.live(61)
        environment.live(300)
        assert environment.kinds().count("approval.accepted") == 1
        assert environment.records("approval.accepted")[0].data["attempt"] == len(environment.source.posts)


def test_retry_wait_begins_with_the_response(tmp_path: Path) -> None:
    """Otherwise Azure would get the next request after less than five seconds."""
    with AgentEnvironment(tmp_path) as environment:
        environment.outbox.takes = lambda: environment.clock.go(0.5)
        environment.source.asked = lambda: environment.clock.go(0.75)
        environment.source.refusal = MetadataError("server-error", "HTTP 500", status_code=500)
        environment.see(document(2, event()), 12)
        assert min(apart(environment.source.posts)) >= 5.75


def test_retry_wait_without_a_response_begins_with_the_post(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.outbox.takes = lambda: environment.clock.go(0.5)
        environment.source.asked = lambda: environment.clock.go(5.0)
        environment.source.refusal = TIMEOUT
        environment.see(document(2, event()), 12)
        assert 5.0 <= apart(environment.source.posts)[0] < 7.0  # to the next poll


def test_retry_wait_after_a_crash_during_a_post_begins_with_the_process(tmp_path: Path) -> None:
    """The time of the POST wasn't saved."""

    class KilledError(BaseException):
        pass

    def die() -> None:
        raise KilledError

    with AgentEnvironment(tmp_path) as environment:
        environment.outbox.takes = lambda: environment.clock.go(3.0)
        environment.source.asked = die
        environment.source.answer = document(2, event())
        with pytest.raises(KilledError):
            environment.agent.tick()
        environment.source.asked = lambda: None
        environment.restart(0.1)
        environment.live(15)
        assert len(environment.source.posts) == 2
        assert min(apart(environment.source.posts)) >= 5


@pytest.mark.parametrize("away", [1, 3600])
def test_longer_retry_after_is_obeyed(tmp_path: Path, away: float) -> None:
    """After a restart the wait begins again, because the clock may have been set."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.refusal = MetadataError("throttled", "HTTP 429", status_code=429, retry_after=30.0)
        environment.see(document(2, event()), 35)
        assert apart(environment.source.posts) == [30]
        environment.restart(away)
        environment.source.refusal = None
        environment.live(29)
        assert len(environment.source.posts) == 2
        environment.live(2)
        assert len(environment.source.posts) == 3


def test_hanging_post_delays_the_next_one_until_the_next_poll_only(tmp_path: Path) -> None:
    """An approval that was not sent isn't an attempt."""
    with AgentEnvironment(tmp_path) as environment:

        def hang() -> None:
            hangs = environment.source.posts[-1][1] == REBOOT
            environment.clock.go(5.1 if hangs else 0.0)
            environment.source.refusal = TIMEOUT if hangs else None

        environment.source.asked = hang
        environment.see(document(2, event(), event("second"), event("third")), 12)
        assert [event_id for _, event_id in environment.source.posts[:4]] == [REBOOT, "second", "third", REBOOT]
        assert [record.data["attempt"] for record in environment.records("approval.accepted")] == [1, 1]


def test_retry_wait_continues_after_a_restart(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.source.refusal = MetadataError("server-error", "HTTP 500", status_code=500)
        environment.see(document(2, event()), 36)  # attempts at 0, 5, 15, 35
        environment.restart(1)
        environment.live(36)
        assert len(environment.source.posts) == 4
        environment.live(10)
        assert len(environment.source.posts) == 5


@pytest.mark.parametrize("clock", ["both", "wall"])
def test_old_document_postpones_the_approval(tmp_path: Path, clock: str) -> None:
    """More than 5 s between the reading and the POST, on either clock."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.answer = document(2, event())

        def six_seconds() -> None:
            environment.clock.wall += 6
            environment.clock.mono += 6 if clock == "both" else 0

        environment.outbox.takes = six_seconds
        environment.agent.tick()
        assert environment.source.posts == []
        assert len(environment.said("approval.postponed")) == 1
        assert environment.value("approvals_postponed_total") == 1
        assert environment.value("approval_requests_total") == 0
        environment.outbox.takes = lambda: None
        environment.live(20)
        assert len(environment.source.posts) == 1


def test_stopping_agent_sends_no_post(tmp_path: Path) -> None:
    """The next process sends it."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.answer = document(2, event())
        environment.stopping = True
        environment.agent.tick()
        environment.agent.stop()
        assert environment.source.posts == []
        environment.restart(30)
        environment.live(2)
        assert len(environment.source.posts) == 1


def test_approved_event_that_changes_is_reported_once(tmp_path: Path) -> None:
    """The rules would hold it now; it isn't sent again."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()), 3)
        environment.see(document(3, event(EventSource="Platform")), 5)
        assert [record.data["reason"] for record in environment.records("approval.outdated")] == ["no-rule"]
        assert environment.value("approvals_outdated_total") == 1
        environment.see(document(4, event(EventSource="Platform", Description="more")), 5)
        assert len(environment.records("approval.outdated")) == 1
        assert len(environment.source.posts) == 1


def test_decision_is_recorded_when_it_changes(tmp_path: Path) -> None:
    """Not for each poll, nor for an event that isn't Scheduled or is already approved."""
    hold = tmp_path / "hold"
    with AgentEnvironment(tmp_path, policy(mode="dry-run", hold_file=str(hold))) as environment:
        environment.see(document(2, event()), 5)
        hold.touch()
        environment.live(5)
        hold.unlink()
        environment.live(5)
        assert environment.reasons() == ["dry-run", "held", "dry-run"]
        environment.see(document(3, started(event())), 5)
        assert len(environment.reasons()) == 3


def test_record_ids_are_unique(tmp_path: Path) -> None:
    """Over restarts and repetitions."""
    with AgentEnvironment(tmp_path) as environment:
        number = 1
        for _ in range(5):
            for given in ([event()], [event(Description="b")], [started(event())], []):
                number += 1
                environment.see(document(number, *given), 3)
                environment.restart()
        found = [record.id for record in environment.records()]
        assert len(found) == len(set(found))
        assert environment.kinds().count("completed") + environment.kinds().count("ended") == 5


@pytest.mark.parametrize("what", ["accepted", "started", "started and over"])
def test_ids_in_a_late_outbox_prevent_a_second_approval(tmp_path: Path, what: str) -> None:
    """A closed event, or a remembered id of an accepted or started event."""
    folder, away = tmp_path / "state", tmp_path / "away"
    theirs = [event(f"other-{number}", EventSource="Platform") for number in range(CLOSED_KEPT + 10)]
    shown: list[list[dict[str, Any]]] = [[event()]] if what == "accepted" else [[started(event())]]
    shown += [] if what == "started" else [theirs, [], []]
    with AgentEnvironment(
        tmp_path, policy("enforce" if what == "accepted" else "dry-run"), path=folder / "outbox.db"
    ) as environment:
        environment.live(15)
        for number, items in enumerate(shown, start=2):
            environment.see(document(number, *items), 3)
        sent = len(environment.source.posts)
        assert sent == (what == "accepted")
        folder.rename(away)
        folder.write_text("no folder")
        environment.options = replace(environment.options, policy=policy())
        environment.restart()
        environment.see(document(8, event()), 15)
        folder.unlink()
        away.rename(folder)
        environment.live(30)
        assert len(environment.source.posts) == sent
        reason = Reason.ALREADY_APPROVED if what == "accepted" else Reason.NOT_SCHEDULED
        assert [decision.reason for decision in environment.agent.status.state.process.decisions.values()] == [reason]


def test_incarnation_in_a_late_outbox_counts(tmp_path: Path) -> None:
    """A lower number postpones approvals until the third document."""
    folder, away = tmp_path / "state", tmp_path / "away"
    with AgentEnvironment(tmp_path, path=folder / "outbox.db") as environment:
        environment.see(document(9), 3)
        folder.rename(away)
        folder.write_text("no folder")
        environment.restart()
        environment.see(document(2, event()), 15)
        folder.unlink()
        away.rename(folder)
        environment.live(2)
        assert environment.source.posts == []
        assert environment.reasons()[-1] == "source-reset"
        environment.live(3)
        assert len(environment.source.posts) == 1
