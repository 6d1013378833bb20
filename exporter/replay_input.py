"""What `replay` is given: recordings, single documents, JSON lines of documents, scenarios; all become `Entry` values.

Everything is somebody's file: sizes are capped, and a line that can't be read is an entry of its own that says so.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final

from exporter.events import MINIMUM_NOTICE, Document, DocumentError, parse_document
from exporter.lifecycle import Phase, phase_of
from exporter.records import Vm
from exporter.simulator import scenario
from exporter.simulator.platform import Approval, Platform
from exporter.simulator.story import Scenario, ScenarioError

MAX_FILE: Final = 128 << 20
MAX_BODY: Final = 4 << 20  # as the metadata client's
MAX_LINE: Final = 3 * MAX_BODY  # a body inside a JSON text is longer than it is alone
ACCEPTED: Final = 200
LEAST_NOTICE: Final = 30.0  # of a Spot VM's eviction, the shortest of all [Event scheduling]
MAX_TEXT: Final = 256
EARLIEST, LATEST = 1970, 2200  # years; outside of them sums of times may not fit


class InputError(Exception):
    """An input that can't be read at all; the text is a sentence that names it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A document was read. `at` is None while nobody knows when; `where` names the file and line."""

    at: datetime | None
    body: bytes
    where: str


@dataclass(frozen=True, slots=True)
class Steady:
    """Until then the document was read again and again, without a gap, and had not changed."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Failed:
    """From then on no poll succeeded."""

    at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Posted:
    """The agent asked for an approval. `status` is Azure's answer, None for none."""

    at: datetime
    event_id: str
    status: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Felt:
    """An interruption was noticed; `seconds` long."""

    at: datetime
    kind: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Known:
    """Who the VM is, as was known from then on."""

    at: datetime
    vm: Vm


@dataclass(frozen=True, slots=True)
class Began:
    """The agent started; `boot` names the boot of the machine, if that is known."""

    at: datetime
    boot: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is none of the others."""

    where: str
    detail: str


Timed = Steady | Failed | Posted | Felt | Known | Began
Entry = Reading | Timed | Unreadable


@dataclass(frozen=True, slots=True)
class Play:
    """Entries that belong together. `vm_name` is the scenario's own VM; `notes` is what a reader has to know."""

    entries: tuple[Entry, ...]
    title: str = ""
    vm_name: str = ""
    notes: tuple[str, ...] = ()
    scenario: Scenario | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What one input holds."""

    entries: tuple[Entry, ...] = ()
    scenario: Scenario | None = None


def read_input(name: str, standard_input: BinaryIO) -> Found:
    """What is in the file, the scenario of that name, or on standard input (`-`). Raises `InputError`."""
    if name != "-" and not Path(name).exists() and name in scenario.names():
        return Found(scenario=scenario.load(name))
    try:
        if name == "-":
            content = standard_input.read(MAX_FILE + 1)
        else:
            with open(name, "rb") as file:
                content = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise InputError(f"{name}: {reason}") from error
    if len(content) > MAX_FILE:
        raise InputError(f"{name}: larger than {MAX_FILE >> 20} MiB; give it in parts")
    return _content("standard input" if name == "-" else name, content)


def _content(name: str, content: bytes) -> Found:
    whole = _json(content) if len(content) <= MAX_LINE else None
    if isinstance(whole, dict) and scenario.is_scenario(whole):
        try:
            return Found(scenario=scenario.parse(Path(name).name.removesuffix(".json"), whole))
        except ScenarioError as error:
            raise InputError(str(error)) from error
    if isinstance(whole, dict):
        return Found((_entry(whole, content, name),))
    if isinstance(whole, list):
        return Found(tuple(_entry(item, json.dumps(item).encode(), f"{name}[{i}]") for i, item in enumerate(whole)))
    entries = tuple(_lines(name, content))
    if all(isinstance(entry, Unreadable) for entry in entries):
        # Not one line is JSON: then it was not meant as lines, and is one answer that is no document.
        return Found((Reading(None, content[: MAX_BODY + 1], name),) if content.strip() else ())
    return Found(entries)


def _lines(name: str, content: bytes) -> Iterator[Entry]:
    for number, text in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if not text.strip():
            continue
        where = f"{name}:{number}"
        found = _json(text) if len(text) <= MAX_LINE else None
        if isinstance(found, dict):
            yield _entry(found, text, where)
        elif len(text) > MAX_LINE:
            yield Unreadable(where, f"the line is longer than {MAX_LINE >> 20} MiB")
        else:
            yield Unreadable(where, "the line is not a JSON object")


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _entry(found: Any, text: bytes, where: str) -> Entry:
    """One object: a line of the recorder's, or a document as the metadata service gives it."""
    if not isinstance(found, dict) or not ("read_at" in found or "at" in found):
        return Reading(None, text, where)
    at = read_time(found.get("read_at", found.get("at")))
    if at is None:
        return Unreadable(where, "its time can't be read")
    if "read_at" in found:
        return Steady(at) if "same" in found else _reading(found, at, where)
    return _noted(found, at) or Unreadable(where, "not a line of a recording")


def _reading(found: Mapping[str, Any], at: datetime, where: str) -> Entry:
    text, coded = found.get("body"), found.get("base64")
    if isinstance(text, str):
        return Reading(at, text.encode("utf-8", "replace"), where)
    try:
        return Reading(at, base64.b64decode(coded or "", validate=True), where)
    except (binascii.Error, ValueError, TypeError):
        return Unreadable(where, "its body can't be read")


