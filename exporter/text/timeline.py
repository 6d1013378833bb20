"""Human-readable records. In a pipe or a file, each is one line, so that `grep` finds whole records.

At a terminal, lines are as wide as that and continue below the VM's name; a closed event's summary is on further lines:

    2026-03-02 09:00:20Z  !  vm-1  scheduled            6a8c1f0e   Reboot of this VM is scheduled, not
                             before 2026-03-02 09:05:20Z (in 5 min)

Records may come from a place that others can write to, so their content isn't trusted: values of the wrong type are
omitted, and control characters don't reach the terminal (`format.clean`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TextIO

from exporter.core.interruption import THRESHOLD_SECONDS
from exporter.core.records import Record
from exporter.core.state import CLOSING, StartedBy, TransitionKind
from exporter.core.strict_json import INT_LIMIT
from exporter.text.format import clean, counted, moment, span
from exporter.text.terminal import print_wrapped, terminal_width

LABEL_WIDTH: Final = 12
KIND_WIDTH: Final = 20
HANG: Final = 25
"""Columns before the second line of a wrapped record, which begins below the VM's name."""
SUMMARY_INDENT: Final = 4
SUMMARY_HANG: Final = SUMMARY_INDENT + LABEL_WIDTH + 1
SHORT_ID: Final = 8
LONGEST_WORD: Final = 64
LONGEST_SENTENCE: Final = 400
LONGEST_LIST: Final = 20
MARKS: Final[Mapping[str, str]] = {"INFO": " ", "WARN": "!", "ERROR": "X"}

_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_PRECISE: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)\.\d{1,9}Z")
_STARTED: Final[Mapping[str, str]] = {
    StartedBy.THIS_VM: "approved by this VM",
    StartedBy.OTHER: "before NotBefore, without an approval by this VM",
    StartedBy.NOT_BEFORE: "NotBefore passed",
}
_SEEN_BEFORE: Final[Mapping[str, str]] = {
    "unbroken": "when it was published",
    "gap": "after a polling gap; it may have been published earlier",
    "agent_start": "when the agent started; it may have been published earlier",
}
_UNSEEN: Final[Mapping[str, str]] = {
    "restart": "the agent was not running",
    "gap": "polling gap",
    "incarnation-restarted": "the document's incarnation started again",
    "incarnation-skipped": "a document was missed",
    "incarnation-unchanged": "the document changed without a new incarnation",
    "unknown-status": "this version does not know its last status",
    "was-started": "it had been Started before, so it may have run",
    "approved": "it was approved, so it may have run",
    "approval-unanswered": "an approval request was not answered, so it may have run",
    "not-before-unknown": "its NotBefore was unknown",
    "not-before-passed": "its NotBefore had passed, so it may have run",
    "replaced": "a new event, already Started, replaced it",
    "not-this-vm": "it no longer names this VM and continues for other VMs",
}


def print_record(record: Record, out: TextIO | None = None, note: str = "") -> None:
    """Print a record with `note` at the end of its line, and for a closing record its summary."""
    stream = sys.stdout if out is None else out
    first, *rows = record_lines(record, note, whole=terminal_width(stream) is None)
    print_wrapped(first, stream, hang=HANG, prose=False)
    for row in rows:
        print_wrapped(row, stream, hang=SUMMARY_HANG, prose=False)


def record_lines(record: Record, note: str = "", *, whole: bool = False) -> list[str]:
    """Return a record's line with `note` at its end, and a line for each row of its summary; if `whole`, one line."""
    data = record.data
    first, summary, rows = f"{line(record, whole=whole)}{note and f'  {note}'}", data.get("summary"), []
    if record.kind in {kind.value for kind in CLOSING} and isinstance(summary, Mapping):
        own, evidence = data.get("affects_self") is not False, _mapping(data.get("evidence"))
        rows = summary_rows(summary, record.readable_event, evidence, own=own)
    if whole:
        return ["; ".join((first, *(f"{label}: {text}" for label, text in rows)))]
    return [first, *(f"{' ' * SUMMARY_INDENT}{_pad(label, LABEL_WIDTH)}{text}" for label, text in rows)]


