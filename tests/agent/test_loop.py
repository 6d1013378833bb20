"""The loop, driven by hand, with the real core, outbox, and files: outages, names, failing disks, clock changes."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from exporter.core.policy import Reason
from exporter.core.records import Vm, VmIdentity
from exporter.core.state import Interruption, InterruptionKind
from exporter.metadata.client import MetadataResponse
from exporter.metadata.errors import MetadataError
from tests.support.agent_environment import (
    DESTINATIONS,
    FREEZE,
    NAME,
    OTHER_VM,
    REBOOT,
    TIMEOUT,
    VM,
    AgentEnvironment,
    Source,
    document,
    event,
    policy,
    started,
)

# -- the source


def test_gauges_show_the_age_of_a_stored_document(tmp_path: Path) -> None:
    """After the first failed poll of the new process."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(2, event()), 3)
        last = environment.value("last_successful_poll_timestamp_seconds")
        environment.source.answer = TIMEOUT
        environment.restart(3600)
        assert environment.value("last_successful_poll_timestamp_seconds") is None
        environment.live(3)
        assert environment.value("up") == 0
        assert environment.value("events", event_type="Reboot", event_status="Scheduled") == 1
        assert environment.value("last_successful_poll_timestamp_seconds") == pytest.approx(last, abs=5)


def test_outage_and_recovery_are_recorded_once(tmp_path: Path) -> None:
    """The outage after 10 s, also over a restart; the recovery with its length."""
    with AgentEnvironment(tmp_path) as environment:
        environment.live(3)
        environment.see(TIMEOUT, 9)
        assert environment.records("source.unavailable") == []
        environment.live(3)
        (recorded,) = environment.records("source.unavailable")
        assert recorded.time - datetime.fromisoformat(recorded.data["since"]) < timedelta(seconds=10.1)
        environment.live(100)
        environment.restart(10)
        environment.live(50)
        environment.see(document(1), 12)
        (recovered,) = environment.records("source.recovered")
        assert recovered.data["gap_seconds"] == pytest.approx(159, abs=5)
        assert recovered.data["absent_seconds"] == pytest.approx(11, abs=3)
        assert len(environment.records("source.unavailable")) == 1
        assert environment.value("up") == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_duration_of_a_hanging_poll_counts_as_outage(tmp_path: Path, restarts: bool) -> None:
    """The first poll takes 30 s, in each of two processes."""
    with AgentEnvironment(tmp_path) as environment:
        environment.live(3)
        for process in range(1 + restarts):
            if process:
                environment.restart(100)
            environment.source.polling = lambda: environment.clock.go(30)
            environment.see(TIMEOUT, 30)
            environment.source.polling = lambda: None
        environment.see(document(1), 4)
        (unavailable,) = environment.records("source.unavailable")
        assert "for 30 s" in unavailable.data["message"]
        (recovered,) = environment.records("source.recovered")
        assert recovered.data["gap_seconds"] == 30 * (1 + restarts)
        assert f"failed for {30 * (1 + restarts)} s" in recovered.data["message"]
        assert recovered.data["absent_seconds"] == pytest.approx(100 * restarts, abs=3)
        assert datetime.fromisoformat(recovered.data["since"]) < unavailable.time - timedelta(seconds=29)


def test_refusal_is_recorded_as_time_without_a_document(tmp_path: Path) -> None:
    """After a 403, the agent waits 30 s; the record doesn't state that polls failed all that time."""
    with AgentEnvironment(tmp_path) as environment:
        environment.live(3)
        environment.see(MetadataError("forbidden", "HTTP 403"), 2)
        environment.see(document(1), 40)
        (unavailable,) = environment.records("source.unavailable")
        assert unavailable.data["message"] == "The metadata service has been failing for 10 s: forbidden"
        (recovered,) = environment.records("source.recovered")
        assert recovered.data["message"].endswith("; polls failed for less than a second")
        assert recovered.data["gap_seconds"] == 0


