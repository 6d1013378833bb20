"""The log lines about an event: their common fields, and the story of an event that they contain."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from exporter.agent.log_fields import about, fields_of
from exporter.choices import LogFormat
from exporter.core.records import Record
from exporter.core.state import InterruptionKind
from exporter.log.log import MAX_LINE, Log
from exporter.metadata.errors import MetadataError
from tests.support.agent_environment import FREEZE, NAME, REBOOT, AgentEnvironment, document, event, started
from tests.support.log_reading import logged

ABOUT = rf" event_type=Reboot vm={re.escape(NAME)} not_before=20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z "
AT = datetime(2026, 3, 2, 9, 0, 20, tzinfo=UTC)


def a_record(**data: object) -> Record:
    return Record("id", "started", "urn:x", "subject", AT, "WARN", data)


def test_log_lines_about_an_event_have_the_fields(tmp_path: Path) -> None:
    """For every record since its announcement; a line about the VM has none."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()))
        environment.see(document(3))
        for name in ("scheduled", "approval.decided", "approval.accepted"):
            lines = environment.said(name)
            assert lines
            assert all(re.search(ABOUT, line) for line in lines), lines
        assert "event_type=" not in environment.said("agent.started")[0]


def test_postponed_approval_is_logged_with_the_fields(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.source.answer = document(2, event())

        def six_seconds() -> None:
            environment.clock.wall += 6
            environment.clock.mono += 6

        environment.outbox.takes = six_seconds
        environment.agent.tick()
        (line,) = environment.said("approval.postponed")
        assert re.search(ABOUT, f"{line} "), line


@pytest.mark.parametrize("format_", ["logfmt", "json"])
def test_fields_are_the_same_in_both_formats(format_: LogFormat) -> None:
    """Unknown fields are omitted: a started event has no NotBefore."""
    stream = io.StringIO()
    log = Log(stream, format=format_)
    log.info("due", **fields_of("Reboot", "web_0", AT))
    log.info("started", **fields_of("Reboot", "web_0", None))
    log.info("unknown", **fields_of(None, "", None))
    due, started, unknown = logged(log, stream).splitlines()
    if format_ == "json":
        assert json.loads(due)["not_before"] == "2026-03-02T09:00:20.000000Z"
        assert (json.loads(started)["event_type"], json.loads(started)["vm"]) == ("Reboot", "web_0")
        assert json.loads(unknown).keys() == {"ts", "level", "event"}
    else:
        assert due.endswith(" event=due event_type=Reboot vm=web_0 not_before=2026-03-02T09:00:20.000000Z")
        assert started.endswith(" event=started event_type=Reboot vm=web_0")
        assert unknown.endswith(" event=unknown")
    log.close()


def test_fields_of_a_wrong_type_are_omitted() -> None:
    """A record with neither event nor VM has none."""
    assert about(a_record(event={"EventType": ["x"]}, vm="web_0", not_before=7)) == {}
    assert about(a_record(event=None, vm={"name": "web_0"})) == {}
    freeze = {"event": {"EventType": "Freeze"}, "vm": {"name": "web_0"}, "not_before": None}
    assert about(a_record(**freeze, event_id="a")) == {"event_type": "Freeze", "vm": "web_0"}
    assert about(a_record(**freeze, event_id=None)) == {}


# -- the story of an event

FREEZE_STORY = f"""\
ts=2026-09-21T14:13:24.000Z level=info event=scheduled ABOUT not_before=2026-09-21T14:28:20.000000Z \
message="Freeze of this VM is scheduled, not before 2026-09-21T14:28:20.000000Z" ID \
seen_before=unbroken notice_seconds=896.0 announced_duration_seconds=30 event_source=Platform
ts=2026-09-21T14:13:24.000Z level=info event=approval.decided ABOUT not_before=2026-09-21T14:28:20.000000Z \
message="Held Freeze {FREEZE}: no rule matches: EventType differs in user-initiated, DurationInSeconds in \
short-freeze" ID reason=no-rule verdict=hold finding="EventType differs in user-initiated, DurationInSeconds in \
short-freeze" mode=enforce
ts=2026-09-21T14:14:24.000Z level=info event=updated ABOUT not_before=2026-09-21T14:33:20.000000Z \
message="Freeze of this VM changed: DurationInSeconds, NotBefore, Resources" ID \
changed.DurationInSeconds.from=30 changed.DurationInSeconds.to=5 \
changed.NotBefore.from="Mon, 21 Sep 2026 14:28:20 GMT" changed.NotBefore.to="Mon, 21 Sep 2026 14:33:20 GMT" \
changed.Resources.from=web-1 changed.Resources.to="web-0, web-1"
ts=2026-09-21T14:14:24.000Z level=info event=approval.decided ABOUT not_before=2026-09-21T14:33:20.000000Z \
message="Held Freeze {FREEZE}: another VM of its resources is the leader (rule short-freeze): place 2 of 2" ID \
reason=not-leader rule=short-freeze verdict=hold finding="place 2 of 2" mode=enforce
ts=2026-09-21T14:15:49.000Z level=warn event=started ABOUT not_before=2026-09-21T14:33:20.000000Z \
message="Freeze of this VM has started" ID \
started_by=other scheduled_duration_seconds=145.0 announced_duration_seconds=5
ts=2026-09-21T14:15:51.004Z level=warn event=interruption.observed ABOUT not_before=2026-09-21T14:33:20.000000Z \
message="Interruption of 4.8 s observed (clock_step) during Freeze {FREEZE}" ID \
interruption.kind=clock_step interruption.seconds=4.8 interruption.noticed_at=2026-09-21T14:15:51.004000Z \
interruption.attributed=true interruption.count=1 interruption.total_seconds=4.8 interruption.longest_seconds=4.8 \
interruption.announced_seconds=5
ts=2026-09-21T14:15:54.000Z level=info event=completed ABOUT not_before=2026-09-21T14:33:20.000000Z \
message="Freeze of this VM has completed" ID \
seen_before=unbroken notice_seconds=896.0 started_by=other first_seen=2026-09-21T14:13:24.000000Z \
scheduled_duration_seconds=145.0 started_at=2026-09-21T14:15:49.000000Z started_duration_seconds=5.0 \
announced_duration_seconds=5 updates=1 gaps=1 gap_seconds=8.0 last_status=Started interruptions_observed=1 \
interruption_seconds=4.8 interruption_longest_seconds=4.8
"""
REBOOT_STORY = f"""\
ts=2026-09-21T14:13:24.000Z level=warn event=scheduled ABOUT not_before=2026-09-21T14:28:20.000000Z \
message="Reboot of this VM is scheduled, not before 2026-09-21T14:28:20.000000Z" ID \
seen_before=unbroken notice_seconds=896.0 event_source=User
ts=2026-09-21T14:13:24.000Z level=info event=approval.decided ABOUT not_before=2026-09-21T14:28:20.000000Z \
message="Approving Reboot {REBOOT}: a rule matches (rule user-initiated)" ID \
rule=user-initiated verdict=approve mode=enforce
ts=2026-09-21T14:13:24.000Z level=info event=approval.accepted ABOUT not_before=2026-09-21T14:28:20.000000Z \
message="Azure accepted this VM's approval of Reboot {REBOOT} (rule user-initiated)" ID \
rule=user-initiated attempt=1
ts=2026-09-21T14:13:27.000Z level=warn event=started ABOUT not_before=2026-09-21T14:28:20.000000Z \
message="Reboot of this VM has started" ID started_by=this_vm rule=user-initiated \
approved_at=2026-09-21T14:13:24.000000Z scheduled_duration_seconds=3.0
ts=2026-09-21T14:13:47.000Z level=info event=completed ABOUT not_before=2026-09-21T14:28:20.000000Z \
message="Reboot of this VM has completed" ID \
seen_before=unbroken notice_seconds=896.0 started_by=this_vm rule=user-initiated \
first_seen=2026-09-21T14:13:24.000000Z approved_at=2026-09-21T14:13:24.000000Z scheduled_duration_seconds=3.0 \
started_at=2026-09-21T14:13:27.000000Z started_duration_seconds=20.0 updates=0 gaps=0 gap_seconds=0.0 \
last_status=Started interruptions_observed=0
"""


def the_story(environment: AgentEnvironment, event_id: str) -> str:
    """Return the lines with an event id, as `grep` finds them, with short forms of what all of them contain."""
    lines = logged(environment.log, environment.text).splitlines(keepends=True)
    found = "".join(line for line in lines if event_id in line)
    ids = {record.id for record in environment.records()}
    kind = "Freeze" if event_id == FREEZE else "Reboot"
    found = found.replace(f"subject={event_id} event_type={kind} vm={NAME}", "ABOUT")
    return re.sub(r"\bid=([0-9a-f-]{36})", lambda match: "ID" if match[1] in ids else "unknown id", found)


def test_log_contains_the_story_of_an_event_that_another_vm_approved(tmp_path: Path) -> None:
    """Also of one that changed, after a restart of the agent, and with an interruption."""
    with AgentEnvironment(tmp_path) as environment:
        environment.live(3)
        freeze = event(FREEZE, "Freeze", EventSource="Platform", DurationInSeconds=30)
        environment.see(document(2, freeze), 60)
        changed = {"NotBefore": "Mon, 21 Sep 2026 14:33:20 GMT", "DurationInSeconds": 5, "Resources": ["web-0", NAME]}
        environment.see(document(3, freeze | changed), 60)
        environment.restart(5)
        environment.live(20)
        environment.see(document(4, started(freeze | changed)), 2)
        environment.ending = [(InterruptionKind.CLOCK_STEP, 4.8)]
        environment.live(3)
        environment.see(document(5), 2)
        assert the_story(environment, FREEZE) == FREEZE_STORY
        (closed,) = environment.records("completed")
        summary = closed.data["summary"]
        for name, text in re.findall(r" ([a-z_]+)=(\S+)", the_story(environment, FREEZE).splitlines()[-1]):
            assert str(summary.get(name, text)) == text, name


def test_log_contains_the_story_of_an_event_that_this_vm_approved(tmp_path: Path) -> None:
    """An unknown duration is omitted, and no observed interruption is 0."""
    with AgentEnvironment(tmp_path) as environment:
        environment.live(3)
        environment.see(document(2, event()), 3)
        environment.see(document(3, started(event())), 20)
        environment.see(document(4), 2)
        assert the_story(environment, REBOOT) == REBOOT_STORY


def test_event_of_another_vm_has_no_observed_interruption(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path, all_events=True) as environment:
        environment.see(document(2, event(REBOOT, "Reboot", "web-7")))
        environment.see(document(3))
        (line,) = environment.said("canceled")
        assert " updates=0 gaps=0 " in line
        assert "interruption" not in line
        assert "started" not in line


def test_rule_of_an_approval_that_failed_is_not_the_reason_of_the_start(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.source.refusal = MetadataError("bad-request", "no", status_code=400)
        environment.see(document(2, event()), 2)
        environment.source.refusal = None
        environment.see(document(3, started(event())))
        environment.see(document(4))
        for kind in ("started", "completed"):
            (line,) = environment.said(kind)
            assert " started_by=" in line
            assert " rule=" not in line


@pytest.mark.parametrize("source", [[1, {"a": "b"}], {"a": 1}, 7, None, "", "Platform", "Platform\n"])
def test_event_source_of_any_type_is_one_printable_line(tmp_path: Path, source: object) -> None:
    """Only text is logged."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event(FREEZE, "Freeze", EventSource=source)))
        (line,) = environment.said("scheduled")
    assert (" event_source=Platform " in f"{line} ") is (source == "Platform")
    assert (" event_source=" in line) is (isinstance(source, str) and source != "")
    assert line.isprintable()


HOSTILE = '\x1b[31m" level=error\nts=2026 event=completed\u2028\u202e'


@pytest.mark.parametrize("long", [False, True])
def test_changed_values_from_outside_stay_within_their_line(tmp_path: Path, long: bool) -> None:
    """Control characters are escaped, long values are cut, and further fields are dropped; the id is kept."""
    text = HOSTILE + "x" * 5000 * long
    before = event(FREEZE, "Freeze", *[f"web-{number}" for number in range(100)])
    after = before | {"Resources": [NAME, text], "Description": text, text: text, "NotBefore": text}
    many = {f"field-{number}": text for number in range(50)}
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, before))
        environment.see(document(3, after | many))
        (line,) = environment.said("updated")
        (record,) = environment.records("updated")
    assert line.isprintable()
    assert len(line.encode()) < MAX_LINE
    assert f" id={record.id} " in line
    assert " level=error" not in re.sub(r'"(\\.|[^"\\])*"', "", line)
    assert line.count("changed.") <= 40
    assert ("truncated=true" in line) is long
