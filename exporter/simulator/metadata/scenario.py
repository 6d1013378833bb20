"""Scenario files: what the simulated platform is going to do, as data.

A file is one JSON object (`scenarios/README.md` says the same to users):

    description   one sentence for `--list`
    vms           the VMs: names, or objects with `name` and any string field of `compute`; the service
                  answers as the first unless told otherwise
    steps         what the platform does, each with a time and an action:
                    at          since the start, or
                    after       "LABEL announced|approved|started|gone", with `wait` (0) since that moment; steps
                                whose moment never comes are not taken
                    do          announce | change | start | cancel | end | switch-off
                    event       the label of the event, for this file alone
                    fields      Azure's own fields, as published (`announce`, `change`, and `start` of an event never
                                announced: a host failure)
                    notice      announcement to NotBefore, in `change` from the change on
                    lasts       Started to gone: impact and clean-up (10m); for `switch-off` how long nothing answers
                    start_after_approval   approval to Started (1s)
                    waits_for_all          true: an approval alone starts nothing, other tenants have to agree ...
                    others_approve_after   ... which they do so long after the announcement (absent: never)
                    malformed   true: `fields` go out as they are, unchecked, over whatever the platform would say
    incarnation   the first DocumentIncarnation (1)
    start         the instant to play it from where no clock is at hand (RFC 3339)
    length        the least length of the play

Times and durations are seconds as numbers, or text such as "90s", "15m", "1h30m", "7d". Steps that find nothing to do
(a cancel of an event already started, say) do nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from exporter.capped_file import TooLarge, WrongEncoding, in_utf8, read_capped
from exporter.core.folding import folded
from exporter.simulator.metadata.story import (
    DEFAULT_START,
    USUAL_DURATION,
    Action,
    Phase,
    Scenario,
    ScenarioError,
    Step,
    Vm,
)
from exporter.text.format import parse_duration
from exporter.text.values import nearest
from exporter.text.width import listed

MAX_BYTES = 1024 * 1024
_LONGEST = 366 * 86400.0
_Word = TypeVar("_Word", bound=StrEnum)
_FILE_KEYS = frozenset({"description", "vms", "steps", "incarnation", "start", "length"})
_TIMES = frozenset({"at", "wait", "notice", "lasts", "start_after_approval", "others_approve_after"})
_STEP_KEYS = _TIMES | {"after", "do", "event", "fields", "waits_for_all", "malformed"}
_FIELD_TYPES: Mapping[str, type] = {
    "EventType": str,
    "ResourceType": str,
    "Description": str,
    "EventSource": str,
    "DurationInSeconds": int,
}


def names() -> tuple[str, ...]:
    """The scenarios that ship with the package, in alphabetical order."""
    files = (resources.files(__package__) / "scenarios").iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


def load(name_or_path: str) -> Scenario:
    """The shipped scenario of that name, or the one in that file. ScenarioError says what is wrong with it."""
    if name_or_path in names():
        return parse(name_or_path, (resources.files(__package__) / "scenarios" / f"{name_or_path}.json").read_bytes())
    path = Path(name_or_path)
    try:
        body = in_utf8(read_capped(path, MAX_BYTES))
    except WrongEncoding as error:
        raise ScenarioError(f"{path.name.removesuffix('.json')}: {error}") from error
    except TooLarge as error:
        raise ScenarioError(f"{path.name.removesuffix('.json')}: larger than {MAX_BYTES} bytes") from error
    except OSError as error:
        reason = error.strerror or "not readable"
        raise ScenarioError(f"no scenario {name_or_path!r} ({reason}){_others(name_or_path)}") from error
    return parse(path.name.removesuffix(".json"), body)


def _others(name: str) -> str:
    """What is shipped, and the nearest of it."""
    near = nearest(name, names())
    return (f"; did you mean {near}?" if near else "") + f"\nThere are:\n{listed(names())}"


def is_scenario(document: object) -> bool:
    """True for a JSON object that is meant as a scenario, and not as a recorded document."""
    return isinstance(document, dict) and "steps" in document and "vms" in document


def parse(name: str, body: bytes | Mapping[str, Any]) -> Scenario:
    """The checked scenario in `body`, a JSON text or the object read from one."""
    if not isinstance(body, bytes):
        return _Reader(name, body).scenario()
    if len(body) > MAX_BYTES:
        raise ScenarioError(f"{name}: larger than {MAX_BYTES} bytes")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{name}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ScenarioError(f"{name}: expected a JSON object")
    return _Reader(name, document).scenario()


class _Reader:
    """Reads one file and collects every error before raising, so that they can be corrected all at once."""

    def __init__(self, name: str, document: Mapping[str, Any]) -> None:
        self._name = name
        self._document = document
        self._errors: list[str] = []
        self._vm_names: set[str] = set()
        self._labels: set[str] = set()
        self._ids: set[str] = set()

    def scenario(self) -> Scenario:
        document = self._document
        self._allow_only(document, _FILE_KEYS, "")
        vms = tuple(self._vm(vm, f"vms[{i}]") for i, vm in enumerate(self._list("vms")))
        if not vms:
            self._report("vms", "expected at least one VM")
        self._vm_names = {vm.name for vm in vms}
        if len({folded(name) for name in self._vm_names}) < len(vms):
            self._report("vms", "a name occurs twice")
        steps = tuple(self._step(step, f"steps[{i}]") for i, step in enumerate(self._list("steps")))
        scenario = Scenario(
            self._name,
            self._text(document, "description", ""),
            vms,
            steps,
            incarnation=self._integer(document.get("incarnation", 1), "incarnation"),
            start=self._instant(document.get("start"), "start"),
            length=self._seconds(document.get("length", 0), "length"),
        )
        if self._errors:
            raise ScenarioError("\n".join(f"{self._name}: {error}" for error in self._errors))
        return scenario

    def _vm(self, raw: object, place: str) -> Vm:
        vm = {"name": raw} if isinstance(raw, str) else raw
        tags = vm.get("tags", {}) if isinstance(vm, dict) else {}
        if not isinstance(vm, dict) or not all(isinstance(value, str) or key == "tags" for key, value in vm.items()):
            self._report(place, "expected a name, or an object of strings")
            return Vm("")
        if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
            self._report(f"{place}.tags", "expected an object of strings")
            return Vm("")
        name = self._text(vm, "name", place)
        return Vm(name, {key: value for key, value in vm.items() if key not in {"name", "tags"}}, tags)

    def _step(self, raw: object, place: str) -> Step:
        if not isinstance(raw, dict):
            self._report(place, "expected an object")
            return Step(Action.CANCEL, 0)
        self._allow_only(raw, _STEP_KEYS, place)
        action = self._word(Action, raw.get("do"), f"{place}.do") or Action.CANCEL
        malformed = self._boolean(raw, "malformed", place)
        after = self._after(raw.get("after"), f"{place}.after") if "after" in raw else None
        if ("at" in raw) == ("after" in raw):
            self._report(place, "expected either `at` or `after`")
        if "wait" in raw and "after" not in raw:
            self._report(f"{place}.wait", "goes with `after`")
        label = "" if action is Action.SWITCH_OFF else self._text(raw, "event", place)
        fields = self._fields(raw, label, action, malformed, place)
        if action is Action.ANNOUNCE and "notice" not in raw:
            self._report(place, "an announcement needs its `notice`")
        return Step(
            action,
            self._seconds(raw.get("wait" if after else "at", 0), f"{place}.{'wait' if after else 'at'}"),
            after,
            label,
            fields,
            notice=self._optional_seconds(raw, "notice", place),
            lasts=self._seconds(raw.get("lasts", USUAL_DURATION), f"{place}.lasts"),
            start_after_approval=self._seconds(raw.get("start_after_approval", 1), f"{place}.start_after_approval"),
            waits_for_all=self._boolean(raw, "waits_for_all", place),
            others_approve_after=self._optional_seconds(raw, "others_approve_after", place),
            malformed=malformed,
        )

    def _fields(
        self, raw: Mapping[str, Any], label: str, action: Action, malformed: bool, place: str
    ) -> Mapping[str, Any]:
        fields = raw.get("fields", {})
        place = f"{place}.fields"
        if not isinstance(fields, dict):
            self._report(place, "expected an object")
            return {}
        is_first = action is Action.ANNOUNCE or (action is Action.START and label not in self._labels)
        if action is not Action.SWITCH_OFF and not is_first and label not in self._labels:
            self._report(place, f"no event {label!r} so far")
        self._labels.add(label)
        if is_first:
            self._event_id(fields.get("EventId"), f"{place}.EventId")
        if malformed:
            return fields
        if is_first and not {"EventType", "Resources"} <= fields.keys():
            self._report(place, "expected at least EventId, EventType and Resources")
        for key, value in fields.items():
            self._field(key, value, f"{place}.{key}")
        return fields

    def _field(self, key: str, value: object, place: str) -> None:
        if key == "Resources":
            if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
                self._report(place, "expected a list of VM names")
            elif not self._vm_names.issuperset(value):
                self._report(place, "names a VM that is not in `vms`")
        elif key in _FIELD_TYPES:
            if type(value) is not _FIELD_TYPES[key]:
                self._report(place, f"expected {_FIELD_TYPES[key].__name__}")
        elif key != "EventId":
            self._report(place, "not a field that a scenario sets (`malformed` lifts this)")

    def _event_id(self, value: object, place: str) -> None:
        if not isinstance(value, str) or not _is_guid(value):
            self._report(place, "expected a GUID")
            return
        if folded(value) in self._ids:
            self._report(place, "an id is used once")
        self._ids.add(folded(value))

    def _after(self, value: object, place: str) -> tuple[str, Phase] | None:
        label, _, word = value.rpartition(" ") if isinstance(value, str) else ("", "", "")
        if label not in self._labels or not label:
            self._report(place, 'expected "EVENT announced|approved|started|gone" with an event of an earlier step')
            return None
        phase = self._word(Phase, word, place)
        return (label, phase) if phase else None

    def _word(self, words: type[_Word], value: object, place: str) -> _Word | None:
        for word in words:
            if value == word.value:
                return word
        self._report(place, f"expected one of {', '.join(words)}")
        return None

    def _boolean(self, raw: Mapping[str, Any], key: str, place: str) -> bool:
        value = raw.get(key, False)
        if not isinstance(value, bool):
            self._report(f"{place}.{key}", "expected true or false")
        return value is True

    def _list(self, key: str) -> Sequence[Any]:
        value = self._document.get(key)
        if isinstance(value, list):
            return value
        self._report(key, "expected a list")
        return ()

    def _text(self, raw: Mapping[str, Any], key: str, place: str) -> str:
        value = raw.get(key)
        if isinstance(value, str) and value:
            return value
        self._report(f"{place}.{key}".lstrip("."), "expected a text")
        return ""

    def _integer(self, value: object, place: str) -> int:
        if type(value) is int and value >= 0:
            return value
        self._report(place, "expected a whole number from 0 on")
        return 0

    def _optional_seconds(self, raw: Mapping[str, Any], key: str, place: str) -> float | None:
        return self._seconds(raw[key], f"{place}.{key}") if key in raw else None

    def _seconds(self, value: object, place: str) -> float:
        seconds = _duration(value)
        if seconds is None:
            self._report(place, 'expected seconds from 0 on, or a duration such as "15m"')
            return 0.0
        return seconds

    def _instant(self, value: object, place: str) -> datetime:
        if value is None:
            return DEFAULT_START
        try:
            instant = datetime.fromisoformat(value) if isinstance(value, str) else None
        except ValueError:
            instant = None
        if instant is None or instant.tzinfo is None:
            self._report(place, "expected an RFC 3339 instant with its offset")
            return DEFAULT_START
        return instant.astimezone(UTC)

    def _allow_only(self, raw: Mapping[str, Any], keys: frozenset[str], place: str) -> None:
        for key in raw.keys() - keys:
            self._report(f"{place}.{key}".lstrip("."), "no such key")

    def _report(self, place: str, expected: str) -> None:
        self._errors.append(f"{place}: {expected}")


def _duration(value: object) -> float | None:
    """Seconds of a number, or of a duration such as "15m"; None for anything else."""
    if isinstance(value, str):
        try:
            value = parse_duration(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _LONGEST else None


def _is_guid(value: str) -> bool:
    try:
        return str(uuid.UUID(value)) == value.lower()
    except ValueError:
        return False
