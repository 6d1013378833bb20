"""The timeline: one line a record, a summary as a few more, whatever the record holds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.core.records import KINDS, Record
from exporter.text.timeline import line, record_lines, summary_lines
from tests.support import factories

AT = datetime(2026, 3, 2, 9, 0, 20, 500000, tzinfo=UTC)
EVENT_ID = "6a8c1f0e-3b52-4c47-9d10-2f7e5b94c8d3"


def a_record(kind: str = "scheduled", severity: str = "WARN", **data: Any) -> Record:
    event = {"EventId": EVENT_ID, "EventType": "Reboot"}
    message = "Reboot of this VM is scheduled, not before 2026-03-02T09:15:20.000000Z"
    recorded = {"event": event, "message": message, **data}
    return factories.a_record(kind=kind, subject=EVENT_ID, vm="vm-1", time=AT, severity=severity, **recorded)


def test_a_line_says_when_how_bad_whose_what_and_which() -> None:
    """Time in UTC, mark, VM, kind, short id, sentence with times as a person writes them, and how soon."""
    assert line(a_record(notice_seconds=899.5)) == (
        "2026-03-02 09:00:20Z  !  vm-1  scheduled            6a8c1f0e   "
        "Reboot of this VM is scheduled, not before 2026-03-02 09:15:20Z (in 14 min 59 s)"
    )


def test_severity_has_its_mark() -> None:
    """A warning and an error have their own marks."""
    marks = [line(a_record(severity=word))[22] for word in ("INFO", "WARN", "ERROR")]
    assert marks == [" ", "!", "X"]
    assert "\x1b" not in line(a_record())


def test_a_change_shows_what_was_and_what_is() -> None:
    """Short values of changed fields stand in the line, long ones are only named by the sentence."""
    changed = {
        "DurationInSeconds": {"from": 5, "to": 30},
        "Resources": {"from": ["a"], "to": ["a", "b"]},
        "Description": {"from": "x" * 100, "to": "y"},
    }
    assert line(a_record("updated", message="It changed", changed=changed)).endswith(
        "It changed (DurationInSeconds 5 -> 30; Resources a -> a, b)"
    )


HOSTILE = "\x1b[31mred\x1b]0;title\x07\r\nnext\u202eleft\u2028 \x9b31m"


def test_no_control_character_from_outside_reaches_the_terminal() -> None:
    """Escape sequences, line breaks and direction marks come out as text, on one line."""
    data = {"message": HOSTILE, "vm": {"name": HOSTILE}, "changed": {HOSTILE: {"from": HOSTILE, "to": [HOSTILE]}}}
    about = {"event": {"EventId": HOSTILE}, "event_id": HOSTILE}
    record = Record("id", "updated", HOSTILE, HOSTILE, AT, "WARN", {**about, **data})
    shown = line(record)
    assert shown.isprintable()
    assert "\\u001b[31mred" in shown
    summary = {"first_seen": HOSTILE, "rule": HOSTILE, "unseen": [HOSTILE], "outcome": HOSTILE, "gone_at": HOSTILE}
    assert all(text.isprintable() for text in summary_lines(summary, {"Description": HOSTILE}, {HOSTILE: HOSTILE}))


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
def test_a_record_of_any_shape_is_shown_on_printable_lines(kind: str, summary: object, data: dict[str, Any]) -> None:
    """Whatever type a field has, there is a line, and nothing raises."""
    record = Record("id", kind, "source", "subject", AT, "INFO", {**data, "summary": summary})
    lines = record_lines(record)
    assert lines[0].startswith("2026-03-02 09:00:20Z")
    assert all(text.isprintable() for text in lines)


def test_the_summary_says_not_known_and_none_observed_instead_of_nothing() -> None:
    """An empty summary still answers each question, honestly."""
    text = "\n".join(summary_lines({}))
    assert "first seen   not known" in text
    assert "started      not seen" in text
    assert "felt         not watched" in text
    assert "felt         none observed" in "\n".join(summary_lines({"interruptions_observed": 0}))
    assert "felt" not in "\n".join(summary_lines({}, own=False))


def test_only_a_closing_record_shows_its_summary() -> None:
    """Closing records carry it; another kind that has the key is one line, wrapped."""
    assert len(record_lines(a_record("completed", summary={"updates": 2}))) > 5
    assert len(record_lines(a_record("started", summary={"updates": 2}))) == 2