@pytest.mark.parametrize("bad", [TIMEOUT, b"<html>"], ids=["no answer", "no document"])
def test_failed_poll_is_repeated_within_two_seconds(tmp_path: Path, bad: bytes | MetadataError) -> None:
    """Also with a poll interval of a minute."""
    with AgentEnvironment(tmp_path, poll_interval=60.0) as environment:
        environment.live(61)
        environment.see(bad, 60)
        before = environment.value("polls_total") or 0.0
        environment.live(31)
        assert (environment.value("polls_total") or 0.0) - before >= 15


def test_short_outage_is_not_recorded(tmp_path: Path) -> None:
    """Nine seconds; `up` shows it."""
    with AgentEnvironment(tmp_path) as environment:
        environment.live(3)
        environment.see(MetadataError("throttled", retry_after=1.0), 6)
        assert environment.value("up") == 0
        environment.see(document(1), 12)
        assert environment.kinds() == ["agent.started"]
        assert environment.value("up") == 1


def test_streak_of_invalid_documents_is_recorded_once(tmp_path: Path) -> None:
    """Once per streak; the last valid document is kept."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(2, event()), 3)
        for body in (b"<html>", b""):
            environment.see(body, 9)
            assert environment.value("document_events") == 1
            assert environment.value("up") == 0
            environment.see(document(2, event()), 12)
        assert len(environment.records("document.rejected")) == 2
        assert environment.records("ended", "canceled", "completed") == []


def test_event_that_disappears_during_an_outage_is_ended(tmp_path: Path) -> None:
    """It isn't canceled, because its end was not observed."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(2, event()), 3)
        environment.see(TIMEOUT, 60)
        environment.see(document(3), 12)
        (ended,) = environment.records("ended")
        assert "gap" in ended.data["unseen"]


# -- identity of the VM


def test_first_and_last_record_are_start_and_stop(tmp_path: Path) -> None:
    """The start contains the evidence of a new boot."""
    with AgentEnvironment(tmp_path) as environment:
        environment.live(3)
        environment.agent.stop()
        environment.restart(30, boot_id="boot-2")
        environment.live(3)
        assert environment.kinds() == ["agent.started", "agent.stopped", "agent.started"]
        assert environment.records("agent.started")[1].data["rebooted"] is True


def test_outage_that_reaches_ten_seconds_during_its_last_poll_is_recorded(tmp_path: Path) -> None:
    class Slow(Source):
        __slots__ = ()
        on_the_way = 0.0

        def fetch(self) -> MetadataResponse:
            self.clock.go(Slow.on_the_way)
            return super().fetch()

    with AgentEnvironment(tmp_path, source=Slow) as environment:
        environment.live(3)
        environment.see(TIMEOUT, 9.9)
        Slow.on_the_way = 2.0
        environment.see(document(1), 2)
        assert environment.kinds() == ["agent.started", "source.unavailable", "source.recovered"]


