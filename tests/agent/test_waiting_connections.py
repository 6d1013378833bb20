"""POSTs that wait for a connection: sent only if the rules then still match, and not an attempt before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from exporter.agent.files import check_files
from exporter.core.policy import Presence, Rule
from exporter.core.records import VmIdentity
from exporter.metadata.errors import MetadataError
from tests.support.agent_environment import (
    FREEZE,
    NAME,
    REBOOT,
    TIMEOUT,
    AgentEnvironment,
    document,
    event,
    policy,
    started,
)
from tests.support.approval_case import hours

CONNECTING: Final = 2.5
WAITING: Final = 1.5
BETWEEN_POLLS: Final = 3.2
"""A time after the last document that is read before there is a connection."""
UNREAD: Final = frozenset(
    {"hold-file", "ready-file-removed", "identity-conflict", "hours-are-over", "stopping", "outbox-removed"}
)
"""Changes that no document contains."""


def changes() -> dict[str, Callable[[AgentEnvironment, Path], None]]:
    """Return changes that may happen while a POST waits for its connection, by name."""

    def shows(number: int, *events: dict[str, Any]) -> Callable[[AgentEnvironment, Path], None]:
        def change(environment: AgentEnvironment, _folder: Path) -> None:
            environment.source.answer = document(number, *events)

        return change

    def fails(environment: AgentEnvironment, _folder: Path) -> None:
        environment.source.answer = MetadataError("malformed", "not JSON")

    def is_another_vm(environment: AgentEnvironment, _folder: Path) -> None:
        environment.identity = replace(environment.identity, conflict=True)

    def stops(environment: AgentEnvironment, _folder: Path) -> None:
        environment.stopping = True

    def loses_its_outbox(environment: AgentEnvironment, _folder: Path) -> None:
        environment.path.unlink()

    def closes(environment: AgentEnvironment, _folder: Path) -> None:
        environment.clock.wall = datetime(2026, 9, 21, 14, 20, tzinfo=UTC).timestamp()

    given = event()
    return {
        "hold-file": lambda _environment, folder: (folder / "hold").touch(),
        "ready-file-removed": lambda _environment, folder: (folder / "ready").unlink(),
        "started": shows(6, started(given)),
        "more-resources": shows(6, event(REBOOT, "Reboot", "web-0", NAME, "web-2", "web-3")),
        "resources-unreadable": shows(6, event(Resources=7)),
        "type-unreadable": shows(6, event(EventType=None)),
        "another-source": shows(6, event(EventSource="Platform")),
        "gone": shows(6),
        "incarnation-decreased": shows(3, given),
        "another-started": shows(6, given, started(event(FREEZE, "Freeze", "web-2"))),
        "twin": shows(6, given, given),
        "identity-conflict": is_another_vm,
        "hours-are-over": closes,
        "stopping": stops,
        "outbox-removed": loses_its_outbox,
    }


OPEN: Final = pytest.mark.linux("Windows does not remove an open file")


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[OPEN] if what == "outbox-removed" else []) for what in changes()]
)
def test_change_stops_a_post_that_waits_for_a_connection(tmp_path: Path, what: str) -> None:
    """Before its first byte, so that it isn't an attempt."""
    ready = tmp_path / "ready"
    ready.touch()
    rule = Rule("mine", ("Reboot",), ("User",), require_file=str(ready), when_quiet=True, hours=hours("14:00-14:15"))
    with AgentEnvironment(tmp_path, policy(rules=(rule,), hold_file=str(tmp_path / "hold"))) as environment:
        environment.clock.go(datetime(2026, 9, 21, 14, 14, tzinfo=UTC).timestamp() - environment.clock.wall)
        environment.source.connects = lambda _event_id: CONNECTING
        environment.see(document(4), 2)
        environment.see(document(5, event()), BETWEEN_POLLS if what in UNREAD else WAITING)
        changes()[what](environment, tmp_path)
        environment.live(2.5 if what not in UNREAD else 0.7)
        assert environment.source.posts == []
        assert environment.value("approval_requests_total") == 0
        tracked = environment.agent.status.state.tracked_or_closed(REBOOT.lower())
        assert tracked is not None
        assert tracked.approval.attempts == 0
        assert not tracked.approval.doubtful
        environment.live(1.5)  # a removed outbox is created again with the next commit
        assert environment.records("approval.failed") == []