def _noted(found: Mapping[str, Any], at: datetime) -> Timed | None:
    if isinstance(reason := found.get("failure"), str):
        return Failed(at, reason[:MAX_TEXT])
    if isinstance(event_id := found.get("post"), str):
        status = found.get("status")
        reason = found.get("reason")
        return Posted(
            at,
            event_id[:MAX_TEXT],
            status if isinstance(status, int) else None,
            reason[:MAX_TEXT] if isinstance(reason, str) else "",
        )
    if isinstance(felt := found.get("interruption"), dict):
        seconds, kind = felt.get("seconds"), felt.get("kind")
        usable = isinstance(seconds, int | float) and math.isfinite(seconds) and isinstance(kind, str)
        return Felt(at, str(kind)[:MAX_TEXT], float(seconds or 0.0)) if usable else None
    if isinstance(vm := found.get("vm"), dict):
        known = {field.name: vm.get(field.name) for field in fields(Vm)}
        return Known(at, Vm(**{name: text[:MAX_TEXT] for name, text in known.items() if isinstance(text, str)}))
    if isinstance(began := found.get("began"), dict):
        boot = began.get("boot")
        return Began(at, boot[:MAX_TEXT] if isinstance(boot, str) else "")
    return None


def read_time(text: object) -> datetime | None:
    """An instant of this age from RFC 3339, in UTC; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
        at = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return at if EARLIEST <= at.year <= LATEST else None


# -- when


def plays(found: Sequence[Found], poll_interval: float, start: datetime | None, now: datetime) -> list[Play]:
    """Recordings and documents as one play, each scenario as one of its own; every reading with its time."""
    recorded = [item for item in found if item.scenario is None]
    if all(_first_time(item) for item in recorded):
        # The files of one recording are numbered from the newest to the oldest.
        recorded.sort(key=lambda item: _first_time(item) or now)
    entries = [entry for item in recorded for entry in item.entries]
    made = [_timed(entries, timedelta(seconds=poll_interval), start, now)] if entries else []
    return made + [played(item.scenario, poll_interval, start) for item in found if item.scenario is not None]


def _first_time(item: Found) -> datetime | None:
    return next((entry.at for entry in item.entries if not isinstance(entry, Unreadable) and entry.at), None)


def _timed(entries: list[Entry], interval: timedelta, start: datetime | None, now: datetime) -> Play:
    """The entries, with a time for those that have none: one poll interval after what stands before them."""
    untimed = [entry for entry in entries if isinstance(entry, Reading) and entry.at is None]
    last: datetime | None = None
    timed: list[Entry] = []
    for entry in entries:
        made = entry
        if isinstance(entry, Reading) and entry.at is None:
            made = replace(entry, at=last + interval if last else start or _assumed_start(untimed, interval, now))
        timed.append(made)
        last = last if isinstance(made, Unreadable) else made.at
    notes = (_assumption(timed, untimed, start),) if untimed else ()
    return Play(tuple(timed), notes=notes)


def _assumption(timed: list[Entry], untimed: list[Reading], start: datetime | None) -> str:
    first = next((entry.at for entry in timed if isinstance(entry, Reading)), None)
    when = f"{first:%Y-%m-%d %H:%M:%SZ}" if first else "now"
    known = "" if start else " (--start says another)"
    return (
        f"{len(untimed)} document{'s' * (len(untimed) != 1)} without a time: assumed to have been read one poll "
        f"interval apart, the first at {when}{known}"
    )


def _assumed_start(readings: Sequence[Reading], interval: timedelta, now: datetime) -> datetime:
    """So that the last is read now; or, where the first announced start has passed, as early as it was announced."""
    latest = now - interval * (len(readings) - 1)
    announced = [
        event.not_before - timedelta(seconds=MINIMUM_NOTICE.get(event.event_type or "", LEAST_NOTICE))
        for document in map(_document, readings)
        for event in (document.events if document else ())
        if event.not_before is not None and event.not_before.year >= EARLIEST and phase_of(event) is Phase.SCHEDULED
    ]
    return min([latest, *announced])


def _document(reading: Reading) -> Document | None:
    try:
        return parse_document(reading.body)
    except DocumentError:
        return None


def played(story: Scenario, poll_interval: float, start: datetime | None, approvals: Sequence[Approval] = ()) -> Play:
    """The scenario as the agent would read it, and its approvals as it would have sent them."""
    platform = Platform(story, start or story.start)
    timeline, interval = platform.timeline(approvals), timedelta(seconds=poll_interval)
    entries: list[Entry] = []
    silent = False
    for change in timeline:
        if entries and not silent:
            entries.append(Steady(change.at - interval))
        if change.silent and not silent:
            entries.append(Failed(change.at, "timeout"))
        silent = change.silent
        if not silent:
            body = json.dumps(change.document()).encode()
            entries.append(Reading(change.at, body, f"scenario {story.name}"))
    end = platform.end(timeline)
    if not silent and end > timeline[-1].at:
        entries.append(Steady(end))
    for approval in approvals:
        entries += [Steady(approval.at), Posted(approval.at, approval.event_id, ACCEPTED)]
    entries.sort(key=lambda entry: getattr(entry, "at", platform.start))  # stable: what was read comes before the POST
    note = "the simulated Azure takes the approvals that the rules would send" if approvals else "nobody approves"
    title = f"scenario {story.name}: {story.description}"
    return Play(tuple(entries), title, story.vms[0].name, (f"a story: {note}",), story)