def test_outbox_of_another_vm_is_quarantined(tmp_path: Path) -> None:
    """None of it is delivered, approved, or kept."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()), 3)
        environment.restart()
        environment.identity = VmIdentity(OTHER_VM)
        environment.see(document(9, event(FREEZE, "Reboot", OTHER_VM.name)), 3)
        assert {record.source for record in environment.records()} == {f"urn:uuid:{OTHER_VM.id}"}
        assert {record.subject for record in environment.records("scheduled")} == {FREEZE}
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT, FREEZE]
        assert list(tmp_path.glob("outbox.db.other-vm-*"))


def test_boot_id_in_the_outbox_of_another_vm_is_ignored(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.live(3)
        environment.identity = VmIdentity(OTHER_VM)
        environment.restart(boot_id="boot-2")
        environment.live(3)
        (begun,) = environment.records("agent.started")
        assert "rebooted" not in begun.data
        environment.restart(boot_id="boot-3")
        environment.live(3)
        assert environment.records("agent.started")[1].data["rebooted"] is True


def test_waiting_interruption_is_kept_when_the_outbox_is_quarantined(tmp_path: Path) -> None:
    """It was observed by this VM."""
    with AgentEnvironment(tmp_path) as environment:
        environment.live(3)
        environment.restart()
        environment.observed_interruptions.append(
            Interruption(InterruptionKind.STALL, 2.0, environment.clock.instant())
        )
        environment.live(0.5)
        environment.identity = VmIdentity(OTHER_VM)
        environment.live(8)
        assert len(environment.records("interruption.observed")) == 1
        assert environment.value("observed_interruption_seconds_count", kind="stall", attributed="false") == 1


def test_late_identity_does_not_change_the_key_of_record_ids(tmp_path: Path) -> None:
    """The key is set at its first use, so that no fact gets a second id."""
    with AgentEnvironment(tmp_path, vm=Vm()) as environment:
        environment.see(document(2, event()), 15)
        before = environment.agent.status.state.vm_key
        environment.identity = VmIdentity(VM)
        environment.live(5)
        environment.restart()
        environment.live(5)
        assert environment.agent.status.state.vm_key == before
        assert environment.kinds().count("scheduled") == 1
        assert before not in ("", VM.id)


def test_record_ids_derive_from_a_known_vm_id(tmp_path: Path) -> None:
    """After the loss of the disk, they are the same again."""
    with (
        AgentEnvironment(tmp_path / "a", policy(mode="dry-run")) as one,
        AgentEnvironment(tmp_path / "b", policy(mode="dry-run")) as other,
    ):
        for environment in (one, other):
            environment.see(document(2, event()), 3)
        (first,), (second,) = one.records("scheduled"), other.records("scheduled")
        assert first.id == second.id
        assert one.agent.status.state.vm_key == VM.id


def test_scope_selects_the_published_events(tmp_path: Path) -> None:
    """`own`: events of this VM; `all`: also neighbours' events; an unknown name hides none."""
    mine, other = event(REBOOT), event(FREEZE, "Freeze", "web-2")
    found = {}
    for name, options in {"own": {}, "all": {"all_events": True}, "unknown": {"vm": Vm()}}.items():
        with AgentEnvironment(tmp_path / name, policy(mode="dry-run"), **options) as environment:  # type: ignore[arg-type]  # by name
            environment.see(document(2, mine, other), 3)
            found[name] = {record.subject for record in environment.records("scheduled")}
            assert environment.value("document_events") == 2
    assert found == {"own": {REBOOT}, "all": {REBOOT, FREEZE}, "unknown": {REBOOT, FREEZE}}


def test_unknown_value_is_counted_when_it_appears(tmp_path: Path) -> None:
    """Once per event and value, and not again when the event disappears."""
    paused = event(EventStatus="Paused")
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(2, paused, event(FREEZE, "Teleport")), 3)
        assert environment.value("unknown_values_total", field="EventStatus") == 1
        assert environment.value("unknown_values_total", field="EventType") == 1
        environment.see(document(3, {**paused, "Description": "more"}, event(FREEZE, "Vanish")), 3)
        assert environment.value("unknown_values_total", field="EventStatus") == 1
        assert environment.value("unknown_values_total", field="EventType") == 2
        environment.see(document(4), 3)
        assert environment.value("unknown_values_total", field="EventStatus") == 1


# -- the disk


@pytest.mark.linux("removes a folder with an open file")
def test_event_is_held_while_the_outbox_is_unwritable(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with AgentEnvironment(tmp_path, path=folder / "outbox.db") as environment:
        environment.live(3)
        block(folder)
        environment.see(document(2, event()), 10)
        assert environment.source.posts == []
        held = list(environment.agent.status.state.process.decisions.values())
        assert [decision.reason for decision in held] == [Reason.OUTBOX_UNWRITABLE]
        assert environment.value("up") == 1
        assert len(environment.said("outbox.unwritable")) == 1
        assert environment.value("outbox_writable") == 0
        environment.see(document(2, event(), event(FREEZE, "Freeze", "web-2")), 3)
        unblock(folder)
        environment.live(3)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]
        assert environment.reasons() == [Reason.OUTBOX_UNWRITABLE.value, None]
        assert environment.kinds().count("scheduled") == 1
        assert len(environment.said("outbox.recovered")) == 1
        assert environment.value("outbox_writable") == 1


