"""The command `replay`: recordings, documents, and scenarios, with decisions and their checks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.commands.replay.command import _replay, add_arguments
from exporter.commands.replay.engine import ReplayEngine, ReplayOptions
from exporter.commands.replay.inputs import read_input, replay_plans
from exporter.config.command_line import FlagParser
from exporter.config.load import load, load_policy, policy_values
from exporter.core.decision import decide
from exporter.core.document import parse_document
from exporter.core.lifecycle import advance
from exporter.core.policy import Coordination, Mode, Policy, Presence, Rule
from exporter.core.state import Instant, State
from exporter.simulator.metadata import scenario
from tests.support.approval_case import hours
from tests.support.core_documents import context_of, explain
from tests.support.factories import azure_event
from tests.support.lines import rejoined
from tests.support.terminals import Screen

GOLDEN = Path(__file__).parents[2] / "golden" / "replay"
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
POLICY = policy_values(Policy())


def run(
    *words: str,
    standard_input: bytes | None = b"",
    environ: Mapping[str, str] | None = None,
    screen: Screen | None = None,
) -> tuple[int, str, str]:
    """Return the exit code and both outputs; `standard_input` None: it is closed; `screen` None: output to a pipe."""
    parser = FlagParser()
    add_arguments(parser)
    args = parser.parse_args(words)
    out, err = screen or io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(err):
        stdin = None if standard_input is None else io.BytesIO(standard_input)
        code = _replay(args, load(args, environ or {}), stdin, out, NOW)
    return code, out.getvalue(), err.getvalue()


def as_json(*words: str, standard_input: bytes = b"") -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the records and the last object of `--format json`."""
    code, out, _ = run("--format=json", *words, standard_input=standard_input)
    assert code == 0
    *records, last = map(json.loads, out.splitlines())
    return records, last


def an_event(**fields: Any) -> dict[str, Any]:
    usual = {"Description": "Virtual machine is being paused.", "DurationInSeconds": 5}
    not_before = "Mon, 02 Mar 2026 12:15:00 GMT"
    return azure_event("6A8C1F0E-3B52-4C47-9D10-2F7E5B94C8D3", "Freeze", ["vm-1", "vm-2"], not_before, **usual | fields)


def a_document(number: int, *events: dict[str, Any]) -> dict[str, Any]:
    return {"DocumentIncarnation": number, "Events": list(events)}


def body(number: int, *events: dict[str, Any]) -> bytes:
    return json.dumps(a_document(number, *events)).encode()


def lines(*items: object) -> bytes:
    return b"".join((item if isinstance(item, bytes) else json.dumps(item).encode()) + b"\n" for item in items)


