"""Reads the inputs of `replay`: recordings, single documents, JSON lines of documents, scenarios; all become entries.

Inputs may be any files: sizes are capped, and a line that can't be read becomes an `Unreadable` entry.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from exporter.commands.replay.entries import (
    MAX_BODY,
    Began,
    Ended,
    Entry,
    Failed,
    FilesFound,
    IdentityKnown,
    Interrupted,
    Lost,
    Noted,
    OutboxKnown,
    PolicyKnown,
    Posted,
    Reading,
    Sent,
    Steady,
    Timed,
    Unreadable,
    read_time,
)
from exporter.config.load import PolicyRead, read_policy
from exporter.core.policy import Presence
from exporter.core.records import MAX_TAGS, VM_TEXTS, Tags, Vm
from exporter.files import WrongEncoding, in_utf8
from exporter.simulator.metadata import scenario
from exporter.simulator.metadata.scenario import Scenario, ScenarioError
from exporter.text.values import nearest, unknown_word

MAX_FILE: Final = 128 << 20
MAX_LINE: Final = 3 * MAX_BODY  # a body inside a JSON text is longer than it is alone
MAX_TEXT: Final = 256
MAX_SECONDS: Final = 1e9
"""Of an interruption: some 30 years. With more a time of this age is out of the calendar."""
_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"\s*")


class InputError(Exception):
    """An input that can't be read at all; the text is a sentence that names it."""


class NoScenarioError(Exception):
    """An input that is no file, and nearly the name of a scenario. The text is a sentence, and a list below it."""


class Input(Struct, frozen=True):
    """The content of one input: entries, or a scenario."""

    entries: tuple[Entry, ...] = ()
    scenario: Scenario | None = None


def read_input(name: str, standard_input: BinaryIO | None) -> Input:
    """Read a file, the scenario of that name, or standard input (`-`), None where it is closed.

    Raises `InputError` and `NoScenarioError`.
    """
    if name != "-" and not Path(name).exists() and name in scenario.names():
        return Input(scenario=scenario.load(name))
    if not Path(name).exists() and not Path(name).suffix and nearest(name, scenario.names()):
        raise NoScenarioError(unknown_word("scenario", name, scenario.names()))
    place = "standard input" if name == "-" else name
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
        # Damaged text costs the line it is in: a recording is torn where the machine went down.
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
    entries = tuple(_with_opening(_lines(name, content)))
    if not all(isinstance(entry, Unreadable) for entry in entries):
        return Input(entries)
    # No line is JSON: it is several documents in a row, or one answer that is no document.
    texts = list(_in_a_row(content))
    if len(texts) > 1 and isinstance(_json(texts[1]), dict):
        return Input(tuple(_entry(text, f"{name}, object {number}") for number, text in enumerate(texts, 1)))
    return Input((Reading(None, content[: MAX_BODY + 1], name),) if texts else ())


def _in_a_row(content: bytes) -> Iterator[bytes]:
    """The texts of JSON values one after the other, as of `curl` in a loop; what is left after the last comes last."""
    text = content.decode("utf-8-sig", "surrogateescape").strip()
    position = 0
    while position < len(text):
        try:
            _, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = len(text)
        yield text[position:end].encode("utf-8", "surrogateescape")
        position = end + len(match[0]) if (match := _SPACE.match(text, end)) else end


