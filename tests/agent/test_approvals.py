"""What the agent approves, holds and sends, and when: the policy on a running line."""

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
def test_held_for_the_right_reason(tmp_path: Path, reason: Reason) -> None:
    """Whatever stands against an event is published once with its word, counted, and nothing is sent."""
    recorded, given = HELD[reason]
    with AgentEnvironment(tmp_path, recorded, all_events=True) as environment:
        environment.see(document(2, given), 5)
        assert environment.source.posts == []
        assert environment.reasons() == [reason.value]
        assert "approval.accepted" not in environment.kinds()


def test_held_while_the_name_is_not_known(tmp_path: Path) -> None:
    """Nothing is approved before this VM knows its own name; then it is, with no other record for the first sight."""
    with AgentEnvironment(tmp_path, vm=Vm()) as environment:
        environment.see(document(2, event()), 5)
        assert environment.source.posts == []
        environment.identity = VmIdentity(VM)
        environment.live(3)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]
        assert environment.reasons() == [Reason.IDENTITY_UNKNOWN.value, None]
        assert environment.kinds().count("scheduled") == 1


def test_held_while_two_names_disagree(tmp_path: Path) -> None:
    """A configured name that Azure contradicts holds everything that names it."""
    with AgentEnvironment(tmp_path) as environment:
        environment.identity = VmIdentity(VM, conflict=True)
        environment.see(document(2, event()), 3)
        assert environment.source.posts == []
        assert environment.reasons() == [Reason.IDENTITY_CONFLICT.value]


def test_not_quiet_until_the_other_is_over(tmp_path: Path) -> None:
    """`when_quiet` waits for another VM's Started event to go."""
    with AgentEnvironment(tmp_path, policy(rules=ruled(when_quiet=True))) as environment:
        other = started(event(FREEZE, "Freeze", "web-2"))
        environment.see(document(2, event(), other), 3)
        assert environment.source.posts == []
        environment.see(document(3, event()), 3)
        assert len(environment.source.posts) == 1
        assert environment.reasons() == [Reason.NOT_QUIET.value, None]


def test_the_hold_file_is_looked_at_each_time(tmp_path: Path) -> None:
    """A hold file stops an approval when it appears and lets it go when it is gone."""
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


def test_prepared_by_a_file(tmp_path: Path) -> None:
    """`require_file` with the event's id lets it go when the file is there; a folder in its place does not."""
    with AgentEnvironment(tmp_path, policy(rules=ruled(require_file=f"{tmp_path}/ready-{{event_id}}"))) as environment:
        (tmp_path / f"ready-{REBOOT}").mkdir()
        environment.see(document(2, event()), 3)
        assert environment.source.posts == []
        (tmp_path / f"ready-{REBOOT}").rmdir()
        (tmp_path / f"ready-{REBOOT}").touch()
        environment.live(2)
        assert len(environment.source.posts) == 1


# At START it is 14:13:20 UTC on Monday, the 21st of September 2026.


def test_approved_within_the_hours_alone(tmp_path: Path) -> None:
    """Not a second before they begin, and not from the second on at which they end; each change is told."""
    with AgentEnvironment(tmp_path, policy(rules=ruled(hours=hours("14:14-14:15")))) as environment:
        environment.source.refusal = MetadataError("server-error", "busy", status_code=503)
        environment.see(document(2, event()), 200)
        sent = [datetime.fromtimestamp(wall, UTC).strftime("%H:%M:%S") for wall, _ in environment.source.posts]
        assert sent[0] == "14:14:00"
        assert "14:14:30" < max(sent) < "14:15:00"
        assert environment.reasons() == ["out-of-hours", None, "out-of-hours"]


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_hours_that_end_before_the_post_leaves_hold_it(tmp_path: Path, seconds: float) -> None:
    """The clock is asked right before each POST: the disk took so long over the commit, and the hours are over."""
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


