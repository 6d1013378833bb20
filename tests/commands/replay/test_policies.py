"""The policy that decides in a replay, and the comparison with another one: `then` and `now`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from exporter.commands.replay.command import _replay, add_arguments
from exporter.config.command_line import FlagParser
from exporter.config.load import ConfigError, load, policy_values
from exporter.core.policy import Mode, Policy, Rule
from exporter.core.records import timestamp
from tests.support.agent_environment import FREEZE, AgentEnvironment, document, event, started
from tests.support.lines import rejoined
from tests.support.recordings import NAME, Recording, recorded_days
from tests.support.terminals import Screen

NOW = datetime(2026, 4, 1, tzinfo=UTC)
ENFORCE = Policy(Mode.ENFORCE)
DRY_RUN = Policy(Mode.DRY_RUN)
ID = "6A8C1F0E-3B52-4C47-9D10-2F7E5B94C8D3"
MINUTE = timedelta(minutes=1)


def run(*words: str | Path, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code and the output at a terminal."""
    parser = FlagParser()
    add_arguments(parser)
    args = parser.parse_args([str(word) for word in words])
    out = Screen()
    code = _replay(args, load(args, environ or {}), io.BytesIO(), out, NOW)
    return code, out.getvalue()


def as_json(
    *words: str | Path, environ: Mapping[str, str] | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the records and the last object."""
    code, out = run(*words, "--format=json", environ=environ)
    assert code == 0
    *records, last = map(json.loads, out.splitlines())
    return records, last


def reviewed(recording: Recording, text: str) -> dict[str, Any]:
    """Return the last object of a replay of the recording with a policy file of this text."""
    recording.close()
    path = recording.path.parent / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return as_json(*recording.paths, "--policy", path)[1]


def rule(text: str, mode: str = "enforce") -> str:
    return f'[approval]\nmode = "{mode}"\nrules = [{{ name = "r", {text} }}]\n'


def moments(last: Mapping[str, Any]) -> list[tuple[str, str | None, str]]:
    """Return verdict, reason, and mode of each decision."""
    return [(m["verdict"], m["reason"], m["mode"]) for item in last["decisions"] for m in item["moments"]]


def freeze(recording: Recording, length: timedelta = MINUTE, duration: int = 9, source: str = "Platform") -> None:
    """Record a Freeze of this length."""
    recording.stay(MINUTE)
    recording.event(ID, "Freeze", source, duration)
    recording.stay(length)
    recording.go(ID)
    recording.stay(MINUTE)


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path / "rec")


# -- with the policy in force then


def test_replay_uses_the_recorded_policy_record_by_record(tmp_path: Path) -> None:
    """Records are identical to the agent's, with its own rules and files, also after a restart with another policy."""
    rules = (
        Rule("user", ("Reboot",), ("User",)),
        Rule("prepared", ("Freeze",), settle=5.0, require_file=str(tmp_path / "ready-{event_id}")),
    )
    hold = tmp_path / "hold"
    with AgentEnvironment(tmp_path, Policy(Mode.ENFORCE, rules=rules), recording=tmp_path / "rec") as environment:
        freezing = event(FREEZE, "Freeze", EventSource="Platform", DurationInSeconds=9)
        environment.see(document(1), 30)
        environment.see(document(2, freezing), 60)
        (tmp_path / f"ready-{FREEZE}").touch()
        environment.live(10)
        environment.see(document(3, started(freezing)), 10)
        environment.see(document(4), 30)
        environment.stop()
        environment.options = replace(environment.options, policy=Policy(Mode.ENFORCE, hold_file=str(hold)))
        hold.touch()
        environment.restart(10)
        environment.see(document(5, event()), 20)
        hold.unlink()
        environment.live(5)
        environment.see(document(6, started(event())), 10)
        environment.see(document(7), 10)
        environment.stop()
        environment.close_recording()
        recorded = [json.loads(record.to_json()) for record in environment.records()]
    records, last = as_json(tmp_path / "rec")
    assert records == recorded
    reasons = [record["data"]["decision"]["reason"] for record in recorded if "decided" in record["type"]]
    assert reasons == ["settling", "not-prepared", None, "held", None]
    assert [(each["recorded"], each["faults"]) for each in last["then"]] == [(True, []), (True, [])]
    assert last["then"][0]["policy"] == policy_values(Policy(Mode.ENFORCE, rules=rules))
    assert (last["now"], last["summary"], last["differences"]) == (None, None, None)
    text = run(tmp_path / "rec")[1]
    assert "with the 2 recorded policies" in text
    assert "mode enforce, coordination leader, rules user, prepared)" in text


def test_single_file_is_replayed_with_its_first_policy(recording: Recording) -> None:
    """The newest of several files, without the one that contains the start of the agent."""
    recording.max_bytes = 0
    recording = Recording(recording.path, max_bytes=64 << 10)
    recording.began(Policy(Mode.ENFORCE, rules=()))
    recording.stay(timedelta(days=2))
    freeze(recording, duration=5)
    recording.close()
    assert len(recording.paths) > 1
    _, last = as_json(recording.path)
    assert moments(last) == [("hold", "no-rule", "enforce")]


def test_recording_without_a_policy_is_replayed_with_the_settings(recording: Recording) -> None:
    """The documents don't come from an agent."""
    recording.known()
    freeze(recording, duration=5)
    recording.close()
    assert moments(as_json(recording.path)[1]) == [("hold", "dry-run", "dry-run")]
    _, last = as_json(recording.path, "--approval.mode", "enforce")
    assert moments(last) == [("approve", None, "enforce")]
    assert (last["then"], last["differences"]) == (None, None)


def test_unreadable_policy_is_reported_and_decides_nothing(recording: Recording) -> None:
    """A later version wrote an unknown condition: no other policy replaces it, but events and approvals are shown."""
    values = policy_values(ENFORCE)
    values["rules"][1]["only_while"] = "the moon is full"
    recording.line(at=recording.at.isoformat(), began={"version": "99.0.0", "boot": "b", "policy": values})
    recording.line(at=recording.at.isoformat(), vm={"name": NAME, "id": "x"})
    recording.read()
    recording.event(ID, "Freeze")
    recording.sent(ID)
    recording.stay(MINUTE)
    recording.go(ID)
    recording.close()
    records, last = as_json(recording.path)
    kinds = [record["type"].removeprefix("azure_scheduled_event.") for record in records]
    assert kinds == ["agent.started.v1", "scheduled.v1", "approval.accepted.v1", "ended.v1"]
    assert records[0]["data"]["mode"] == "enforce"
    assert last["decisions"] == []
    (note,) = last["notes"]
    assert "this version can't read the policy" in note
    assert "only_while" in note
    assert "only_while" in run(recording.path)[1]
    (difference,) = reviewed(recording, rule('event_type = ["Freeze"]'))["differences"]
    assert (difference["kind"], difference["then"]) == ("unknown", None)
    assert (difference["now"]["verdict"], difference["sent"][0]["status"]) == ("approve", 200)


@pytest.mark.parametrize("given", ["flag", "environment", "file"])
def test_approval_settings_decide_and_are_compared(recording: Recording, tmp_path: Path, given: str) -> None:
    """Settings in a flag, a variable, or the file, even defaults, decide the replay and are compared."""
    recording.began(Policy(Mode.ENFORCE, rules=()))
    freeze(recording, duration=5)
    recording.close()
    config = tmp_path / "config.toml"
    config.write_text('[approval]\nmode = "dry-run"\n' if given == "file" else '[source]\nvm_name = ""\n')
    words = {"flag": ["--approval.mode", "dry-run"]}.get(given, [])
    environ = {"environment": {"SCHEDULED_EVENTS_APPROVAL_MODE": "dry-run"}}.get(given, {})
    _, last = as_json(recording.path, "--config.file", config, *words, environ=environ)
    assert moments(last) == [("hold", "dry-run", "dry-run")]
    assert [(each["kind"], each["then"]["reason"]) for each in last["differences"]] == [("approved", "no-rule")]
    assert last["now"]["file"] == str(config)
    out = run(recording.path, "--config.file", config, *words, environ=environ)[1]
    assert "approval.decided" in out
    assert "1 event in 3 min 2 s: 0 with the same decision, 1 would also be approved (by short-freeze)." in rejoined(
        out
    )


def test_settings_of_other_sections_do_not_change_decisions(recording: Recording) -> None:
    """For example the VM's name."""
    recording.began(Policy(Mode.ENFORCE, rules=()))
    freeze(recording, duration=5)
    recording.close()
    assert moments(as_json(recording.path, "--source.vm-name", NAME)[1]) == [("hold", "no-rule", "enforce")]


# -- the differences


@pytest.mark.parametrize(
    ("then", "policy", "length", "kind", "seconds", "reasons"),
    [
        (DRY_RUN, rule('event_type = ["Freeze"]', "dry-run"), MINUTE, "approved", None, ("no-rule", "dry-run")),
        (ENFORCE, rule('event_type = ["Freeze"]'), MINUTE, "approved", None, ("no-rule", None)),
        (
            Policy(rules=(Rule("r", ("Freeze",)),)),
            rule('event_type = ["Reboot"]'),
            MINUTE,
            "held",
            None,
            ("dry-run", "no-rule"),
        ),
        (
            Policy(rules=(Rule("r", ("Freeze",)),)),
            rule('event_type = ["Freeze"], settle = "90s"'),
            MINUTE,
            "held",
            None,
            ("dry-run", "settling"),
        ),
        (
            Policy(rules=(Rule("r", ("Freeze",)),)),
            rule('event_type = ["Freeze"], settle = "30s"', "dry-run"),
            MINUTE,
            "later",
            30.0,
            ("dry-run", "dry-run"),
        ),
        (
            Policy(rules=(Rule("r", ("Freeze",), settle=50.0),)),
            rule('event_type = ["Freeze"], settle = "30s"', "dry-run"),
            MINUTE,
            "earlier",
            -20.0,
            ("dry-run", "dry-run"),
        ),
        (
            Policy(rules=(Rule("other", ("Freeze",)),)),
            rule('event_type = ["Freeze"]'),
            MINUTE,
            "rule",
            None,
            ("dry-run", None),
        ),
        (DRY_RUN, rule('event_type = ["Freeze"], settle = "90s"'), MINUTE, "reason", None, ("no-rule", "settling")),
        (
            replace(DRY_RUN, mode=Mode.OFF),
            rule('event_type = ["Freeze"]'),
            MINUTE,
            "approved",
            None,
            ("off", None),
        ),
    ],
    ids=["approved", "approved-enforced", "held", "held-by-time", "later", "earlier", "rule", "reason", "off"],
)
def test_each_kind_of_difference_is_reported(  # noqa: PLR0917  # the columns of the table above
    recording: Recording,
    then: Policy,
    policy: str,
    length: timedelta,
    kind: str,
    seconds: float | None,
    reasons: tuple[str | None, str | None],
) -> None:
    """The difference contains both decisions and the delay, and the summary counts its kind."""
    recording.began(then)
    freeze(recording, length)
    last = reviewed(recording, policy)
    (difference,) = last["differences"]
    assert difference["kind"] == kind
    assert (difference["then"]["reason"], difference["now"]["reason"]) == reasons
    assert difference["seconds"] == seconds
    assert (difference["assumed"], difference["sent"]) == (False, [])
    if seconds is not None:
        assert difference["held"]["reason"] == "settling"
    counts = {name: last["summary"][name] for name in ("events", "alike", kind)}
    assert counts == {"events": 1, "alike": 0, kind: 1}


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("before", Mode)
def test_modes_are_noted_and_not_compared(recording: Recording, before: Mode, mode: Mode) -> None:
    """An approval in dry-run counts as the same decision; in mode off, only holds are known."""
    recording.began(Policy(before))
    freeze(recording, duration=5)
    recording.event("B" * 8, "Reboot")
    recording.stay(MINUTE)
    last = reviewed(recording, f'[approval]\nmode = "{mode}"\n')
    one_off = (before is Mode.OFF) != (mode is Mode.OFF)
    assert len(last["differences"]) == one_off
    assert last["summary"]["alike"] == 2 - one_off
    assert sum(note.startswith("Modes are not compared") for note in last["notes"]) == (before is not mode)


def test_sent_approvals_are_shown_and_others_are_not_assumed(recording: Recording) -> None:
    """An approval that was sent changes the event: later decisions of another policy are predictions, marked so."""
    recording.began(Policy(Mode.ENFORCE, rules=(Rule("r", ("Freeze", "Reboot")),)))
    recording.event(ID, "Freeze")
    recording.sent(ID)
    recording.stay(MINUTE / 6)
    recording.start(ID)
    recording.stay(MINUTE)
    recording.go(ID)
    recording.event("B" * 8, "Reboot")
    recording.sent("B" * 8, 503)
    recording.at += timedelta(seconds=5)
    recording.sent("B" * 8)
    recording.start("B" * 8)
    last = reviewed(recording, rule('event_type = ["Freeze"], settle = "30s"'))
    reboot, later = last["differences"]
    assert (later["kind"], later["seconds"], later["assumed"]) == ("later", 30.0, True)
    assert (later["now"]["verdict"], later["held"]["reason"]) == ("approve", "settling")
    assert [(post["status"], post["at"] is not None) for post in later["sent"]] == [(200, True)]
    assert (reboot["kind"], reboot["now"]["reason"]) == ("held", "no-rule")
    assert [post["status"] for post in reboot["sent"]] == [503, 200]
    assert "If an approval was sent, the course of the event without it is unknown." in last["notes"]
    out = run(*recording.paths, "--policy", recording.path.parent / "policy.toml")[1]
    assert "30 s later, assuming that no approval was sent and the event stayed unchanged" in out
    assert "sent  2026-03-01 00:00:01Z, HTTP 200 at 2026-03-01 00:00:01Z" in out
    assert ", 2 times until " in out


def test_approval_after_not_before_is_not_predicted(recording: Recording) -> None:
    """Azure starts the event at its NotBefore, 15 minutes after the announcement."""
    recording.began(Policy(Mode.ENFORCE, rules=(Rule("r", ("Freeze",)),)))
    recording.event(ID, "Freeze")
    recording.sent(ID)
    recording.stay(MINUTE)
    (difference,) = reviewed(recording, rule('event_type = ["Freeze"], settle = "20m"'))["differences"]
    assert (difference["kind"], difference["now"]["reason"]) == ("held", "settling")


def test_same_policy_makes_the_same_decisions(recording: Recording) -> None:
    """Also with approvals, restarts, and outages."""
    recording.began(ENFORCE)
    freeze(recording, duration=5)
    recording.fail(MINUTE)
    recording.event("B" * 8, "Reboot", "User")
    recording.sent("B" * 8)
    recording.ended()
    recording.began(ENFORCE)
    recording.stay(MINUTE)
    last = reviewed(recording, '[approval]\nmode = "enforce"\n')
    assert (last["differences"], last["summary"]["alike"]) == ([], 2)


def test_events_of_other_vms_are_not_compared(recording: Recording) -> None:
    """They are counted separately: in a scale set every VM reads the events of all."""
    recording.began(DRY_RUN)
    recording.event(ID, "Reboot", "User", -1, "web-2")
    recording.event("B" * 8, "Reboot", "User", -1, "web-2", NAME)
    last = reviewed(recording, '[approval]\ncoordination = "any"\n')
    assert [each["event_id"] for each in last["differences"]] == ["B" * 8]
    assert (last["summary"]["events"], last["summary"]["events_of_others"]) == (1, 1)


def test_without_a_recorded_policy_the_settings_are_then(recording: Recording) -> None:
    """A note reports it."""
    recording.known()
    freeze(recording)
    policy = rule('event_type = ["Freeze"]')
    last = reviewed(recording, policy)
    assert [each["kind"] for each in last["differences"]] == ["approved"]
    assert [(each["from"], each["recorded"]) for each in last["then"]] == [(None, False)]
    assert any("those of the policy in the settings" in note for note in last["notes"])
    path = recording.path.parent / "policy.toml"
    assert as_json(recording.path, "--policy", path, "--config.file", path)[1]["differences"] == []


def test_unrecorded_files_are_assumed_and_reported(recording: Recording) -> None:
    """The recording doesn't contain files of other rules; --assume-files sets their presence."""
    recording.began(DRY_RUN)
    freeze(recording)
    other = recording.path.parent / "other-{event_id}"
    policy = rule(f"event_type = ['Freeze'], require_file = '{other}'")
    last = reviewed(recording, policy)
    assert [each["kind"] for each in last["differences"]] == ["approved"]
    assert any("if a file is not recorded" in note for note in last["notes"])
    path = recording.path.parent / "policy.toml"
    (difference,) = as_json(recording.path, "--policy", path, "--assume-files", "absent")[1]["differences"]
    assert (difference["kind"], difference["now"]["reason"]) == ("reason", "not-prepared")


def test_only_files_of_the_policy_given_now_are_checked_here(recording: Recording, tmp_path: Path) -> None:
    """Paths in a recording belong to another machine, or can't be trusted."""
    (tmp_path / "hold").touch()
    recording.began(Policy(Mode.ENFORCE, hold_file=str(tmp_path / "hold")))
    freeze(recording, duration=5)
    recording.close()
    assert moments(as_json(recording.path, "--assume-files", "look")[1]) == [("approve", None, "enforce")]
    words = ("--assume-files", "look", "--approval.hold-file", str(tmp_path / "hold"), "--approval.coordination", "any")
    assert moments(as_json(recording.path, *words)[1]) == [("hold", "held", "dry-run")]


# -- what is recorded and what is assumed


def found_of(last: Mapping[str, Any]) -> dict[str, str]:
    """Return the details of the checks of the last decision, by reason."""
    conditions = last["decisions"][0]["moments"][-1]["conditions"]
    return {condition["reason"]: condition["found"] for condition in conditions}


def test_details_are_marked_as_recorded_or_assumed(recording: Recording) -> None:
    """The presence of the agent's files is recorded; that of other files, and the mode, is assumed."""
    hold, other = (str(recording.path.parent / name) for name in ("hold", "other"))
    recording.began(Policy(Mode.DRY_RUN, hold_file=hold))
    recording.stay(MINUTE)
    recording.event(ID, "Reboot", "User", -1)
    recording.line(at=timestamp(recording.at), files={hold: "absent"})
    recording.line(at=timestamp(recording.at), outbox="unwritable")
    recording.stay(MINUTE)
    recording.close()
    then = as_json(recording.path)[1]
    assert then["assumed"] == []
    assert found_of(then) == {
        "not-leader": found_of(then)["not-leader"],
        "held": f"{hold} does not exist (recorded)",
        "outbox-unwritable": "the outbox is not writable (recorded)",
        "dry-run": "the mode is dry-run (recorded)",
    }
    now = as_json(recording.path, "--approval.mode", "enforce", "--approval.hold-file", hold)[1]
    assert now["assumed"] == ["approval.decided", "approval.outdated", "agent.started"]
    assert found_of(now)["held"] == f"{hold} does not exist (recorded)"
    assert found_of(now)["dry-run"] == "the mode is enforce (assumed)"
    another = as_json(recording.path, "--approval.mode", "enforce", "--approval.hold-file", other)[1]
    assert found_of(another)["held"] == f"{other} does not exist (assumed)"
    absent = as_json(recording.path, "--approval.hold-file", hold, "--assume-files", "absent")[1]
    assert found_of(absent)["held"] == f"{hold} does not exist (assumed)"

    text = " ".join(run(recording.path, "--approval.mode", "enforce", "--approval.hold-file", hold)[1].split())
    assert "started in mode enforce (assumed)" in text
    assert "could not be recorded (rule user-initiated) (assumed)" in text
    assert "(in 14 min 59 s) 2026" in text, "that it was scheduled was recorded"
    assert "recorded: documents, approvals sent, observations" in text
    assert "(assumed)" not in run(recording.path)[1]


def test_unwritable_outbox_holds_also_for_a_policy_given_now(recording: Recording) -> None:
    recording.began(DRY_RUN)
    recording.stay(MINUTE)
    recording.event(ID, "Reboot", "User", -1)
    recording.line(at=timestamp(recording.at), outbox="unwritable")
    recording.stay(MINUTE)
    recording.line(at=timestamp(recording.at), outbox="writable")
    recording.stay(MINUTE)
    recording.close()
    last = as_json(recording.path, "--approval.mode", "enforce")[1]
    assert moments(last) == [("hold", "outbox-unwritable", "enforce"), ("approve", None, "enforce")]


def test_lost_lines_of_a_recording_are_reported(recording: Recording) -> None:
    """With their number and time, as text and as JSON."""
    recording.began(DRY_RUN)
    recording.stay(MINUTE)
    recording.line(at=timestamp(recording.at), lost=169)
    recording.stay(MINUTE)
    recording.line(at=timestamp(recording.at), lost=1)
    recording.close()
    notes = [note for note in as_json(recording.path)[1]["notes"] if "lost" in note]
    assert [note.partition(":")[0] for note in notes] == [
        "169 lines lost before 2026-03-01 00",
        "1 line lost before 2026-03-01 00",
    ]
    assert "169 lines lost before 2026-03-01 00:01:00Z" in " ".join(run(recording.path)[1].split())


@pytest.mark.parametrize(
    "values",
    [{"outbox": "full"}, {"outbox": True}, {"outbox": ["writable"]}, {"lost": "7"}, {"lost": -1}, {"lost": True}],
)
def test_line_of_another_shape_is_rejected(recording: Recording, values: dict[str, Any]) -> None:
    recording.began(DRY_RUN)
    recording.line(at=timestamp(recording.at), **values)
    recording.close()
    assert as_json(recording.path)[1]["rejected"] == 1


def test_invalid_policy_file_is_2_with_all_its_errors(recording: Recording, tmp_path: Path) -> None:
    """The errors come before any input is read."""
    path = tmp_path / "policy.toml"
    path.write_text('[aproval]\nx = 1\n[approval]\nmode = "bold"\nrules = [{ name = "r", settle = 5 }]\n')
    with pytest.raises(ConfigError) as caught:
        run(recording.path, "--policy", path)
    assert len(caught.value.errors) == 4
    assert all(error.startswith(str(path)) for error in caught.value.errors)
    for missing in (tmp_path / "nothing.toml", ""):
        with pytest.raises(ConfigError):
            run(recording.path, "--policy", missing)


def test_policy_file_without_approvals_is_the_default_and_reported(recording: Recording) -> None:
    """It may be the wrong file."""
    recording.began(Policy(Mode.ENFORCE, rules=()))
    freeze(recording, duration=5)
    last = reviewed(recording, "")
    assert [each["kind"] for each in last["differences"]] == ["approved"]
    assert any("no [approval]" in note for note in last["notes"])


def test_scenario_is_reviewed_without_approvals(tmp_path: Path) -> None:
    """An approval would change the course of the scenario."""
    path = tmp_path / "policy.toml"
    path.write_text(rule('event_type = ["Freeze"], settle = "1m"'))
    _, last = as_json("live-migration", "--policy", path, "--approval.mode", "enforce")
    assert [(each["kind"], each["seconds"]) for each in last["differences"]] == [("later", 60.0)]
    assert "simulation: no event is approved" in last["notes"]


# -- as text


def test_review_shows_policy_changes_and_differences(recording: Recording) -> None:
    """Summary, modes, and differences, in this order; equal decisions are only counted. The page shows parts of it."""
    recording.began(DRY_RUN)
    recording.stay(timedelta(days=3))
    freeze(recording)
    recording.stay(timedelta(days=9, hours=5))
    recording.event("602D9444-D2CD-49C7-8624-8643E7171297", "Reboot", "User", -1)
    recording.stay(timedelta(minutes=3))
    recording.go("602D9444-D2CD-49C7-8624-8643E7171297")
    recording.stay(timedelta(days=6))
    recording.event("C7061BAC-AFDC-4513-B24B-AA5F13A16123", "Freeze", "Platform", 5)
    recording.stay(timedelta(days=1))
    recording.close()
    page = (Path(__file__).parents[3] / "docs" / "policy-review.md").read_text(encoding="utf-8")
    path = recording.path.parent / "policy.toml"
    path.write_text(page.split("```toml\n")[2].split("```")[0], encoding="utf-8")
    code, out = run(*recording.paths, "--policy", path)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100
    place = 0
    for part in page.split("```text\n")[1].split("```")[0].split("[...]\n"):
        assert part in out[place:], part
        place = out.index(part, place) + len(part)


# -- many days


COMMAND_WITH_MEMORY = """
import sys
from exporter.cli import main

code = main()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.linux("measures the memory of a process")
@pytest.mark.parametrize(
    ("days", "expected", "counts"),
    [
        (
            14,
            {"events": 12, "events_of_others": 2, "alike": 6, "approved": 2, "held": 2, "later": 2},
            "12 events in 14 days (2 events of other VMs not compared): 6 with the same decision, 2 would also be",
        ),
        pytest.param(
            31,
            {"events": 27, "events_of_others": 4, "alike": 12, "approved": 5, "held": 5, "later": 5},
            "27 events in 31 days (4 events of other VMs not compared): 12 with the same decision, 5 would also be",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_weeks_are_reviewed_in_bounded_memory(tmp_path: Path, days: int, expected: dict[str, int], counts: str) -> None:
    """Thousands of lines with events, outages, and restarts are replayed twice; memory depends on the size of files."""
    recording = recorded_days(tmp_path / "rec", DRY_RUN, days)
    assert len(recording.paths) > days // 6
    path = tmp_path / "policy.toml"
    path.write_text(rule('event_type = ["Freeze"], settle = "10m"'))
    words = [
        sys.executable,
        "-c",
        COMMAND_WITH_MEMORY,
        "replay",
        *recording.paths,
        "--policy",
        str(path),
        "--format=json",
    ]
    done = subprocess.run(words, capture_output=True, check=True)
    last = json.loads(done.stdout.splitlines()[-1])
    kinds = {key: count for key, count in last["summary"].items() if isinstance(count, int) and count}
    assert kinds == expected
    assert last["summary"]["text"].startswith(counts)
    assert int(done.stderr) < 80 << 10, "KiB"
