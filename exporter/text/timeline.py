"""Records as a person reads them: one record one line, and the account of an event that is over as a few lines.

    2026-03-02 09:00:20Z  !  vm-1  scheduled          6a8c1f0e  Reboot of this VM is scheduled, not before ...

Records may come from anywhere that somebody else can write to: nothing in them is trusted (`timeline_words`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from exporter.core.records import Record
from exporter.core.state import CLOSING, StartedBy
from exporter.text import sentences as page_words
from exporter.text.format import (
    LONGEST_LIST,
    LONGEST_SENTENCE,
    LONGEST_WORD,
    SHORT_ID,
    brief,
    clean,
    mapping_of,
    moment,
    moment_of,
    number_of,
    pad,
    short_id,
    span,
    word_of,
)

LABEL_WIDTH: Final = 12
_RESET: Final = "\x1b[0m"
_DIM: Final = "\x1b[2m"

_SEEN: Final[Mapping[str, str]] = {
    "unbroken": "as soon as it was there",
    "gap": "after a gap in our sight: it may have been there for longer",
    "agent_start": "when the agent started: it may have been there for longer",
}
_UNSEEN: Final[Mapping[str, str]] = {
    "restart": "the agent was not running",
    "gap": "too long between two answers",
    "number-restarted": "Azure's number of the document started again",
    "number-skipped": "a document in between was missed",
    "number-unchanged": "the document changed without a new number",
    "unknown-status": "its last status is not known to this version",
    "was-started": "it had been Started before, so it may have run",
    "approved": "it was approved, so it may have run",
    "approval-unanswered": "an approval was sent and not answered, so it may have run",
    "not-before-unknown": "its NotBefore was not known",
    "not-before-passed": "its NotBefore had passed, so it may have run",
    "replaced": "the same came Started under a new id in its place",
    "not-this-vm": "it is an event of other VMs alone, and goes on without this one",
}


def account_lines(
    account: Mapping[str, Any],
    event: Mapping[str, Any] | None = None,
    evidence: Mapping[str, Any] | None = None,
    *,
    own: bool = True,
    colour: bool = False,
) -> list[str]:
    """The story of an event that is over, from the `account` of its closing record. Any missing part is "not known".

    `own` is False for an event of other VMs, which this one can't have felt.
    """
    story = _checked(account)
    said = mapping_of(event)
    rows = [
        ("Azure said", _description(said)),
        ("first seen", _first_seen(story)),
        ("notice", _notice(story, said)),
        ("approved by", _approved(story)),
        ("started", _started(story)),
        ("gone", _gone(story)),
        ("not seen", _list(story["unseen"], _UNSEEN)),
        ("evidence", _evidence(mapping_of(evidence))),
        ("changed", _updates(story)),
        ("announced", clean(page_words.duration(story["announced_duration_seconds"]), LONGEST_SENTENCE)),
        ("felt", clean(page_words.felt(story), LONGEST_SENTENCE) if own else ""),
    ]
    dim, reset = (_DIM, _RESET) if colour else ("", "")
    return [f"    {dim}{pad(label, LABEL_WIDTH)}{reset}{text}" for label, text in rows if text]


_SPANS: Final = (
    "documented_minimum_notice_seconds",
    "waited_seconds",
    "started_seconds",
    "gap_seconds",
    "interruption_seconds",
    "interruption_longest_seconds",
)
_COUNTS: Final = ("approval_attempts", "updates", "updates_while_started", "gaps")
_TEXTS: Final = ("first_seen", "seen_before", "approved_at", "rule", "started_at", "gone_at", "outcome")


def _checked(account: Mapping[str, Any]) -> dict[str, Any]:
    """The account with every key there and of its type: what is not becomes None, or 0 for a count."""
    found: dict[str, Any] = {name: _span_of(account.get(name)) for name in _SPANS}
    found["notice_seconds"] = number_of(account.get("notice_seconds"))
    found |= {name: int(number_of(account.get(name)) or 0) for name in _COUNTS}
    found |= {name: clean(account[name], LONGEST_WORD) if account.get(name) else None for name in _TEXTS}
    who = account.get("approved_by")
    duration = number_of(account.get("announced_duration_seconds"))
    unseen = account.get("unseen")
    observed = number_of(account.get("interruptions_observed"))
    return found | {
        "approved_by": who if who in list(StartedBy) else None,
        "announced_duration_seconds": None if duration is None else int(duration),
        "unseen": [word_of(word) for word in unseen] if isinstance(unseen, list | tuple) else [],
        "interruptions_observed": None if observed is None else int(observed),
        "interruption_longest_seconds": found["interruption_longest_seconds"] or 0.0,
    }


def _span_of(value: object) -> float | None:
    """What took less than no time was measured by a clock that was set back, as the first version did."""
    seconds = number_of(value)
    return seconds if seconds is not None and seconds >= 0 else None


def _description(event: Mapping[str, Any]) -> str:
    return clean(event.get("Description") or "", LONGEST_SENTENCE)


def _first_seen(story: Mapping[str, Any]) -> str:
    how = _SEEN.get(story["seen_before"] or "")
    return moment_of(story["first_seen"]) + (f", {how}" if how else "")


def _notice(story: Mapping[str, Any], event: Mapping[str, Any]) -> str:
    least = story["documented_minimum_notice_seconds"]
    documented = f"Azure documents at least {span(least)}" if least else "no minimum is documented"
    if event.get("EventType"):
        documented += f" for {clean(event['EventType'], LONGEST_WORD)}"
    notice = story["notice_seconds"]
    if notice is None:
        return f"none seen ({documented})"
    return f"{span(max(0.0, notice))} ({documented})"


def _approved(story: Mapping[str, Any]) -> str:
    say = clean(page_words.approved_by(story), LONGEST_SENTENCE)
    if story["approved_at"]:
        say += f", at {moment_of(story['approved_at'])}"
    attempts = story["approval_attempts"]
    if attempts > 1 or (attempts and not story["approved_at"]):
        say += f", {attempts} sent"
    return say


def _started(story: Mapping[str, Any]) -> str:
    if not story["started_at"]:
        return "not seen"
    if story["started_at"] == story["first_seen"]:
        return f"{moment_of(story['started_at'])}, at first sight"
    waited = story["waited_seconds"]
    return moment_of(story["started_at"]) + (f", {span(waited)} after the first sight" if waited is not None else "")


def _gone(story: Mapping[str, Any]) -> str:
    lasted = story["started_seconds"]
    after = f", {span(lasted)} after it had started" if lasted is not None else ""
    return f"{moment_of(story['gone_at'])}{after}: {story['outcome'] or page_words.UNKNOWN}"


def _updates(story: Mapping[str, Any]) -> str:
    updates, late = story["updates"], story["updates_while_started"]
    if not updates:
        return ""
    return f"{updates} time{'s' * (updates != 1)}" + (f", {late} of them while Started" if late else "")


def _evidence(evidence: Mapping[str, Any]) -> str:
    known = {"rebooted": {True: "this VM has booted since", False: "this VM has not booted since"}}
    found = [
        known[name][value] if name in known and isinstance(value, bool) else f"{name} {brief(value)}"
        for name, value in list(evidence.items())[:LONGEST_LIST]
    ]
    return clean(", ".join(found), LONGEST_SENTENCE)


def _list(words: list[str], known: Mapping[str, str]) -> str:
    return "; ".join(known.get(word, clean(word, LONGEST_WORD)) for word in words[:LONGEST_LIST])


MARKS: Final[Mapping[str, str]] = {"INFO": " ", "WARN": "!", "ERROR": "X"}
KIND_WIDTH: Final = 20

_COLOURS: Final[Mapping[str, str]] = {"INFO": "\x1b[36m", "WARN": "\x1b[33m", "ERROR": "\x1b[31m"}
_GREEN: Final = "\x1b[32m"
_PRECISE: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)\.\d{1,9}Z")
_STARTED: Final[Mapping[str, str]] = {
    StartedBy.US: "after our approval",
    StartedBy.NOT_US: "before its time and not by us: somebody else approved it",
    StartedBy.TIME: "its time had come",
}


def line(record: Record, colour: bool = False) -> str:
    """One line: time in UTC, severity (`!` a warning, `X` an error), VM, kind, type and short id, sentence."""
    data = record.data
    vm, event = mapping_of(data.get("vm")), mapping_of(data.get("event"))
    mark, kind = MARKS.get(record.severity, "?"), pad(record.kind, KIND_WIDTH)
    if colour:
        paint = _GREEN if record.kind == "completed" else _COLOURS.get(record.severity, "")
        mark, kind = f"{paint}{mark}{_RESET}", f"{paint}{kind}{_RESET}"
    name = clean(vm.get("name") or "-", LONGEST_WORD)
    about = short_id(record.subject) if event else "-"
    return f"{moment(record.time)}  {mark}  {name}  {kind}{pad(about, SHORT_ID + 2)}{told(record)}"


def told(record: Record) -> str:
    """The record's own sentence, with what a person asks next."""
    data = record.data
    say = clean(data.get("message") or record.kind, LONGEST_SENTENCE)
    say = _PRECISE.sub(r"\1 \2Z", say).replace(clean(record.subject, LONGEST_SENTENCE), short_id(record.subject))
    started = _STARTED.get(word_of(data.get("approved_by"))) if record.kind == "started" else None
    notice = number_of(data.get("notice_seconds"))
    if record.kind == "scheduled" and notice is not None:
        say += f" (in {span(notice)})" if notice > 0 else " (due)"
    if started:
        say += f" ({started})"
    if record.kind == "updated":
        say += _changes(mapping_of(data.get("changed")))
    return say


def _changes(changed: Mapping[str, Any]) -> str:
    """What the fields were and are; long texts are not repeated."""
    found = []
    for name, value in list(changed.items())[:LONGEST_LIST]:
        pair = mapping_of(value)
        old, new = (brief(pair.get(side)) for side in ("from", "to"))
        if len(old) + len(new) <= LONGEST_WORD:
            found.append(f"{clean(name, LONGEST_WORD)} {old} -> {new}")
    return f" ({'; '.join(found)})" if found else ""


def record_lines(record: Record, colour: bool = False) -> list[str]:
    """`line`, and for a closing record its account below."""
    account = record.data.get("account")
    if record.kind not in {kind.value for kind in CLOSING} or not isinstance(account, Mapping):
        return [line(record, colour)]
    data = record.data
    event, evidence = mapping_of(data.get("event")), mapping_of(data.get("evidence"))
    own = data.get("affects_self") is not False
    return [line(record, colour), *account_lines(account, event, evidence, own=own, colour=colour)]
