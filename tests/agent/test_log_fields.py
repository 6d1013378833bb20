"""The common fields of log lines about an event: type, VM, and NotBefore."""

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
from exporter.log.log import Log
from tests.support.agent_environment import NAME, AgentEnvironment, document, event
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
