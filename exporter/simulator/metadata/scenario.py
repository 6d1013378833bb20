"""Scenarios: the steps of the simulated platform, as checked values and as files (`scenarios/README.md`)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from exporter.core.document import folded
from exporter.files import TooLarge, WrongEncoding, in_utf8, read_capped
from exporter.text.format import parse_duration
from exporter.text.terminal import listed
from exporter.text.values import nearest, unknown_word

MAX_BYTES = 1024 * 1024
_TIMES = ("at", "wait", "notice", "lasts", "start_after_approval", "others_approve_after", "length")
DEFAULT_START = datetime(2026, 3, 2, 9, 0, 0, tzinfo=UTC)
USUAL_DURATION = 600.0  # seconds; "Typical run: ... Started to gone 10 min" [High level overview]
Seconds = Annotated[float, Meta(ge=0, le=366 * 86400)]
Text = Annotated[str, Meta(min_length=1)]


class ScenarioError(ValueError):
    """An invalid scenario; the text has one error per line, with its position."""


class Action(StrEnum):
    """The platform's action in one step."""

    ANNOUNCE = "announce"
    CHANGE = "change"
    START = "start"
    CANCEL = "cancel"
    SWITCH_OFF = "switch-off"


class EventMoment(StrEnum):
    """The moments of an event for which a step can wait."""

    ANNOUNCED = "announced"
    APPROVED = "approved"
    STARTED = "started"
    GONE = "gone"


class ScenarioVm(Struct, frozen=True):
    """A VM: its name as in `Resources`, the fields of `compute` that differ from the defaults, and its tags."""

    name: Text
    fields: Mapping[str, str] = {}
    tags: Mapping[str, str] = {}


class ScenarioStep(Struct, frozen=True, forbid_unknown_fields=True, rename={"action": "do", "delay": "at"}):
    """One action at one time; `scenarios/README.md` describes the keys of the file.

    `delay` counts from the start or from `after`. `delay`, `notice`, `lasts`, and the approval times are seconds of
    platform time. `event` is the label of the event.
    """

    action: Action
    delay: Seconds
    after: tuple[str, EventMoment] | None = None
    event: str = ""
    fields: Mapping[str, Any] = {}
    notice: Seconds | None = None
    lasts: Seconds = USUAL_DURATION
    start_after_approval: Seconds = 1.0
    waits_for_all: bool = False
    others_approve_after: Seconds | None = None
    malformed: bool = False


