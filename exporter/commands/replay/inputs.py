"""Reads the inputs of `replay` (recordings, documents, JSON lines of documents, scenarios) and makes plans of them.

A plan contains entries that belong together, with assumed times for documents that have none. Inputs may be any files:
sizes are limited, and an unreadable line becomes an `Unreadable` entry.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from exporter.commands.replay import entries
from exporter.config.load import PolicyRead, read_policy
from exporter.core.document import MINIMUM_NOTICE, Document, DocumentError, parse_document
from exporter.core.lifecycle import phase_of
from exporter.core.policy import Presence
from exporter.core.records import MAX_TAGS, VM_TEXTS, Tags, Vm
from exporter.core.state import Phase
from exporter.files import WrongEncoding, in_utf8
from exporter.simulator.metadata import scenario
from exporter.simulator.metadata.platform import AcceptedStartRequest, Platform
from exporter.simulator.metadata.scenario import Scenario, ScenarioError
from exporter.text.format import counted
from exporter.text.values import nearest, unknown_word

MAX_FILE: Final = 128 << 20
MAX_LINE: Final = 3 * entries.MAX_BODY  # JSON escapes make a body longer
MAX_TEXT: Final = 256
MAX_SECONDS: Final = 1e9
"""Limit of an interruption, about 30 years: larger values could overflow a time."""
_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"\s*")


class InputError(Exception):
    """An unreadable input; the message names it."""


class Input(Struct, frozen=True):
    """The content of one input: entries, or a scenario."""

    entries: tuple[entries.Entry, ...] = ()
    scenario: Scenario | None = None


def read_input(name: str, standard_input: BinaryIO | None) -> Input:
    """Read a file, the scenario of that name, or standard input (`-`); `standard_input` None: it is closed.

    Raises `InputError`, and `ScenarioError` if there is no such file and the name is similar to a scenario's.
    """
    if name != "-" and not Path(name).exists() and name in scenario.names():
        return Input(scenario=scenario.load(name))
    if not Path(name).exists() and not Path(name).suffix and nearest(name, scenario.names()):
        raise ScenarioError(unknown_word("scenario", name, scenario.names()))
    place = "standard input" if name == "-" else name
    if os.path.isdir(name):
        raise InputError(f"{name}: a directory; use the paths of the files in it")
    try:
        if name == "-":
            if standard_input is None:
                raise InputError("standard input is closed")
            content = standard_input.read(MAX_FILE + 1)
        else:
            with open(name, "rb") as file:
                content = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise InputError(f"{name}: {reason}") from error
    if len(content) > MAX_FILE:
        raise InputError(f"{name}: larger than {MAX_FILE >> 20} MiB; give it in parts")
    try:
        # Damaged text affects only its line: a recording is torn if the machine crashes.
        return _content(place, in_utf8(content, errors="replace"))
    except WrongEncoding as error:
        raise InputError(f"{place}: {error}") from None


def _content(name: str, content: bytes) -> Input:
    whole = _json(content)
    if isinstance(whole, dict) and scenario.is_scenario(whole):
        try:
            return Input(scenario=scenario.parse(Path(name).name.removesuffix(".json"), whole))
        except ScenarioError as error:
            raise InputError(str(error)) from error
    if isinstance(whole, dict):
        return Input((_entry(content, name),))
    found = tuple(_with_opening(_lines(name, content)))
    if not all(isinstance(entry, entries.Unreadable) for entry in found):
        return Input(found)
    # No line is JSON: several documents in a row, or one response that isn't a document.
    texts = list(_in_a_row(content))
    if len(texts) > 1 and isinstance(_json(texts[1]), dict):
        return Input(tuple(_entry(text, f"{name}, object {number}") for number, text in enumerate(texts, 1)))
    return Input((entries.DocumentReading(None, content[: entries.MAX_BODY + 1], name),) if texts else ())


def _in_a_row(content: bytes) -> Iterator[bytes]:
    """Yield the texts of concatenated JSON values, as from `curl` in a loop, and then the rest of the text."""
    text = content.decode("utf-8-sig", "surrogateescape").strip()
    position = 0
    while position < len(text):
        try:
            _, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = len(text)
        yield text[position:end].encode("utf-8", "surrogateescape")
        position = end + len(match[0]) if (match := _SPACE.match(text, end)) else end


def _with_opening(found: Iterable[entries.Entry]) -> Iterator[entries.Entry]:
    """Yield the entries of a file, marking the document that only repeats the end of the file before it."""
    opening, noted = True, False
    for entry in found:
        if opening and noted and isinstance(entry, entries.DocumentReading):
            yield replace(entry, opening=True)
        else:
            yield entry
        noted = isinstance(entry, entries.Noted)
        opening = opening and noted


def _lines(name: str, content: bytes) -> Iterator[entries.Entry]:
    for number, text in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if text.strip():
            yield _entry(text, f"{name}:{number}")


def _json(text: bytes) -> Any:
    try:
        return json.loads(text) if len(text) <= MAX_LINE else None
    except (ValueError, RecursionError):
        return None


class _Kept(Struct):
    """A document with its time. The text is kept as it is, so that errors in it are rejected as by the agent."""

    document: msgspec.Raw
    time: str | None = None


def _entry(text: bytes, where: str) -> entries.Entry:
    """Return the entry of one object: a document, with or without a time, or a line of a recording."""
    parsed = _json(text)
    if not isinstance(parsed, dict):
        too_long = f" of at most {MAX_LINE >> 20} MiB" if len(text) > MAX_LINE else ""
        return entries.Unreadable(where, f"expected a JSON object{too_long}")
    if "document" in parsed:
        return _kept(text, where)
    if not ("read_at" in parsed or "at" in parsed):
        return entries.DocumentReading(None, text, where)
    at = entries.read_time(parsed.get("read_at", parsed.get("at")))
    if at is None:
        return entries.Unreadable(where, "its time can't be read")
    if "read_at" in parsed:
        return entries.Steady(at, _count(parsed["same"])) if "same" in parsed else _reading(parsed, at, where)
    return _noted(parsed, at) or entries.Unreadable(where, "not a line of a recording")


def _kept(text: bytes, where: str) -> entries.Entry:
    try:
        kept = msgspec.json.decode(text, type=_Kept)
    except (msgspec.MsgspecError, RecursionError):
        return entries.Unreadable(where, 'expected {"time": "...", "document": {...}}')
    at = entries.read_time(kept.time)
    if kept.time is not None and at is None:
        return entries.Unreadable(where, "its time can't be read")
    return entries.DocumentReading(at, bytes(kept.document), where)


def _count(value: object) -> int | None:
    """Return a positive integer; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _reading(line: Mapping[str, Any], at: datetime, where: str) -> entries.Entry:
    text, coded = line.get("body"), line.get("base64")
    if isinstance(text, str):
        return entries.DocumentReading(at, text.encode("utf-8", "replace"), where, recorded=True)
    try:
        return entries.DocumentReading(at, base64.b64decode(coded or "", validate=True), where, recorded=True)
    except (binascii.Error, ValueError, TypeError):
        return entries.Unreadable(where, "its body can't be read")