def test_post_is_not_sent_while_a_newer_document_is_committed(tmp_path: Path) -> None:
    """The connection is established during the commit of the start."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.connects = lambda _event_id: 4.0
        environment.see(document(2, event()), 2)
        environment.outbox.takes = environment.end_posts_now
        environment.see(document(3, started(event())), 3)
        assert environment.source.posts == []


@pytest.mark.parametrize("shown", [(), (event(),)], ids=["gone", "unchanged"])
def test_post_is_not_sent_on_an_outdated_decision(tmp_path: Path, shown: tuple[Any, ...]) -> None:
    """A document is read during the file check right before the first byte."""
    here = threading.get_ident()
    with AgentEnvironment(tmp_path, policy(hold_file=str(tmp_path / "hold"))) as environment:
        environment.source.connects = lambda _event_id: 0.4

        def check(paths: Iterable[str]) -> Mapping[str, Presence]:
            found = check_files(paths)
            if threading.get_ident() != here:
                environment.source.hang(2.0)
            return found

        environment.look = check
        environment.see(document(2, event()), 1.5)
        environment.see(document(3, *shown), 2.2)
        assert environment.source.posts == []
        assert "reason=decided-anew" in "".join(environment.said("approval.postponed")) or not shown


def test_post_is_sent_when_it_has_a_connection(tmp_path: Path) -> None:
    """Polls continue meanwhile, and it is one attempt, counted from when it was sent."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.connects = lambda _event_id: CONNECTING
        environment.see(document(2, event()), 2)
        assert environment.source.posts == []
        assert environment.value("approval_requests_total") == 0
        environment.live(2)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]
        assert environment.value("approval_requests_total") == 1
        assert environment.value("approvals_postponed_total") == 0
        (accepted,) = environment.records("approval.accepted")
        assert accepted.data["attempt"] == 1


@pytest.mark.linux("Windows treats both spellings as one file")
def test_post_has_the_newest_spelling_of_the_id(tmp_path: Path) -> None:
    """The document changes the letter case while the POST waits: the file of the newest spelling was checked."""
    rule = Rule("mine", ("Reboot",), require_file=str(tmp_path / "ready" / "{event_id}"))
    (tmp_path / "ready").mkdir()
    for spelling in ("E-Abc", "e-ABC"):
        (tmp_path / "ready" / spelling).touch()
    with AgentEnvironment(tmp_path, policy(rules=(rule,))) as environment:
        environment.source.connects = lambda event_id: CONNECTING if event_id == "E-Abc" else 0.0
        environment.see(document(2, event("E-Abc")), WAITING)
        (tmp_path / "ready" / "E-Abc").unlink()
        environment.see(document(3, event("e-ABC")), 5)
        assert [event_id for _, event_id in environment.source.posts] == ["e-ABC"]
        assert "reason=decided-anew" in environment.said("approval.postponed")[0]
        assert environment.value("approval_requests_total") == 1