def block(folder: Path) -> None:
    """Replace the folder by a file."""
    shutil.rmtree(folder)
    folder.write_text("no folder")


def unblock(folder: Path) -> None:
    folder.unlink()


def test_records_without_a_disk_are_written_when_it_is_back(tmp_path: Path) -> None:
    """Until then the agent polls, exposes, and holds."""
    block_at = tmp_path / "state"
    block_at.write_text("no folder")
    with AgentEnvironment(tmp_path, path=block_at / "outbox.db") as environment:
        environment.see(document(2, event()), 5)
        environment.see(document(3, event(Description="b")), 5)
        assert environment.value("document_events") == 1
        assert environment.value("up") == 1
        assert environment.source.posts == []
        block_at.unlink()
        environment.live(3)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]
        assert environment.kinds() == [
            "agent.started",
            "scheduled",
            "approval.decided",
            "updated",
            "approval.decided",
            "approval.accepted",
        ]


def test_state_in_a_late_outbox_is_adopted(tmp_path: Path) -> None:
    """No second approval, no id twice, and events that disappeared meanwhile end."""
    folder, away = tmp_path / "state", tmp_path / "away"
    approved, other = event(REBOOT), event(FREEZE, "Freeze", DurationInSeconds=30)
    with AgentEnvironment(tmp_path, path=folder / "outbox.db") as environment:
        environment.see(document(2, approved, other), 3)
        environment.see(document(3, event(REBOOT, Description="b"), other), 3)
        environment.outbox.close()
        before = {record.id for record in environment.records()}
        shutil.move(folder, away)
        folder.write_text("no folder")
        environment.restart(60)
        environment.see(document(5, event(REBOOT, Description="c")), 3)
        environment.see(document(6, event(REBOOT, Description="d")), 3)
        folder.unlink()
        shutil.move(away, folder)
        environment.live(10)
        environment.see(document(7, event(REBOOT, Description="e")), 10)
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]
        found = [record.id for record in environment.records()]
        assert len(found) == len(set(found))
        assert before <= set(found)
        assert environment.kinds().count("ended") == 1
        described = {
            record.data["changed"]["Description"]["to"]
            for record in environment.records("updated")
            if "Description" in record.data["changed"]
        }
        assert {"b", "d", "e"} <= described


def test_late_outbox_of_another_vm_is_quarantined(tmp_path: Path) -> None:
    """The records since the start are kept."""
    folder, away = tmp_path / "state", tmp_path / "away"
    with AgentEnvironment(tmp_path, path=folder / "outbox.db", vm=OTHER_VM) as environment:
        environment.see(document(2, event(FREEZE, "Freeze", OTHER_VM.name)), 3)
        environment.outbox.close()
        shutil.move(folder, away)
        folder.write_text("no folder")
        environment.identity = VmIdentity(VM)
        environment.restart()
        environment.see(document(3, event()), 3)
        folder.unlink()
        shutil.move(away, folder)
        environment.live(3)
        assert {record.subject for record in environment.records("scheduled")} == {REBOOT}
        assert list(folder.glob("outbox.db.other-vm-*"))


# -- other observations


@pytest.mark.parametrize("kind", list(InterruptionKind), ids=str)
def test_interruption_is_recorded_with_its_event(tmp_path: Path, kind: InterruptionKind) -> None:
    """Without an event, it is recorded after two polls."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.live(3)
        environment.observed_interruptions.append(Interruption(kind, 4.2, environment.clock.instant()))
        environment.live(6)
        freeze = started(event(FREEZE, "Freeze"))
        environment.see(document(2, freeze), 3)
        environment.observed_interruptions.append(Interruption(kind, 5.1, environment.clock.instant()))
        environment.live(3)
        alone, recorded = environment.records("interruption.observed")
        assert (alone.data["interruption"]["attributed"], alone.subject) == (False, NAME)
        assert (recorded.data["interruption"]["attributed"], recorded.subject) == (True, FREEZE)
        assert recorded.data["interruption"]["seconds"] == 5.1
        environment.see(document(3), 3)
        (completed,) = environment.records("completed")
        assert completed.data["summary"]["interruptions_observed"] == 1


def test_document_with_a_thousand_events_is_handled(tmp_path: Path) -> None:
    events = [
        event(f"{number:08}-0000-0000-0000-000000000000", "Reboot", NAME if number % 50 == 0 else "web-2")
        for number in range(1_000)
    ]
    with AgentEnvironment(tmp_path, capacity=50 << 20, all_events=True) as environment:
        environment.see(document(2, *events), 2)
        assert environment.kinds().count("scheduled") == 1_000
        assert len({event_id for _, event_id in environment.source.posts}) == len(environment.source.posts) == 20


def test_recording_gets_each_body_unchanged(tmp_path: Path) -> None:
    """Invalid documents too."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(b"<html>", 0.5)
        assert environment.kept == [b"<html>"]