def test_a_clock_that_is_set_opens_and_closes_the_hours(tmp_path: Path) -> None:
    """The time of day counts, not how long the process has lived."""
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
    """What both documents show was so in between. After a longer gap the event begins to settle anew."""
    with AgentEnvironment(tmp_path, policy(rules=ruled(settle=10.0))) as environment:
        environment.see(document(2, event()), 6)
        environment.see(TIMEOUT, outage)
        other = [event(FREEZE, "Freeze", "web-2")] if changed else []
        environment.see(document(2 + changed, event(), *other), 3)
        assert len(environment.source.posts) == posts
        environment.live(12)
        assert len(environment.source.posts) == 1


def answered_every(environment: AgentEnvironment, seconds: float, body: bytes, times: int) -> None:
    """Valid documents that are so far apart, with refusals for want of requests in between."""
    for _ in range(times):
        environment.see(MetadataError("throttled", "too many requests", status_code=429), seconds - 2)
        environment.see(body, 2)


@pytest.mark.parametrize("reason", ["settling", "not-leader", "source-reset"])
def test_waiting_ends_although_documents_are_far_apart(tmp_path: Path, reason: str) -> None:
    """Every second answer is a refusal: what counts observed time goes on all the same."""
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


def test_dry_run_sends_nothing_ever(tmp_path: Path) -> None:
    """Through changes, restarts and outages, `dry-run` never sends a POST."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run", coordination=Coordination.ANY)) as environment:
        for number in range(2, 12):
            environment.see(document(number, event(DurationInSeconds=number)), 7)
            environment.see(TIMEOUT, 15)
            environment.restart()
        assert environment.source.posts == []
        assert environment.value("approval_requests_total") == 0


# -- sending


def test_one_post_and_never_again(tmp_path: Path) -> None:
    """After a 200 the event is never POSTed again: not while it stays Scheduled, nor after restarts and changes."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()), 120)
        environment.restart()
        environment.live(60)
        environment.see(document(3, event(Description="other")), 60)
        environment.restart(3600)
        environment.live(120)
        assert len(environment.source.posts) == 1
        assert environment.kinds().count("approval.accepted") == 1
        assert environment.value("approval_requests_total") == 0  # of this process


def test_committed_before_it_is_sent(tmp_path: Path) -> None:
    """When the POST leaves, the decision with its rule and fields is on disk already."""
    with AgentEnvironment(tmp_path) as environment:
        seen: list[list[str]] = []
        environment.source.asked = lambda: seen.append(environment.kinds())
        environment.source.answer = document(2, event())
        environment.live(2)
        assert seen == [["agent.started", "scheduled", "approval.decided"]]
        (decided,) = environment.records("approval.decided")
        assert decided.data["decision"]["rule"] == "user-initiated"
        assert decided.data["decision"]["fields"]["EventSource"] == "User"


def test_tried_again_with_growing_patience(tmp_path: Path) -> None:
    """Without a 200 it is tried again after 5, 10, 20, 40, 60, 60 s; a failure is published once for each reason."""
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


def test_the_wait_begins_with_the_answer(tmp_path: Path) -> None:
    """From the reading of the document, or from the POST, Azure would be left alone for less than five seconds."""
    with AgentEnvironment(tmp_path) as environment:
        environment.outbox.takes = lambda: environment.clock.go(0.5)
        environment.source.asked = lambda: environment.clock.go(0.75)
        environment.source.refusal = MetadataError("server-error", "HTTP 500", status_code=500)
        environment.see(document(2, event()), 12)
        assert min(apart(environment.source.posts)) >= 5.75


def test_without_an_answer_the_wait_begins_with_the_post(tmp_path: Path) -> None:
    """The five seconds in which no answer came are those that Azure is left alone for."""
    with AgentEnvironment(tmp_path) as environment:
        environment.outbox.takes = lambda: environment.clock.go(0.5)
        environment.source.asked = lambda: environment.clock.go(5.0)
        environment.source.refusal = TIMEOUT
        environment.see(document(2, event()), 12)
        assert 5.0 <= apart(environment.source.posts)[0] < 7.0  # to the next poll


