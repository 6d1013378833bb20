"""Records as a person reads them: one record one line, and the account of an event that is over as a few lines.

    2026-03-02 09:00:20Z  !  vm-1  scheduled          6a8c1f0e  Reboot of this VM is scheduled, not before ...

Records may come from anywhere that somebody else can write to: nothing in them is trusted (`timeline_words`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from exporter.lifecycle import CLOSING, StartedBy
from exporter.records import Record
from exporter.timeline_account import account_lines
from exporter.timeline_words import (
    LONGEST_LIST,
    LONGEST_SENTENCE,
    LONGEST_WORD,
    SHORT_ID,
    brief,
    clean,
    mapping_of,
    moment,
    number_of,
    pad,
    short_id,
    span,
    word_of,
)

MARKS: Final[Mapping[str, str]] = {"INFO": " ", "WARN": "!", "ERROR": "X"}
KIND_WIDTH: Final = 20

_RESET: Final = "\x1b[0m"
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