def test_post_is_not_sent_on_an_old_document(tmp_path: Path) -> None:
    """Polls fail while the connection is established."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.connects = lambda _event_id: 4.9
        environment.see(document(2, event()), 0.1)
        environment.source.answer = TIMEOUT
        environment.clock.wall += 5
        environment.live(6)
        assert environment.source.posts == []
        assert "reason=old-document" in environment.said("approval.postponed")[0]


@pytest.mark.parametrize("outcome", ["canceled", "started"])
@pytest.mark.parametrize("at", ["disconnected", "cut_off"])
@pytest.mark.parametrize("reason", ["connect", "dns", "tls", "timeout", "reset"])
def test_unsent_post_is_not_an_attempt(tmp_path: Path, reason: str, at: str, outcome: str) -> None:
    """Without a connection, or if it breaks before the first byte: not counted, no retry wait, and no doubt."""
    with AgentEnvironment(tmp_path) as environment:
        setattr(environment.source, at, MetadataError(reason, "no way there"))
        environment.see(document(2, event()), 4)
        assert environment.source.posts == []
        assert len(environment.said("approval.postponed")) >= 3
        tracked = environment.agent.status.state.tracked_or_closed(REBOOT.lower())
        assert tracked is not None
        assert not tracked.approval.unanswered
        assert environment.value("approval_requests_total") == 0
        assert environment.records("approval.failed") == []
        lines = environment.said("approval.postponed")
        assert lines
        assert all(f"reason={reason}" in line and "no way there" in line for line in lines)
        shown = [] if outcome == "canceled" else [started(event())]
        environment.see(document(3, *shown), 2)
        environment.see(document(4), 2)
        (closed,) = environment.records("canceled", "completed")
        assert closed.kind == ("canceled" if outcome == "canceled" else "completed")
        assert closed.data["summary"]["approval_attempts"] == 0
        assert closed.data["summary"]["approval_failures"] == []
        assert closed.data["summary"]["started_by"] == ("other" if outcome == "started" else None)


def test_event_that_disappears_before_its_post_is_sent_is_canceled(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.source.connects = lambda _event_id: CONNECTING
        environment.see(document(2, event()), WAITING)
        environment.see(document(3), 5)
        (closed,) = environment.records("canceled", "ended")
        assert closed.kind == "canceled"
        assert closed.data["summary"]["approval_attempts"] == 0


def test_sent_post_without_a_response_stays_in_doubt(tmp_path: Path) -> None:
    """Azure may have accepted it."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.hangs = lambda _event_id: 4.0
        environment.see(document(2, event()), WAITING)
        environment.see(document(3), 5)
        (closed,) = environment.records("canceled", "ended")
        assert closed.kind == "ended"
        assert closed.data["summary"]["approval_attempts"] == 1


@pytest.mark.parametrize(("status", "doubtful"), [(400, False), (404, False), (429, False), (500, True), (503, True)])
def test_server_error_leaves_an_approval_in_doubt(tmp_path: Path, status: int, doubtful: bool) -> None:
    """After a 5xx, Azure may have accepted it, so an event that disappears is `ended`."""
    with AgentEnvironment(tmp_path) as environment:
        environment.source.refusal = MetadataError("other", "no", status_code=status)
        environment.see(document(2, event()), 2)
        environment.see(document(3), 2)
        (closed,) = environment.records("canceled", "ended")
        assert closed.kind == ("ended" if doubtful else "canceled")


# -- `when_quiet`


QUIET: Final = Rule("quiet", ("Reboot",), when_quiet=True)


def test_when_quiet_waits_for_the_end_of_an_approved_event(tmp_path: Path) -> None:
    """Not only for its start."""
    first, second = event(), event("second")
    with AgentEnvironment(tmp_path, policy(rules=(QUIET,))) as environment:
        environment.see(document(2, first, second), 20)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]
        environment.see(document(3, started(first), second), 5)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]
        found = environment.agent.status.state.process.decisions["second"]
        assert (found.reason.value, found.finding) == ("not-quiet", f"Reboot {REBOOT} is or was Started")
        environment.see(document(4, second), 3)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT, "second"]


@pytest.mark.parametrize("order", [1, -1])
def test_rule_without_when_quiet_goes_first(tmp_path: Path, order: int) -> None:
    """Whatever the order of the events in the document."""
    rules = (Rule("any", ("Freeze",)), QUIET)
    shown = [event(FREEZE, "Freeze"), event()][::order]
    with AgentEnvironment(tmp_path, policy(rules=rules)) as environment:
        environment.see(document(2, *shown), 20)
        assert [event_id for _, event_id in environment.source.posts] == [FREEZE]
        (held,) = [found for found in environment.records("approval.decided") if found.subject == REBOOT]
        assert held.data["decision"]["finding"] == f"Freeze {FREEZE} was approved and has not ended"