def test_the_wait_after_a_crash_in_a_post_begins_with_the_process(tmp_path: Path) -> None:
    """When it was sent, nobody noted: a process that is back at once leaves Azure alone for five seconds of its own."""

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
def test_it_waits_as_long_as_azure_asks(tmp_path: Path, away: float) -> None:
    """A `Retry-After` that is longer than the agent's own wait is obeyed. After a restart it begins again: the clock
    may have been set in between."""
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


def test_a_post_that_hangs_keeps_no_other_event_from_its_own(tmp_path: Path) -> None:
    """Behind a POST that takes the five seconds for which a document is fresh, the next is sent with the next poll;
    what was not sent is no attempt."""
    with AgentEnvironment(tmp_path) as environment:

        def hang() -> None:
            hangs = environment.source.posts[-1][1] == REBOOT
            environment.clock.go(5.1 if hangs else 0.0)
            environment.source.refusal = TIMEOUT if hangs else None

        environment.source.asked = hang
        environment.see(document(2, event(), event("second"), event("third")), 12)
        assert [event_id for _, event_id in environment.source.posts[:4]] == [REBOOT, "second", "third", REBOOT]
        assert [record.data["attempt"] for record in environment.records("approval.accepted")] == [1, 1]


def test_the_wait_goes_on_over_a_restart(tmp_path: Path) -> None:
    """A restart is no reason to try sooner, nor a reason to forget to try."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.refusal = MetadataError("server-error", "HTTP 500", status_code=500)
        environment.see(document(2, event()), 36)  # attempts at 0, 5, 15, 35
        environment.restart(1)
        environment.live(36)
        assert len(environment.source.posts) == 4
        environment.live(10)
        assert len(environment.source.posts) == 5


@pytest.mark.parametrize("clock", ["both", "wall"])
def test_an_old_document_is_not_acted_on(tmp_path: Path, clock: str) -> None:
    """When more than 5 s pass between the reading and the POST, on either clock, it is postponed to the next poll."""
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


def test_nothing_is_sent_while_stopping(tmp_path: Path) -> None:
    """An agent that was told to stop sends no POST any more, and the next process does."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.answer = document(2, event())
        environment.stopping = True
        environment.agent.tick()
        environment.agent.stop()
        assert environment.source.posts == []
        environment.restart(30)
        environment.live(2)
        assert len(environment.source.posts) == 1


def test_changed_after_approval(tmp_path: Path) -> None:
    """An approved event that changes so that the rules would hold it is said aloud once, and is not sent again."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()), 3)
        environment.see(document(3, event(EventSource="Platform")), 5)
        assert [record.data["reason"] for record in environment.records("approval.outdated")] == ["no-rule"]
        assert environment.value("approvals_outdated_total") == 1
        environment.see(document(4, event(EventSource="Platform", Description="more")), 5)
        assert len(environment.records("approval.outdated")) == 1
        assert len(environment.source.posts) == 1


def test_a_decision_is_published_when_it_changes(tmp_path: Path) -> None:
    """Not for each poll, not for what is not Scheduled or already approved, but again when the verdict is another."""
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


def test_a_number_of_its_own_for_each_fact(tmp_path: Path) -> None:
    """Over restarts and repetitions no two records have the same id."""
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
def test_what_a_late_disk_knows_of_an_id_stands_against_an_approval(tmp_path: Path, what: str) -> None:
    """Its history or what is remembered without one: after a 200 nothing is sent again, nor after a start."""
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


def test_a_number_that_is_lower_than_a_late_disks_is_not_acted_on(tmp_path: Path) -> None:
    """What the file knew counts from when it can be read: nothing is sent before the third document."""
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