def test_clock_jump_causes_no_transition(tmp_path: Path) -> None:
    """An hour forward, an hour back, or a frozen wall clock; no transition is lost."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(2, event()), 5)
        for step in (3_600, -7_200, 3_600):
            environment.clock.wall += step
            environment.live(5)
        wall = environment.clock.wall
        for _ in range(5):
            environment.live(1)
            environment.clock.wall = wall
        assert [kind for kind in environment.kinds() if kind in ("updated", "started", "ended", "canceled")] == []
        environment.see(document(3, started(event())), 3)
        environment.see(document(4), 3)
        assert [kind for kind in environment.kinds() if kind in ("scheduled", "started", "completed")] == [
            "scheduled",
            "started",
            "completed",
        ]


def test_retry_waits_use_the_monotonic_clock(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.source.refusal = MetadataError("server-error", "HTTP 500", status_code=500)
        environment.see(document(2, event()), 1)
        environment.clock.wall += timedelta(hours=2).total_seconds()
        environment.live(3)
        assert len(environment.source.posts) == 1
        environment.clock.wall -= timedelta(hours=5).total_seconds()
        environment.live(3)
        assert len(environment.source.posts) == 2


def test_losses_of_a_damaged_outbox_are_counted_and_logged(tmp_path: Path) -> None:
    """The event isn't recorded or approved again, and no id is used twice."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event(), event(FREEZE, "Freeze", Description="x" * 9_000)), 3)
        before = {record.id for record in environment.records()}
        environment.outbox.close()
        content = bytearray(environment.path.read_bytes())
        at = content.index(b"x" * 3_000) // 4096 * 4096
        content[at : at + 4096] = b"\xff" * 4096
        environment.path.write_bytes(content)
        environment.restart()
        environment.see(document(2, event(), event(FREEZE, "Freeze", Description="x" * 9_000)), 3)
        (damaged,) = environment.said("outbox.damaged")
        assert "level=error" in damaged
        lost = environment.value("destination_records_dropped_total", destination="otlp", reason="outbox-corrupt")
        assert lost
        assert len(environment.said("outbox.dropped")) == len(DESTINATIONS)
        ids = [record.id for record in environment.records()]
        assert len(before - set(ids)) == lost
        assert len(ids) == len(set(ids))
        assert [event_id for _, event_id in environment.source.posts].count(REBOOT) == 1
        assert environment.writable


def test_lost_state_is_restored_from_records(tmp_path: Path) -> None:
    """No id is used twice, and nothing is approved twice."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event(), event(FREEZE, "Reboot", Description="a")), 3)
        environment.see(document(3, event(), event(FREEZE, "Reboot", Description="b")), 3)
        posts = list(environment.source.posts)
        environment.outbox.close()
        with closing(sqlite3.connect(environment.path)) as db:
            db.execute("UPDATE meta SET value = '{' WHERE key = 'state'")
            db.commit()
        before = [record.id for record in environment.records()]
        environment.restart()
        environment.see(document(3, event(), event(FREEZE, "Reboot", Description="b")), 3)
        environment.see(document(4, event(), event(FREEZE, "Reboot", Description="c")), 70)
        assert environment.source.posts == posts
        found = [record.id for record in environment.records()]
        assert found[: len(before)] == before
        assert len(found) == len(set(found))
        assert environment.kinds().count("updated") == 2