@pytest.mark.parametrize("hangs", [True, False])
def test_when_quiet_waits_for_an_approval_without_a_response(tmp_path: Path, hangs: bool) -> None:
    with AgentEnvironment(tmp_path, policy(rules=(QUIET,))) as environment:
        environment.source.hangs = (lambda _event_id: 4.9) if hangs else None
        environment.source.refusal = None if hangs else MetadataError("server-error", "oops", status_code=500)
        environment.see(document(2, event(), event("second")), 3)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]


def test_when_quiet_ignores_a_rejected_approval(tmp_path: Path) -> None:
    """Azure rejected it, and it would be held now."""
    with AgentEnvironment(tmp_path, policy(rules=(QUIET,))) as environment:
        environment.source.refusal = MetadataError("status-400", "no", status_code=400)
        environment.see(document(2, event(), event("second")), 3)
        environment.source.refusal = None
        environment.see(document(3, event(EventSource="Platform", EventType="Freeze"), event("second")), 3)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT, "second"]


# -- findings and responses


def test_finding_is_recorded_logged_and_current(tmp_path: Path) -> None:
    """It names the missing file. A changed finding causes no new record; the status has the newest."""
    rule = Rule("mine", ("Reboot",), settle=30.0, require_file=str(tmp_path / "ready" / "{event_id}"))
    with AgentEnvironment(tmp_path, policy(rules=(rule,))) as environment:
        environment.see(document(2, event("a-1")), 12)
        assert environment.agent.status.state.process.decisions["a-1"].finding == "unchanged for 12 s of 30 s"
        environment.live(25)
        settling, unprepared = environment.records("approval.decided")
        assert settling.data["decision"]["finding"] == "unchanged for 0 s of 30 s"
        missing = tmp_path / "ready" / "a-1"
        finding = f"it is unknown whether {missing} exists"
        logged_finding = f'finding="{finding}"'.replace("\\", r"\\")
        assert unprepared.data["decision"]["finding"] == finding
        assert unprepared.data["message"].endswith(f"(rule mine): {finding}")
        (tmp_path / "ready").mkdir()
        environment.live(3)
        assert len(environment.records("approval.decided")) == 2
        assert environment.agent.status.state.process.decisions["a-1"].finding == f"{missing} does not exist"
        assert logged_finding in environment.said("approval.decided")[1]


def test_finding_names_an_unconfirmed_identity(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.identity = VmIdentity(environment.identity.vm, confirmed=False)
        environment.see(document(2, event()), 2)
        assert environment.agent.status.state.process.decisions[REBOOT.lower()].finding == f"{NAME} is not confirmed"


def test_rejections_are_logged_each_and_recorded_once_per_reason(tmp_path: Path) -> None:
    """Each line has Azure's response; the closing record has the failures by reason."""
    with AgentEnvironment(tmp_path) as environment:
        refused = MetadataError("status-400", "HTTP 400 no such event", status_code=400)
        environment.source.refusal = refused
        environment.see(document(2, event()), 20)
        environment.source.refusal = MetadataError("server-error", "HTTP 503 busy", status_code=503)
        environment.live(30)
        environment.source.refusal = refused
        environment.live(70)
        attempts = len(environment.source.posts)
        assert attempts >= 5
        lines = environment.said("approval.failed")
        assert [f"attempt={number} " in line for number, line in enumerate(lines, 1)] == [True] * attempts
        assert all("status_code=400" in line or "status_code=503" in line for line in lines)
        assert sum("HTTP 400 no such event" in line for line in lines) >= 3
        failed = environment.records("approval.failed")
        assert [(found.data["reason"], found.data["count"]) for found in failed] == [
            ("status-400", 1),
            ("server-error", 1),
        ]
        for record in failed:
            (line,) = [line for line in lines if f" id={record.id}" in line]
            assert f"attempt={record.data['attempt']} " in line
        assert sum(" id=" in line for line in lines) == len(failed)
        environment.see(document(3), 2)
        (closed,) = environment.records("ended")
        counts = {each["reason"]: each["count"] for each in closed.data["summary"]["approval_failures"]}
        assert sum(counts.values()) == attempts
        assert set(counts) == {"status-400", "server-error"}