def line(record: Record, *, whole: bool = False) -> str:
    """Return a record on one line: UTC time, severity (`!` warning, `X` error), VM, kind, event id, message.

    The event id is shortened unless `whole` is set.
    """
    data = record.data
    vm, event = _mapping(data.get("vm")), record.readable_event
    mark, kind = MARKS.get(record.severity, "?"), _pad(record.kind, KIND_WIDTH)
    name = clean(vm.get("name") or "-", LONGEST_WORD)
    event_id = clean(record.subject, LONGEST_SENTENCE) if whole else _short_id(record.subject)
    shown = f"{event_id if event else '-':<{SHORT_ID + 1}}  "
    return f"{moment(record.time)}  {mark}  {name}  {kind}{shown}{_sentence(record)}"


def _sentence(record: Record) -> str:
    """Return the record's message with its notice, its changes, or the cause of the start."""
    data = record.data
    sentence = clean(data.get("message") or record.kind, LONGEST_SENTENCE)
    sentence = _PRECISE.sub(r"\1 \2Z", sentence)
    sentence = sentence.replace(clean(record.subject, LONGEST_SENTENCE), _short_id(record.subject))
    if record.kind == "scheduled":
        return sentence + _notice_left(_number(data.get("notice_seconds")))
    if record.kind == "updated":
        return sentence + _changes(_mapping(data.get("changed")))
    started = _STARTED.get(_word(data.get("started_by"))) if record.kind == "started" else None
    return f"{sentence} ({started})" if started else sentence


def _notice_left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f" (in {_span(seconds)})" if seconds > 0 else " (due)"


def _changes(changed: Mapping[str, Any]) -> str:
    """Return the old and new values of the changed fields, without long texts."""
    changes = []
    for name, value in list(changed.items())[:LONGEST_LIST]:
        pair = _mapping(value)
        old, new = (brief(pair.get(side)) for side in ("from", "to"))
        if len(old) + len(new) <= LONGEST_WORD:
            changes.append(f"{clean(name, LONGEST_WORD)} {old} -> {new}")
    return f" ({'; '.join(changes)})" if changes else ""


# --- the summary of a closed event ------------------------------------------------------------------------------------


def summary_rows(
    summary: Mapping[str, Any],
    event: Mapping[str, Any] | None = None,
    evidence: Mapping[str, Any] | None = None,
    *,
    own: bool = True,
) -> list[tuple[str, str]]:
    """Return the `summary` of a closing record as labels and texts; missing members are shown as "not known".

    `event` and `evidence` are those of the same record. `own` is False for an event of other VMs, whose interruption
    this VM can't observe.
    """
    checked = _checked(summary)
    azure = _mapping(event)
    rows = [
        ("description", clean(azure.get("Description") or "", LONGEST_SENTENCE)),
        ("first seen", _first_seen(checked)),
        ("notice", _notice(checked, azure)),
        ("approved by", _approved(checked)),
        ("started", _started(checked)),
        ("ended", _gone(checked)),
        ("unseen", _unseen(checked["unseen"])),
        ("evidence", _evidence(_mapping(evidence))),
        ("changed", _updates(checked)),
        ("announced", clean(announced_duration(checked["announced_duration_seconds"]), LONGEST_SENTENCE)),
        ("interrupted", clean(observed_interruption(checked), LONGEST_SENTENCE) if own else ""),
    ]
    return [(label, text) for label, text in rows if text]