def _noted(line: Mapping[str, Any], at: datetime) -> entries.Timed | None:
    if isinstance(line.get("failure"), str):
        return entries.Failed(at, _text(line["failure"]))
    if isinstance(line.get("post"), str):
        event_id, status = _text(line["post"]), line.get("status")
        if line.get("sent") is True:
            return entries.Sent(at, event_id)
        return entries.Posted(at, event_id, status if isinstance(status, int) else None, _text(line.get("reason")))
    if isinstance(interruption := line.get("interruption"), dict):
        seconds, kind = interruption.get("seconds"), interruption.get("kind")
        usable = isinstance(seconds, int | float) and abs(seconds) <= MAX_SECONDS and isinstance(kind, str)
        handled = entries.read_time(interruption.get("handled_at"))
        return entries.RecordedInterruption(at, _text(kind), float(seconds or 0.0), handled) if usable else None
    if isinstance(vm := line.get("vm"), dict):
        recorded = Vm(**{name: _text(vm.get(name)) for name in VM_TEXTS}, tags=_tags(vm.get("tags")))
        return entries.IdentityKnown(at, recorded, line.get("conflict") is True, line.get("confirmed") is not False)
    if isinstance(line.get("ended"), dict):
        return entries.Ended(at)
    if isinstance(began := line.get("began"), dict):
        return entries.Began(at, _text(began.get("boot")), _text(began.get("version")), _policy(began.get("policy")))
    if "policy" in line:
        return entries.PolicyKnown(at, _policy(line["policy"]))
    if isinstance(files := line.get("files"), dict):
        known = {presence.value: presence for presence in Presence}
        found = {path: known[value] for path, value in files.items() if isinstance(value, str) and value in known}
        return entries.FilesFound(at, found)
    if (outbox := line.get("outbox")) in ("writable", "unwritable"):
        return entries.OutboxKnown(at, outbox == "writable")
    lost = _count(line.get("lost"))
    return None if lost is None else entries.Lost(at, lost)


def _text(value: object) -> str:
    """Return a text, truncated to `MAX_TEXT`; "" for anything else."""
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _tags(value: object) -> Tags:
    """Return the tags of a VM in a recording; empty for anything else."""
    if not isinstance(value, dict):
        return ()
    pairs = list(value.items())[:MAX_TAGS]
    return tuple((_text(name), _text(text)) for name, text in pairs)


def _policy(value: Any) -> PolicyRead:
    return _read_once(json.dumps(value))


@lru_cache(64)
def _read_once(text: str) -> PolicyRead:
    """Parse a policy, with a cache: a restarting process records the same policy each time."""
    return read_policy(json.loads(text))