def after(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat()


def read(seconds: float, number: int, *events: dict[str, Any]) -> dict[str, Any]:
    """Return a line of a recording."""
    return {"read_at": after(seconds), "body": body(number, *events).decode()}


# -- golden


@pytest.mark.parametrize("mode", ["dry-run", "enforce"])
@pytest.mark.parametrize("name", scenario.names())
def test_output_for_each_scenario_is_golden(name: str, mode: str) -> None:
    """Timeline, summaries, and decisions of every scenario at a terminal, with and without approvals.

    With approvals, events of other VMs are recorded too. `UPDATE_GOLDEN=1` writes the files, for review as a diff.
    """
    scope = "all" if mode == "enforce" else "own"
    code, out, err = run(name, "--approval.mode", mode, "--records.scope", scope, screen=Screen())
    path = GOLDEN / f"{name}.{mode}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(out, encoding="utf-8")
    assert (code, err) == (0, "")
    assert out == path.read_text(encoding="utf-8")


# -- inputs


def test_pasted_document_is_explained_rule_by_rule() -> None:
    """A pretty-printed document, decided as the VM in --vm."""
    text = json.dumps(a_document(7, an_event()), indent=2).encode()
    records, last = as_json("-", "--vm", "VM-1", standard_input=text)
    assert [record["type"].split(".")[1] for record in records] == ["scheduled", "approval"]
    (moment,) = last["decisions"][0]["moments"]
    assert (moment["verdict"], moment["reason"], moment["rule"]) == ("hold", "dry-run", "short-freeze")
    assert [(rule["rule"], rule["outcome"], rule["field"]) for rule in moment["rules"]] == [
        ("user-initiated", "differs", "EventType"),
        ("short-freeze", "matches", None),
    ]
    assert [(each["reason"], each["met"]) for each in moment["conditions"]] == [
        ("not-leader", True),
        ("dry-run", False),
    ]


def test_json_lines_are_one_poll_apart_and_invalid_lines_are_named(tmp_path: Path) -> None:
    """Invalid lines are reported with their number, and the others are replayed."""
    path = tmp_path / "documents.jsonl"
    broken = b'{"DocumentIncarnation": 2'
    path.write_bytes(lines(a_document(1), b"", broken, a_document(2, an_event()), {"Events": []}, a_document(3)))
    records, last = as_json(str(path), "--vm", "vm-1")
    rejected = [record["data"]["input"] for record in records if "document.rejected" in record["type"]]
    assert rejected == [f"{path}:3", f"{path}:5"]
    assert (last["documents"], last["rejected"]) == (3, 2)
    assert [record["time"] for record in records if "scheduled." in record["type"]] == ["2026-03-02T11:59:58.000000Z"]
    assert [record["type"] for record in records][-1] == "azure_scheduled_event.canceled.v1"


def test_assumed_times_are_reported() -> None:
    """A past document gets the time of its announcement; a future one is read now."""
    past = body(1, an_event(NotBefore="Mon, 02 Mar 2026 09:15:00 GMT"))
    future = body(1, an_event())
    for text, words, time in (
        (past, (), "2026-03-02 09:00:00Z"),
        (future, (), "2026-03-02 12:00:00Z"),
    ):
        _, out, _ = run("-", "--vm", "vm-1", *words, standard_input=text)
        out = rejoined(out)
        assert f"assumed to have been read one poll interval apart, the first at {time}" in out
        assert f"\n{time}     vm-1  scheduled" in out


def test_files_of_a_recording_are_sorted(tmp_path: Path) -> None:
    """PATH is newer than PATH.1, in any order of the arguments."""
    (tmp_path / "rec").write_bytes(lines(read(10, 2, an_event()), {"read_at": after(20), "same": 10}, read(21, 3)))
    (tmp_path / "rec.1").write_bytes(lines(read(0, 1), {"read_at": after(9), "same": 9}))
    records, last = as_json(str(tmp_path / "rec"), str(tmp_path / "rec.1"), "--vm", "vm-1")
    assert last["documents"] == 3
    assert records[0]["data"]["seen_before"] == "unbroken"
    assert records[-1]["type"] == "azure_scheduled_event.canceled.v1"


def test_empty_file_does_not_change_the_order(tmp_path: Path) -> None:
    """A file that was created on a full disk has no times."""
    (tmp_path / "rec").write_bytes(b"")
    (tmp_path / "rec.1").write_bytes(lines(read(10, 2, an_event())))
    (tmp_path / "rec.2").write_bytes(lines(read(0, 1), {"read_at": after(9), "same": 9}))
    names = [str(tmp_path / name) for name in ("rec", "rec.1", "rec.2")]
    records, _ = as_json(*names, "--vm", "vm-1")
    assert [record["type"].split(".")[1] for record in records][-2:] == ["scheduled", "approval"]
    assert (
        next(record for record in records if record["type"].endswith("scheduled.v1"))["data"]["seen_before"]
        == "unbroken"
    )


@pytest.mark.parametrize("seconds", ["1" + "0" * 400, "1e300", "-1e300", "1e12", "NaN", '"5"'])
def test_interruption_out_of_range_is_rejected(seconds: str) -> None:
    """The line is rejected, and the others are replayed."""
    text = b'{"at": "%s", "interruption": {"kind": "clock_step", "seconds": %s}}\n'
    line = text % (after(2).encode(), seconds.encode())
    _, last = as_json("-", standard_input=lines(read(0, 1, an_event())) + line + lines(read(5, 2)))
    assert (last["documents"], last["rejected"]) == (2, 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n \n",
        b"\x00\xff" * 5000,
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b"[1, 2, null]",
        b'"text"',
        b"NaN",
        b'{"read_at": 5, "body": "x"}',
        b'{"read_at": "2026-03-02T09:00:00Z"}',
        b'{"read_at": "9999-12-31T23:59:59Z", "body": "{}"}',
        b'{"read_at": "2026-03-02T09:00:00Z", "base64": "\xc3\xa9"}',
        b'{"at": "2026-03-02T09:00:00Z", "interruption": {"kind": [], "seconds": 1e999}}',
        b'{"at": "2026-03-02T09:00:00Z", "vm": {"name": 5}}',
        b'{"at": "2026-03-02T09:00:00Z", "post": "x"}',
        b"x" * (13 << 20),
        b'{"DocumentIncarnation": 1, "Events": "' + b"x" * (5 << 20) + b'"}',
        b'{"steps": [], "vms": 5}',
    ],
    ids=range(18),
)
def test_hostile_input_is_an_error_with_exit_code_1(content: bytes) -> None:
    """No content causes a traceback; without a document the exit code is 1."""
    code, out, err = run("-", standard_input=content)
    assert code == 1
    assert out or err
    run("-", "--format=json", standard_input=content + b"\n" + body(1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(list(range(14))), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_any_mixture_of_lines_is_replayed(kinds: list[int], chance: random.Random) -> None:
    """Lines of every kind in any order, with any times, raise no error."""
    at = after(chance.uniform(-1e6, 1e6))
    choices: list[object] = [
        a_document(chance.randrange(5), an_event(EventStatus=chance.choice(["Scheduled", "Started", "?"]))),
        read(chance.uniform(-100, 100), chance.randrange(5), an_event(EventId=chance.choice("abc"))),
        {"read_at": at, "same": 3},
        {"at": at, "failure": "timeout"},
        {"at": at, "post": chance.choice("abc"), "status": chance.choice([200, 400, None, True])},
        {"at": at, "interruption": {"kind": "clock_step", "seconds": chance.uniform(-5, 5)}},
        {"at": at, "vm": {"name": "vm-1"}},
        {"at": at, "began": {"boot": chance.choice("xy"), "policy": POLICY}},
        {"read_at": at, "body": "{"},
        b"nonsense",
        {"at": at, "began": {"boot": "x", "policy": chance.choice([{}, {"mode": "off", "rules": []}, 5, None])}},
        {
            "at": at,
            "policy": chance.choice([{"mode": "enforce", "rules": [{}]}, {"mode": "dry-run", "rules": []}, "x"]),
        },
        {"at": at, "files": chance.choice([{}, {"/x": "absent", "/y": [], "/z": "lost"}])},
        {"at": at, "post": "a", "sent": True},
    ]
    code, out, _ = run("-", "--format=json", standard_input=lines(*(choices[kind] for kind in kinds)))
    assert code in (0, 1)
    for text in out.splitlines():
        json.loads(text)


def test_missing_file_is_1_and_the_others_are_replayed(tmp_path: Path) -> None:
    """An unreadable file is named on standard error."""
    code, out, err = run(str(tmp_path / "nothing"), "quiet")
    assert code == 1
    assert "nothing: No such file or directory" in err
    assert "scenario quiet" in out
    code, _, err = run(str(tmp_path))
    assert (code, err) == (1, f"{tmp_path}: a directory; use the paths of the files in it\n")


def test_invalid_usage_is_2() -> None:
    """The error comes before any input is read."""
    for words in ([], ["-", "--assume-files", "perhaps"], ["-", "--nonsense"]):
        with pytest.raises(SystemExit) as caught:
            run(*words)
        assert caught.value.code == 2


# -- identity


def test_unknown_name_is_held_with_a_hint() -> None:
    """Without a name every event is held; the hint lists the names in the documents."""
    code, out, _ = run("-", standard_input=body(1, an_event()))
    assert code == 0
    assert "hold identity-unknown" in out
    assert "set --vm; the documents name vm-1, vm-2" in out


def test_name_comes_from_flag_settings_recording_and_scenario_in_this_order() -> None:
    """Settings that contradict the recording are a conflict, as for the agent."""
    recording = lines({"at": after(0), "vm": {"name": "vm-2", "id": "i"}}, read(0, 1, an_event()))
    reasons = []
    for words in (["--vm", "vm-1"], ["--source.vm-name", "vm-1"], []):
        _, last = as_json("-", *words, standard_input=recording)
        reasons.append((last["vm_name"], last["decisions"][0]["moments"][0]["reason"]))
    assert reasons == [("vm-1", "dry-run"), ("vm-1", "identity-conflict"), ("vm-2", "not-leader")]


# -- times, approvals, and interruptions


def test_settle_and_takeover_follow_the_recorded_times(tmp_path: Path) -> None:
    """A decision that waits is made when the time has elapsed; a long gap restarts it."""
    config = tmp_path / "config.toml"
    config.write_text('[approval]\nrules = [{ name = "calm", event_type = ["Freeze"], settle = "30s" }]\n')
    same = {"read_at": after(20), "same": 20}
    recording = lines(read(0, 1, an_event()), same, read(620, 1, an_event()), {"read_at": after(660), "same": 40})
    _, last = as_json("-", "--config.file", str(config), "--vm", "vm-1", standard_input=recording)
    moments = last["decisions"][0]["moments"]
    assert [(each["reason"], each["at"]) for each in moments] == [
        ("settling", "2026-03-02T12:00:00.000000Z"),
        ("dry-run", "2026-03-02T12:10:50.000000Z"),
    ]
    takeover = ("--approval.takeover-after", "10s", "--vm", "vm-2")
    recording = lines(read(0, 1, an_event(EventType="Reboot", EventSource="User")), {"read_at": after(30), "same": 30})
    _, last = as_json("-", *takeover, standard_input=recording)
    moments = last["decisions"][0]["moments"]
    assert [(each["reason"], each["at"][17:19]) for each in moments] == [("not-leader", "00"), ("dry-run", "10")]


@pytest.mark.parametrize(("assumed", "reason"), [("found", "dry-run"), ("absent", "not-prepared"), ("look", "dry-run")])
def test_assume_files_sets_the_presence_of_files(tmp_path: Path, assumed: str, reason: str) -> None:
    """The presence is assumed or really checked, and a note contains the choice."""
    (tmp_path / "ready").touch()
    config = tmp_path / "config.toml"
    rule = f"{{ name = 'r', event_type = ['Freeze'], require_file = '{tmp_path / 'ready'}' }}"
    config.write_text(f"[approval]\nhold_file = '{tmp_path / 'hold'}'\nrules = [{rule}]\n")
    words = ("-", "--config.file", str(config), "--vm", "vm-1", "--assume-files", assumed)
    _, last = as_json(*words, standard_input=body(1, an_event()))
    assert last["decisions"][0]["moments"][0]["reason"] == reason
    assert f"(--assume-files {assumed})" in last["notes"][-1]


def test_outage_is_recorded_as_by_the_agent() -> None:
    """An outage of at least 10 s is recorded; an event that disappears in it has ended, not been canceled."""
    recording = lines(
        read(0, 1, an_event()),
        {"read_at": after(5), "same": 5},
        {"at": after(6), "failure": "timeout"},
        read(66, 2),
    )
    records, last = as_json("-", "--vm", "vm-1", standard_input=recording)
    kinds = [(record["type"].removeprefix("azure_scheduled_event."), record["time"][14:19]) for record in records]
    assert kinds[-3:] == [
        ("source.unavailable.v1", "00:16"),
        ("source.recovered.v1", "01:06"),
        ("ended.v1", "01:06"),
    ]
    assert records[-1]["data"]["unseen"] == ["gap"]
    assert last["failures"] == 1


@pytest.mark.parametrize("step", [-86_400.0, -3_600.0, -30.0, -2.0, 0.0, 2.0, 9.0, 30.0, 86_400.0])
def test_durations_follow_the_monotonic_clock(step: float) -> None:
    """A recording contains the steps of the wall clock, so durations are those of the agent."""
    started = an_event(EventStatus="Started", NotBefore="")
    noted = [{"at": after(27.6 + step), "interruption": {"kind": "clock_step", "seconds": step}}] if step else []
    kept = -2 < step <= 2
    recording = lines(
        {"at": after(0), "vm": {"name": "vm-1", "id": "c0ffee"}},
        read(0, 1, an_event()),
        {"read_at": after(20), "same": 20},
        read(21, 2, started),
        {"read_at": after(27), "same": 6},
        *noted,
        {"read_at": after(28 + step), "same": 1} if kept else read(28 + step, 2, started),
        {"read_at": after(31 + step), "same": 3},
        read(31 + step, 3),
        {"at": after(32 + step), "failure": "timeout"},
        read(72 + step, 3),
    )
    records, _ = as_json("-", standard_input=recording)
    (summary,) = [record["data"]["summary"] for record in records if record["data"].get("summary")]
    assert summary["scheduled_duration_seconds"] == pytest.approx(21)
    assert summary["started_duration_seconds"] == pytest.approx(10, abs=0.1)
    assert summary["gap_seconds"] <= 1
    (recovered,) = [record["data"] for record in records if "recovered" in record["type"]]
    assert recovered["gap_seconds"] == 39  # to the last poll that failed
    assert sum("clock_step" in json.dumps(record) for record in records) == bool(step)


@pytest.mark.parametrize(("step", "known"), [(-3600.0, None), (0.0, 60.0)])
def test_durations_over_a_restart_follow_the_wall_clock(step: float, known: float | None) -> None:
    """If the wall clock was set back, they are unknown."""
    started = an_event(EventStatus="Started", NotBefore="")
    recording = lines(
        {"at": after(0), "began": {"boot": "one", "policy": POLICY}},
        {"at": after(0), "vm": {"name": "vm-1", "id": "c0ffee"}},
        read(0, 1, started),
        {"at": after(50 + step), "began": {"boot": "one", "policy": POLICY}},
        read(60 + step, 2),
    )
    records, _ = as_json("-", standard_input=recording)
    assert records[-1]["data"]["summary"]["started_duration_seconds"] == known
    assert records[-1]["data"]["summary"]["gap_seconds"] == known


def test_recorded_approvals_and_interruptions_are_in_the_summary() -> None:
    """Approvals, a reboot of the VM, and interruptions come from the recording, whatever the policy given now."""
    started = an_event(EventStatus="Started", NotBefore="")
    recording = lines(
        {"at": after(0), "began": {"boot": "one", "policy": POLICY}},
        {"at": after(0), "vm": {"name": "vm-1", "id": "c0ffee"}},
        read(0, 1, an_event()),
        {"at": after(0.1), "post": an_event()["EventId"].lower(), "status": 503, "reason": "server-error"},
        {"at": after(5.1), "post": an_event()["EventId"], "status": 200},
        read(6, 2, started),
        {"at": after(8), "interruption": {"kind": "clock_step", "seconds": 4.2}},
        {"read_at": after(9), "same": 3},
        {"at": after(60), "began": {"boot": "two", "policy": POLICY}},
        read(60, 3),
    )
    records, _ = as_json("-", standard_input=recording)
    kinds = [record["type"].split(".", 1)[1] for record in records]
    assert kinds == [
        "agent.started.v1",
        "scheduled.v1",
        "approval.decided.v1",
        "approval.failed.v1",
        "approval.accepted.v1",
        "started.v1",
        "interruption.observed.v1",
        "agent.started.v1",
        "completed.v1",
    ]
    summary, data = records[-1]["data"]["summary"], records[-1]["data"]
    assert (summary["started_by"], summary["rule"], summary["approval_attempts"]) == ("this_vm", "short-freeze", 2)
    assert (summary["interruptions_observed"], summary["interruption_seconds"]) == (1, 4.2)
    assert (data["unseen"], data["evidence"]) == (["restart"], {"rebooted": True})


# -- the hours of a rule


def test_decisions_change_at_every_edge_of_the_hours(tmp_path: Path) -> None:
    """In ten unchanged days with a DST change, the rule's hours open and close at the times of its zone."""
    config = tmp_path / "agent.toml"
    config.write_text(
        '[approval]\nmode = "enforce"\nrules = [{ name = "nights", event_type = ["Reboot"], '
        'between = "22:00-05:00", days = ["Fri", "Sat", "Sun"], timezone = "Europe/Berlin", max_resources = 2 }]\n'
    )
    begin = "2026-03-25T12:00:00.25+00:00"
    event = an_event(EventType="Reboot", EventSource="User", NotBefore="Sun, 12 Apr 2026 12:00:00 GMT")
    recording = lines(
        {"at": begin, "vm": {"name": "vm-1"}},
        {"read_at": begin, "body": body(1, event).decode()},
        {"read_at": "2026-04-04T12:00:00.25+00:00", "same": 864000},
    )
    _, last = as_json("-", "--config.file", str(config), standard_input=recording)
    (recorded,) = last["decisions"]
    moments = [(moment["at"][5:], moment["verdict"], moment["reason"]) for moment in recorded["moments"]]
    assert moments == [
        ("03-25T12:00:00.250000Z", "hold", "out-of-hours"),
        ("03-27T21:00:00.000000Z", "approve", None),
        ("03-28T04:00:00.000000Z", "hold", "out-of-hours"),
        ("03-28T21:00:00.000000Z", "approve", None),
        ("03-29T03:00:00.000000Z", "hold", "out-of-hours"),
        ("03-29T20:00:00.000000Z", "approve", None),
        ("03-30T03:00:00.000000Z", "hold", "out-of-hours"),
        ("04-03T20:00:00.000000Z", "approve", None),
        ("04-04T03:00:00.000000Z", "hold", "out-of-hours"),
    ]
    assert recorded["moments"][0]["conditions"][1:3] == [
        {"reason": "too-many-resources", "met": True, "found": "2 VMs, at most 2 allowed"},
        {
            "reason": "out-of-hours",
            "met": False,
            "found": "outside 22:00-05:00 in Europe/Berlin until Fri 2026-03-27 22:00+01:00",
        },
    ]
    _, out, _ = run("-", "--config.file", str(config), standard_input=recording)
    assert "hold out-of-hours: it is outside the rule's hours (rule nights)" in out
    assert "within allowed hours    yes         within 22:00-05:00 in Europe/Berlin until Sat 2026-03-28" in out


def test_line_far_in_the_future_takes_a_bounded_number_of_steps(tmp_path: Path) -> None:
    """Until 2200 the hours of a rule open 60,000 times."""
    config = tmp_path / "agent.toml"
    config.write_text('[approval]\nrules = [{ name = "nights", event_type = ["Reboot"], between = "22:00-05:00" }]\n')
    event = an_event(EventType="Reboot", NotBefore="Sun, 12 Apr 2026 12:00:00 GMT")
    recording = lines(read(0, 1, event), {"read_at": "2200-12-31T23:59:59Z", "same": 5})
    plan = replay_plans([read_input("-", io.BytesIO(recording))], 1.0, NOW)[0]
    asked: list[object] = []

    def look(*_: object) -> dict[str, Presence]:
        asked.append(_)
        return {}

    engine = ReplayEngine(plan, ReplayOptions(load_policy(str(config)).approval.policy, 1.0, look, "vm-1"))
    for _ in engine.run():
        pass
    assert 100 < len(asked) < 2000


# -- explanations


@settings(max_examples=200, deadline=None)
@given(chance=st.randoms(use_true_random=False))
def test_explanation_agrees_with_the_decision(chance: random.Random) -> None:
    """`explain` and `decide` agree, and the first condition that isn't met is the reason."""

    def some(values: Iterable[Any]) -> Any:
        return chance.choice(list(values))

    def a_rule(name: str) -> Rule:
        return Rule(
            name,
            (some(["Freeze", "Reboot"]),),
            some([None, ("User",), ("Platform",)]),
            min_duration=some([None, 0, 9]),
            settle=some([None, 0.0, 30.0]),
            require_file=some(["", "/f/{event_id}"]),
            when_quiet=some([True, False]),
            max_resources=some([None, 1]),
            hours=some([None, hours("11:00-13:00"), hours("13:00-11:00")]),
        )

    policy = Policy(some(Mode), some(Coordination), some([None, 5.0]), some(["", "/hold"]), (a_rule("a"), a_rule("b")))
    events = [
        an_event(
            EventId=str(number),
            EventType=some(["Freeze", "Reboot"]),
            EventSource=some(["User", "Platform", None]),
            EventStatus=some(["Scheduled", "Scheduled", "Started"]),
            DurationInSeconds=some([5, 10, -1, "5"]),
            Resources=some([["vm-1"], ["vm-1", "vm-2"], ["vm-2", "vm-1"], ["vm-2"]]),
        )
        for number in range(3)
    ]
    state = advance(State(birth=NOW), parse_document(body(1, *events)), Instant(NOW, 0.0)).state
    files = {"/hold": some(Presence), **{f"/f/{number}": some(Presence) for number in range(3)}}
    now, writable = some([NOW, NOW.replace(tzinfo=None)]), some([True, True, False])
    context = context_of(some(["vm-1", ""]), files, writable=writable, now=now)
    explained = explain(policy, state, context)
    assert tuple(each.decision for each in explained) == decide(policy, state, context)
    for each in explained:
        first = next((condition.reason for condition in each.conditions if not condition.met), None)
        if each.conditions:
            assert each.decision.reason == (first or "")
            assert each.evaluations[-1].rule.name == each.decision.rule
        else:
            assert each.decision.rule == ""