_SPANS: Final = (
    "documented_minimum_notice_seconds",
    "scheduled_duration_seconds",
    "started_duration_seconds",
    "gap_seconds",
    "interruption_seconds",
    "interruption_longest_seconds",
)
_COUNTS: Final = ("approval_attempts", "updates", "updates_while_started", "gaps")
_TEXTS: Final = (
    "first_seen",
    "seen_before",
    "approved_at",
    "rule",
    "started_at",
    "gone_at",
    "outcome",
    "last_status",
    "last_not_before",
)


def _checked(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary with every member in its type; a missing or mistyped one becomes None, or 0 for a count."""
    checked: dict[str, Any] = {name: _number(summary.get(name)) for name in ("notice_seconds", *_SPANS)}
    checked |= {name: None for name in _SPANS if (checked[name] or 0) < 0}
    checked |= {name: int(_number(summary.get(name)) or 0) for name in _COUNTS}
    checked |= {name: clean(summary[name], LONGEST_WORD) if summary.get(name) else None for name in _TEXTS}
    approver = summary.get("started_by")
    duration = _number(summary.get("announced_duration_seconds"))
    unseen = summary.get("unseen")
    observed = _number(summary.get("interruptions_observed"))
    return checked | {
        "started_by": approver if approver in list(StartedBy) else None,
        "announced_duration_seconds": None if duration is None else int(duration),
        "unseen": [_word(reason) for reason in unseen] if isinstance(unseen, list | tuple) else [],
        "interruptions_observed": None if observed is None else int(observed),
        "interruption_longest_seconds": checked["interruption_longest_seconds"] or 0.0,
    }


def _first_seen(summary: Mapping[str, Any]) -> str:
    how = _SEEN_BEFORE.get(summary["seen_before"] or "")
    return _instant(summary["first_seen"]) + (f", {how}" if how else "")


def _notice(summary: Mapping[str, Any], event: Mapping[str, Any]) -> str:
    least = summary["documented_minimum_notice_seconds"]
    documented = f"Azure documents at least {_span(least)}" if least else "no minimum is documented"
    if event.get("EventType"):
        documented += f" for {clean(event['EventType'], LONGEST_WORD)}"
    notice = summary["notice_seconds"]
    if notice is None:
        return f"not observed ({documented})"
    return f"{_span(max(0.0, notice))} ({documented})"


def _approved(summary: Mapping[str, Any]) -> str:
    text = clean(approver_text(summary), LONGEST_SENTENCE)
    if summary["approved_at"]:
        text += f", at {_instant(summary['approved_at'])}"
    attempts = summary["approval_attempts"]
    if attempts > 1 or (attempts and not summary["approved_at"]):
        text += f", {counted(attempts, 'request')} sent"
    return text


def _started(summary: Mapping[str, Any]) -> str:
    if not summary["started_at"]:
        return "not observed"
    if summary["started_at"] == summary["first_seen"]:
        return f"{_instant(summary['started_at'])}, when first seen"
    waited = summary["scheduled_duration_seconds"]
    after = f", {_span(waited)} after it was first seen" if waited is not None else ""
    return _instant(summary["started_at"]) + after


def _gone(summary: Mapping[str, Any]) -> str:
    lasted = summary["started_duration_seconds"]
    after = f", {_span(lasted)} after the start" if lasted is not None else ""
    return f"{_instant(summary['gone_at'])}{after}: {summary['outcome'] or UNKNOWN}{_last_state(summary)}"


def _last_state(summary: Mapping[str, Any]) -> str:
    """Return the last known state of an event whose completion wasn't observed; "" for a completed one."""
    if summary["outcome"] == TransitionKind.COMPLETED or not summary["last_status"]:
        return ""
    until = f", not before {_instant(summary['last_not_before'])}" if summary["last_not_before"] else ""
    return f" (last {summary['last_status']}{until})"


def _unseen(reasons: list[str]) -> str:
    return "; ".join(_UNSEEN.get(reason, clean(reason, LONGEST_WORD)) for reason in reasons[:LONGEST_LIST])


def _updates(summary: Mapping[str, Any]) -> str:
    updates, late = summary["updates"], summary["updates_while_started"]
    if not updates:
        return ""
    return counted(updates, "time") + (f", {late} of them while Started" if late else "")


def _evidence(evidence: Mapping[str, Any]) -> str:
    known = {"rebooted": {True: "this VM has booted since", False: "this VM has not booted since"}}
    facts = [
        known[name][value] if name in known and isinstance(value, bool) else f"{name} {brief(value)}"
        for name, value in list(evidence.items())[:LONGEST_LIST]
    ]
    return clean(", ".join(facts), LONGEST_SENTENCE)


# --- values of a record, whatever their type is -----------------------------------------------------------------------


def _span(seconds: float) -> str:
    """Return a duration with plain spaces."""
    return clean(span(seconds), LONGEST_WORD)


def _instant(text: str | None) -> str:
    """Return the instant in a record's text in UTC; other text unchanged."""
    if not text:
        return UNKNOWN
    try:
        return moment(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return text


def _short_id(subject: str) -> str:
    """Return a short form of an EventId: the first part of a UUID, or the beginning of other long text."""
    text = clean(subject, LONGEST_WORD)
    return text[:SHORT_ID] if _UUID.fullmatch(text) or len(text) > 2 * SHORT_ID else text


def _pad(text: str, width: int) -> str:
    return f"{clean(text, LONGEST_WORD):<{width}} "


def brief(value: object) -> str:
    """Return a field of an event, or of the evidence, as short text."""
    if isinstance(value, list):
        return clean(", ".join(map(str, value[:LONGEST_LIST])), LONGEST_SENTENCE) or "none"
    return "none" if value in (None, "") else clean(value, LONGEST_SENTENCE)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    """Return the number; None for another type, and for a number that not every output can represent."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < INT_LIMIT:
        return None
    return value


UNKNOWN: Final = "not known"
SHORTEST_INTERRUPTION: Final = f"≥\u00a0{THRESHOLD_SECONDS:g}\u00a0s"
"""The shortest interruption that the observer reports."""


def announced_duration(seconds: int | None) -> str:
    """Return the duration that Azure announces (`DurationInSeconds`; -1: unknown)."""
    if seconds is None or seconds < 0:
        return UNKNOWN
    return "none" if seconds == 0 else span(seconds)


def starter_text(started_by: str | None, rule: str = "") -> str:
    """Return what started an event (a value of `StartedBy`), with the rule if this agent approved it."""
    match started_by:
        case StartedBy.THIS_VM:
            return f"this VM (rule {rule})" if rule else "this VM"
        case StartedBy.OTHER:
            return "not by this VM, before NotBefore"
        case StartedBy.NOT_BEFORE:
            return "none: NotBefore passed"
        case _:
            return UNKNOWN


def approver_text(summary: Mapping[str, Any]) -> str:
    """Return what started or approved a closed event."""
    if summary["started_at"] is None and summary["approved_at"] is None:
        return "no approval observed"
    if summary["started_at"] is None or summary["started_by"] == StartedBy.THIS_VM:
        return starter_text(StartedBy.THIS_VM, summary["rule"] or "")
    return starter_text(summary["started_by"])


def observed_interruption(summary: Mapping[str, Any]) -> str:
    """Return the observed interruption of this VM. Never "0 s": shorter ones than the threshold aren't observed."""
    count, total = summary["interruptions_observed"], summary["interruption_seconds"]
    if count is None:
        return "not monitored"
    if not count or total is None:
        words = f"none observed ({SHORTEST_INTERRUPTION})"
    elif count == 1:
        words = span(total)
    else:
        words = f"{span(total)} in {count} interruptions, the longest {span(summary['interruption_longest_seconds'])}"
    if summary["gaps"]:
        gap = summary["gap_seconds"]
        words += "; not monitored for " + ("an unknown time" if gap is None else span(gap))
    return words