class Scenario(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole scenario, checked: every step refers to an event of an earlier step. `length` is in seconds."""

    name: str
    description: Text
    vms: Annotated[tuple[ScenarioVm, ...], Meta(min_length=1)]
    steps: tuple[ScenarioStep, ...]
    incarnation: Annotated[int, Meta(ge=0)] = 1
    start: Annotated[datetime, Meta(tz=True)] = DEFAULT_START
    length: Seconds = 0.0

    def vm(self, name: str | None = None) -> ScenarioVm:
        """Return the VM of this name, in any letter case; the first one for None. Raises ScenarioError."""
        if name is None:
            return self.vms[0]
        for vm in self.vms:
            if folded(vm.name) == folded(name):
                return vm
        raise ScenarioError(unknown_word("VM", name, [vm.name for vm in self.vms]))


class _Fields(Struct, rename="pascal", forbid_unknown_fields=True):
    """Azure's fields that a step may set if it isn't `malformed`."""

    event_id: str = ""
    event_type: str = ""
    resource_type: str = ""
    resources: Annotated[list[str], Meta(min_length=1)] = []
    description: str = ""
    event_source: str = ""
    duration_in_seconds: int = -1


def names() -> tuple[str, ...]:
    """Return the names of the built-in scenarios in alphabetical order."""
    files = (resources.files(__package__) / "scenarios").iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


def load(name_or_path: str) -> Scenario:
    """Return the built-in scenario of this name, or the one in this file. Raises ScenarioError."""
    if name_or_path in names():
        return parse(name_or_path, (resources.files(__package__) / "scenarios" / f"{name_or_path}.json").read_bytes())
    path = Path(name_or_path)
    try:
        body = in_utf8(read_capped(path, MAX_BYTES))
    except (WrongEncoding, TooLarge) as error:
        raise ScenarioError(f"{path.name.removesuffix('.json')}: {error}") from error
    except OSError as error:
        reason = error.strerror or "not readable"
        raise ScenarioError(f"no scenario {name_or_path!r} ({reason}){_others(name_or_path)}") from error
    return parse(path.name.removesuffix(".json"), body)


def _others(name: str) -> str:
    """Return a hint with the most similar name and the list of all names."""
    near = nearest(name, names())
    return (f"; did you mean {near}?" if near else "") + f"\nBuilt-in scenarios:\n{listed(names())}"


def is_scenario(document: object) -> bool:
    """Return whether a JSON value is a scenario, not a recorded document."""
    return isinstance(document, dict) and "steps" in document and "vms" in document


def parse(name: str, body: bytes | Mapping[str, Any]) -> Scenario:
    """Check and return the scenario in `body`, a JSON text or the object parsed from one. Raises ScenarioError."""
    try:
        document = json.loads(body) if isinstance(body, bytes) else body
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{name}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ScenarioError(f"{name}: expected a JSON object")
    try:
        scenario = convert({**_prepared(document), "name": name}, Scenario)
    except ValidationError as error:
        raise ScenarioError(f"{name}: {error}") from error
    if faults := list(_faults(scenario)):
        raise ScenarioError("\n".join(f"{name}: {fault}" for fault in faults))
    return replace(scenario, start=scenario.start.astimezone(UTC))


def _prepared(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object in the shape of a `Scenario`. Invalid parts stay, and the conversion reports them."""
    vms, steps = document.get("vms"), document.get("steps")
    return {
        **_in_seconds(document),
        "vms": list(map(_vm, vms)) if isinstance(vms, list) else vms,
        "steps": list(map(_step, steps)) if isinstance(steps, list) else steps,
    }


def _vm(raw: Any) -> Any:
    if not isinstance(raw, dict):
        return {"name": raw}
    own = {key: raw[key] for key in ("name", "tags") if key in raw}
    return {**own, "fields": {key: value for key, value in raw.items() if key not in own}}


def _step(raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    step = _in_seconds(raw)
    if isinstance(after := step.get("after"), str):
        step["after"] = after.rpartition(" ")[::2]
        step.setdefault("at", step.pop("wait", 0.0))
    return step


def _in_seconds(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with durations ("15m") in seconds."""
    copy = dict(raw)
    for key in _TIMES:
        if isinstance(text := raw.get(key), str):
            try:
                copy[key] = parse_duration(text)
            except ValueError:
                continue  # the conversion reports it
    return copy


def _faults(scenario: Scenario) -> Iterator[str]:
    """Yield the contradictions in a scenario of the right shape, each with its position."""
    vms = {vm.name for vm in scenario.vms}
    if len({folded(name) for name in vms}) < len(scenario.vms):
        yield "vms: duplicate name"
    labels: set[str] = set()
    ids: set[str] = set()
    for index, step in enumerate(scenario.steps):
        for fault in _faults_of(step, vms, labels, ids):
            yield f"steps[{index}]: {fault}"
        labels |= {step.event} - {""}


def _faults_of(step: ScenarioStep, vms: set[str], labels: set[str], ids: set[str]) -> Iterator[str]:
    if step.after is not None and step.after[0] not in labels:
        yield f"after: no earlier step has the event {step.after[0]!r}"
    if step.action is Action.SWITCH_OFF:
        return
    if not step.event:
        yield "event: missing; expected the label of an event"
    if step.action is Action.ANNOUNCE and step.notice is None:
        yield "notice: missing; required for announce"
    is_first = step.action is Action.ANNOUNCE or (step.action is Action.START and step.event not in labels)
    if not is_first and step.event not in labels:
        yield f"event: no earlier step announces or starts {step.event!r}"
    event_id = str(step.fields.get("EventId"))
    if is_first and (not _is_guid(event_id) or folded(event_id) in ids):
        yield "fields: expected an EventId that is a GUID and is used only once"
    ids.add(folded(event_id))
    if step.malformed:
        return
    if is_first and not {"EventType", "Resources"} <= step.fields.keys():
        yield "fields: expected at least EventId, EventType, and Resources"
    try:
        if not vms.issuperset(convert(step.fields, _Fields).resources):
            yield "fields: Resources contains a VM that is not in `vms`"
    except ValidationError as error:
        yield f"fields: {error}; set `malformed` to allow any value"


def _is_guid(value: str) -> bool:
    try:
        return str(uuid.UUID(value)) == value.lower()
    except ValueError:
        return False