def _with_opening(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries of a file, with the document marked that it only begins with so that it can be read alone."""
    opening, noted = True, False
    for entry in entries:
        if opening and noted and isinstance(entry, Reading):
            yield replace(entry, opening=True)
        else:
            yield entry
        noted = isinstance(entry, Noted)
        opening = opening and noted


def _lines(name: str, content: bytes) -> Iterator[Entry]:
    for number, text in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if text.strip():
            yield _entry(text, f"{name}:{number}")


def _json(text: bytes) -> Any:
    try:
        return json.loads(text) if len(text) <= MAX_LINE else None
    except (ValueError, RecursionError):
        return None


class _Kept(Struct):
    """A document that was kept with its time beside it. Its text stays as it is: what the agent would refuse in it is
    refused here too."""

    document: msgspec.Raw
    time: str | None = None


def _entry(text: bytes, where: str) -> Entry:
    """One object: a document, alone or with its time beside it, or a line of a recording."""
    parsed = _json(text)
    if not isinstance(parsed, dict):
        too_long = f" of at most {MAX_LINE >> 20} MiB" if len(text) > MAX_LINE else ""
        return Unreadable(where, f"expected a JSON object{too_long}")
    if "document" in parsed:
        return _kept(text, where)
    if not ("read_at" in parsed or "at" in parsed):
        return Reading(None, text, where)
    at = read_time(parsed.get("read_at", parsed.get("at")))
    if at is None:
        return Unreadable(where, "its time can't be read")
    if "read_at" in parsed:
        return Steady(at, _times(parsed["same"])) if "same" in parsed else _reading(parsed, at, where)
    return _noted(parsed, at) or Unreadable(where, "not a line of a recording")


def _kept(text: bytes, where: str) -> Entry:
    try:
        kept = msgspec.json.decode(text, type=_Kept)
    except (msgspec.MsgspecError, RecursionError):
        return Unreadable(where, 'expected {"time": "...", "document": {...}}')
    at = read_time(kept.time)
    if kept.time is not None and at is None:
        return Unreadable(where, "its time can't be read")
    return Reading(at, bytes(kept.document), where)


def _times(value: object) -> int | None:
    """A number of times from 1 on; None for no such number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _reading(line: Mapping[str, Any], at: datetime, where: str) -> Entry:
    text, coded = line.get("body"), line.get("base64")
    if isinstance(text, str):
        return Reading(at, text.encode("utf-8", "replace"), where, recorded=True)
    try:
        return Reading(at, base64.b64decode(coded or "", validate=True), where, recorded=True)
    except (binascii.Error, ValueError, TypeError):
        return Unreadable(where, "its body can't be read")


def _noted(line: Mapping[str, Any], at: datetime) -> Timed | None:
    if isinstance(line.get("failure"), str):
        return Failed(at, _text(line["failure"]))
    if isinstance(line.get("post"), str):
        event_id, status = _text(line["post"]), line.get("status")
        if line.get("sent") is True:
            return Sent(at, event_id)
        return Posted(at, event_id, status if isinstance(status, int) else None, _text(line.get("reason")))
    if isinstance(interruption := line.get("interruption"), dict):
        seconds, kind = interruption.get("seconds"), interruption.get("kind")
        usable = isinstance(seconds, int | float) and abs(seconds) <= MAX_SECONDS and isinstance(kind, str)
        read = read_time(interruption.get("read_at"))
        return Interrupted(at, _text(kind), float(seconds or 0.0), read) if usable else None
    if isinstance(vm := line.get("vm"), dict):
        recorded = Vm(**{name: _text(vm.get(name)) for name in VM_TEXTS}, tags=_tags(vm.get("tags")))
        return IdentityKnown(at, recorded, line.get("conflict") is True, line.get("confirmed") is not False)
    if isinstance(line.get("ended"), dict):
        return Ended(at)
    if isinstance(began := line.get("began"), dict):
        return Began(at, _text(began.get("boot")), _text(began.get("version")), _policy(began.get("policy")))
    if "policy" in line:
        return PolicyKnown(at, _policy(line["policy"]))
    if isinstance(files := line.get("files"), dict):
        words = {presence.value: presence for presence in Presence}
        found = {path: words[word] for path, word in files.items() if isinstance(word, str) and word in words}
        return FilesFound(at, found)
    if (word := line.get("outbox")) in ("writable", "unwritable"):
        return OutboxKnown(at, word == "writable")
    lost = _times(line.get("lost"))
    return None if lost is None else Lost(at, lost)


def _text(value: object) -> str:
    """A text, cut to what is kept of one; "" for anything else."""
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _tags(value: object) -> Tags:
    """The tags of a VM in a recording; none of anything else."""
    if not isinstance(value, dict):
        return ()
    pairs = list(value.items())[:MAX_TAGS]
    return tuple((_text(name), _text(text)) for name, text in pairs)


def _policy(value: Any) -> PolicyRead:
    return _read_once(json.dumps(value))


@lru_cache(64)
def _read_once(text: str) -> PolicyRead:
    """A process that is started again and again writes the same policy each time."""
    return read_policy(json.loads(text))
