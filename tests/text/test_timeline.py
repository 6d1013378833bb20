"""The timeline: a line for each record, summaries on further lines, whatever the record contains."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.core.records import KINDS, Record
from exporter.text.timeline import line, record_lines, summary_rows
from tests.support import factories

AT = datetime(2026, 3, 2, 9, 0, 20, 500000, tzinfo=UTC)
EVENT_ID = "6a8c1f0e-3b52-4c47-9d10-2f7e5b94c8d3"


def a_record(kind: str = "scheduled", severity: str = "WARN", **data: Any) -> Record:
    event = {"EventId": EVENT_ID, "EventType": "Reboot"}
    message = "Reboot of this VM is scheduled, not before 2026-03-02T09:15:20.000000Z"
    recorded = {"event": event, "message": message, **data}
    return factories.a_record(kind=kind, subject=EVENT_ID, vm="vm-1", time=AT, severity=severity, **recorded)


def test_line_contains_time_severity_vm_kind_event_and_message() -> None:
    """Times are in UTC to the second; the message of `scheduled` ends with the notice."""
    assert line(a_record(notice_seconds=899.5)) == (
        "2026-03-02 09:00:20Z  !  vm-1  scheduled            6a8c1f0e   "
        "Reboot of this VM is scheduled, not before 2026-03-02 09:15:20Z (in 14 min 59 s)"
    )


def test_warnings_and_errors_have_marks() -> None:
    marks = [line(a_record(severity=word))[22] for word in ("INFO", "WARN", "ERROR")]
    assert marks == [" ", "!", "X"]
    assert "\x1b" not in line(a_record())


def test_update_shows_old_and_new_values() -> None:
    """Only short values appear in the line."""
    changed = {
        "DurationInSeconds": {"from": 5, "to": 30},
        "Resources": {"from": ["a"], "to": ["a", "b"]},
        "Description": {"from": "x" * 100, "to": "y"},
    }
    assert line(a_record("updated", message="It changed", changed=changed)).endswith(
        "It changed (DurationInSeconds 5 -> 30; Resources a -> a, b)"
    )


HOSTILE = "\x1b[31mred\x1b]0;title\x07\r\nnext\u202eleft\u2028 \x9b31m"


def test_external_control_characters_are_escaped() -> None:
    """Escape sequences, line breaks, and direction marks are printed as text on one line."""
    data = {"message": HOSTILE, "vm": {"name": HOSTILE}, "changed": {HOSTILE: {"from": HOSTILE, "to": [HOSTILE]}}}
    about = {"event": {"EventId": HOSTILE}, "event_id": HOSTILE}
    record = Record("id", "updated", HOSTILE, HOSTILE, AT, "WARN", {**about, **data})
    shown = line(record)
    assert shown.isprintable()
    assert "\\u001b[31mred" in shown
    summary = {"first_seen": HOSTILE, "rule": HOSTILE, "unseen": [HOSTILE], "outcome": HOSTILE, "gone_at": HOSTILE}
    rows = summary_rows(summary, {"Description": HOSTILE}, {HOSTILE: HOSTILE})
    assert all(text.isprintable() for _, text in rows)
    (whole,) = record_lines(
        Record("id", "completed", HOSTILE, HOSTILE, AT, "WARN", {**about, **data, "summary": summary}), whole=True
    )
    assert whole.isprintable()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)
SUMMARY_KEYS = [
    "first_seen",
    "seen_before",
    "notice_seconds",
    "documented_minimum_notice_seconds",
    "started_by",
    "approved_at",
    "rule",
    "approval_attempts",
    "scheduled_duration_seconds",
    "started_at",
    "started_duration_seconds",
    "gone_at",
    "outcome",
    "unseen",
    "updates",
    "updates_while_started",
    "gaps",
    "gap_seconds",
    "announced_duration_seconds",
    "interruptions_observed",
    "interruption_seconds",
    "interruption_longest_seconds",
]


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    summary=st.fixed_dictionaries({}, optional=dict.fromkeys(SUMMARY_KEYS, json_values)) | json_values,
    data=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(["event", "vm", "message", "changed", "notice_seconds", "evidence"], json_values)
    ),
)
def test_record_of_any_shape_yields_printable_lines(kind: str, summary: object, data: dict[str, Any]) -> None:
    """Fields of any type raise no error."""
    record = Record("id", kind, "source", "subject", AT, "INFO", {**data, "summary": summary})
    lines = record_lines(record)
    assert lines[0].startswith("2026-03-02 09:00:20Z")
    assert all(text.isprintable() for text in lines)


def test_missing_members_of_a_summary_are_shown_as_unknown() -> None:
    """The observed interruption is shown only for events of this VM."""
    rows = dict(summary_rows({}))
    assert rows["first seen"] == "not known"
    assert rows["started"] == "not observed"
    assert rows["interrupted"] == "not monitored"
    assert dict(summary_rows({"interruptions_observed": 0}))["interrupted"].startswith("none observed")
    assert "interrupted" not in dict(summary_rows({}, own=False))


def test_only_a_closing_record_shows_its_summary() -> None:
    """A record of another kind with that member is one line."""
    assert len(record_lines(a_record("completed", summary={"updates": 2}))) > 5
    assert len(record_lines(a_record("started", summary={"updates": 2}))) == 1


def test_whole_record_is_one_line_with_its_id_and_summary() -> None:
    """The labels are followed by a colon, and `note` is before the summary."""
    closed = a_record("completed", message="It has completed", summary={"updates": 2, "rule": "short-freeze"})
    (whole,) = record_lines(closed, "[note]", whole=True)
    assert whole.startswith(
        f"2026-03-02 09:00:20Z  !  vm-1  completed            {EVENT_ID}  It has completed  [note]; "
    )
    assert "; changed: 2 times; announced: not known; " in whole
    labelled = record_lines(closed, "[note]")[1:]
    assert [text.split(": ")[0] for text in whole.split("; ")[1:]] == [row[4:17].strip() for row in labelled]