LEAST_NOTICE: Final = 30.0  # a Spot VM's eviction, the shortest [Azure, Scheduled Events: Event scheduling]


class ReplayPlan(Struct, frozen=True):
    """Entries that belong together. `vm_name` is the scenario's own VM; `notes` are the assumptions to print."""

    entries: tuple[entries.Entry, ...]
    title: str = ""
    vm_name: str = ""
    notes: tuple[str, ...] = ()
    scenario: Scenario | None = None


def replay_plans(inputs: Sequence[Input], poll_interval: float, now: datetime) -> list[ReplayPlan]:
    """Return one plan for all recordings and documents, and one for each scenario; every reading has a time."""
    recorded = [item for item in inputs if item.scenario is None]
    if all(_times(item) for item in recorded if item.entries):  # an empty file has no times
        # A recording's files are numbered from the newest to the oldest. Several may begin with the same time.
        recorded.sort(key=lambda item: ((times := _times(item) or [now])[-1], times[0]))
    found = [entry for item in recorded for entry in item.entries]
    made = [_timed(found, timedelta(seconds=poll_interval), now)] if found else []
    return made + [scenario_plan(item.scenario, poll_interval) for item in inputs if item.scenario is not None]


def _times(item: Input) -> list[datetime]:
    return [at for entry in item.entries if (at := _time_of(entry))]


def _time_of(entry: entries.Entry) -> datetime | None:
    return None if isinstance(entry, entries.Unreadable) else entry.at


def _timed(found: list[entries.Entry], interval: timedelta, now: datetime) -> ReplayPlan:
    """Return a plan in which entries without a time follow the entry before them by one poll interval."""
    untimed = [entry for entry in found if isinstance(entry, entries.DocumentReading) and entry.at is None]
    last: datetime | None = None
    timed: list[entries.Entry] = []
    for entry in found:
        made = entry
        if isinstance(entry, entries.DocumentReading) and entry.at is None:
            made = replace(entry, at=last + interval if last else _assumed_start(untimed, interval, now))
        timed.append(made)
        last = last if isinstance(made, entries.Unreadable) else made.at
    notes = (_assumption(timed, untimed),) if untimed else ()
    return ReplayPlan(tuple(timed), notes=notes)


def _assumption(timed: list[entries.Entry], untimed: list[entries.DocumentReading]) -> str:
    first = next((entry.at for entry in timed if isinstance(entry, entries.DocumentReading)), None)
    when = f"{first:%Y-%m-%d %H:%M:%SZ}" if first else "now"
    return (
        f"{counted(len(untimed), 'document')} without a time: assumed to have been read one poll "
        f"interval apart, the first at {when}"
    )


def _assumed_start(readings: Sequence[entries.DocumentReading], interval: timedelta, now: datetime) -> datetime:
    """Return the assumed time of the first document.

    The last document is then read now, or earlier if Azure must have announced a NotBefore earlier.
    """
    latest = now - interval * (len(readings) - 1)
    announced = [
        event.not_before - timedelta(seconds=MINIMUM_NOTICE.get(event.event_type or "", LEAST_NOTICE))
        for document in (_document(reading.body) for reading in readings)
        for event in (document.events if document else ())
        if event.not_before is not None
        and event.not_before.year >= entries.EARLIEST
        and phase_of(event) is Phase.SCHEDULED
    ]
    return min([latest, *announced])


def _document(body: bytes) -> Document | None:
    try:
        return parse_document(body)
    except DocumentError:
        return None


def scenario_plan(
    scenario: Scenario, poll_interval: float, approvals: Sequence[AcceptedStartRequest] = ()
) -> ReplayPlan:
    """Return the plan of a scenario as an agent would read it, with the approvals that the agent sends."""
    platform = Platform(scenario, scenario.start)
    timeline, interval = platform.timeline(approvals), timedelta(seconds=poll_interval)
    made: list[entries.Entry] = []
    silent = False
    for change in timeline:
        if made and not silent:
            made.append(entries.Steady(change.at - interval))
        if change.silent and not silent:
            made.append(entries.Failed(change.at, "timeout"))
        silent = change.silent
        if not silent:
            body = json.dumps(change.document()).encode()
            made.append(entries.DocumentReading(change.at, body, f"scenario {scenario.name}"))
    end = platform.end(timeline)
    if not silent and end > timeline[-1].at:
        made.append(entries.Steady(end))
    for approval in approvals:
        made += [entries.Steady(approval.at), entries.Posted(approval.at, approval.event_id, entries.ACCEPTED)]
    made.sort(key=lambda entry: _time_of(entry) or platform.start)  # stable: documents come before the POST
    note = "Azure accepts the approvals of the rules" if approvals else "no event is approved"
    title = f"scenario {scenario.name}: {scenario.description}"
    return ReplayPlan(tuple(made), title, scenario.vms[0].name, (f"simulation: {note}",), scenario)
