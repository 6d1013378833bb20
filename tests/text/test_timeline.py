"""The timeline: one line a record, an account as a few more, whatever the record holds."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.core.records import KINDS, Record
from exporter.text.format import clean
from exporter.text.terminal import supports_colour, writable
from exporter.text.timeline import account_lines, line, record_lines

AT = datetime(2026, 3, 2, 9, 0, 20, 500000, tzinfo=UTC)
EVENT_ID = "6a8c1f0e-3b52-4c47-9d10-2f7e5b94c8d3"


def a_record(kind: str = "scheduled", severity: str = "WARN", **data: Any) -> Record:
    whole = {
        "event": {"EventId": EVENT_ID, "EventType": "Reboot"},
        "vm": {"name": "vm-1"},
        "severity": severity,
        "message": "Reboot of this VM is scheduled, not before 2026-03-02T09:15:20.000000Z",
        **data,
    }
    return Record("id", kind, "urn:azure-vm:vm-1", EVENT_ID, AT, severity, whole)


def test_a_line_says_when_how_bad_whose_what_and_which() -> None:
    """Time in UTC, mark, VM, kind, short id, sentence with times as a person writes them, and how soon."""
    assert line(a_record(notice_seconds=899.5)) == (
        "2026-03-02 09:00:20Z  !  vm-1  scheduled            6a8c1f0e   "
        "Reboot of this VM is scheduled, not before 2026-03-02 09:15:20Z (in 14 min 59 s)"
    )


def test_severity_is_visible_without_colour() -> None:
    """A warning and an error have their own marks; colour only adds to them."""
    marks = [line(a_record(severity=word))[22] for word in ("INFO", "WARN", "ERROR")]
    assert marks == [" ", "!", "X"]
    assert "\x1b" not in line(a_record())
    assert "\x1b[33m!\x1b[0m" in line(a_record(), colour=True)


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


def test_no_control_character_of_somebody_elses_reaches_the_terminal() -> None:
    """Escape sequences, line breaks and direction marks come out as text, on one line."""
    data = {"message": HOSTILE, "vm": {"name": HOSTILE}, "changed": {HOSTILE: {"from": HOSTILE, "to": [HOSTILE]}}}
    record = Record("id", "updated", HOSTILE, HOSTILE, AT, "WARN", {"event": {"EventId": HOSTILE}, **data})
    shown = line(record)
    assert shown.isprintable()
    assert "\\x1b[31mred" in shown
    account = {"first_seen": HOSTILE, "rule": HOSTILE, "unseen": [HOSTILE], "outcome": HOSTILE, "gone_at": HOSTILE}
    assert all(text.isprintable() for text in account_lines(account, {"Description": HOSTILE}, {HOSTILE: HOSTILE}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)
ACCOUNT_KEYS = [
    "first_seen",
    "seen_before",
    "notice_seconds",
    "documented_minimum_notice_seconds",
    "approved_by",
    "approved_at",
    "rule",
    "approval_attempts",
    "waited_seconds",
    "started_at",
    "started_seconds",
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
    account=st.fixed_dictionaries({}, optional=dict.fromkeys(ACCOUNT_KEYS, json_values)) | json_values,
    data=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(["event", "vm", "message", "changed", "notice_seconds", "evidence"], json_values)
    ),
)
def test_a_record_of_any_shape_is_shown_on_printable_lines(kind: str, account: object, data: dict[str, Any]) -> None:
    """Whatever type a field has, there is a line, and nothing raises."""
    record = Record("id", kind, "source", "subject", AT, "INFO", {**data, "account": account})
    lines = record_lines(record)
    assert lines[0].startswith("2026-03-02 09:00:20Z")
    assert all(text.isprintable() for text in lines)


def test_the_account_says_not_known_and_none_observed_instead_of_nothing() -> None:
    """An empty account still answers each question, honestly."""
    text = "\n".join(account_lines({}))
    assert "first seen   not known" in text
    assert "started      not seen" in text
    assert "felt         not watched" in text
    assert "felt         none observed" in "\n".join(account_lines({"interruptions_observed": 0}))
    assert "felt" not in "\n".join(account_lines({}, own=False))


def test_an_account_is_only_told_at_the_end_of_an_event() -> None:
    """Closing records carry it; another kind that has the key is one line."""
    assert len(record_lines(a_record("completed", account={"updates": 2}))) > 5
    assert len(record_lines(a_record("started", account={"updates": 2}))) == 1


@pytest.mark.parametrize(("text", "limit", "shown"), [("abc", 3, "abc"), ("abcd", 3, "abc..."), ("a\u00a0b", 9, "a b")])
def test_clean_text_is_bounded(text: str, limit: int, shown: str) -> None:
    """What is too long is cut visibly; a space that does not break is a space."""
    assert clean(text, limit) == shown


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_only_on_a_terminal_that_wants_it() -> None:
    """NO_COLOR, a dumb terminal and a pipe get plain text."""
    assert supports_colour(_Terminal(), {"TERM": "xterm"})
    assert not supports_colour(_Terminal(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert not supports_colour(_Terminal(), {"TERM": "dumb"})
    assert not supports_colour(io.StringIO(), {"TERM": "xterm"})


def test_a_console_that_lacks_a_character_gets_it_escaped() -> None:
    """A Windows code page never ends a command with an encoding error."""
    raw = io.BytesIO()
    out = writable(io.TextIOWrapper(raw, encoding="cp1252", newline=""))
    print("≥ 0.2 s, 仮想", file=out, flush=True)
    assert raw.getvalue().decode("cp1252") == "\\u2265 0.2 s, \\u4eee\\u60f3\n"
    assert json.loads(f'"{raw.getvalue().decode("cp1252").strip()}"') == "≥ 0.2 s, 仮想"
