"""Names and content of event files, for anything that Azure sends."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.core.document import document_from
from exporter.core.policy import DEFAULT_RULES, Mode, Rule
from exporter.core.records import MAX_TAG_NAME, MAX_TAG_VALUE, MAX_TAGS, VM_TEXTS, Vm
from exporter.core.snapshot import Status
from exporter.core.state import Instant
from exporter.event_files.content import (
    EVENT_TYPE,
    MAX_BYTES,
    MAX_FILES,
    MAX_TEXT,
    event_fields,
    event_file,
    file_name,
    is_event_file,
    is_status_file,
    may_be_ours,
    named_files,
    status_fields,
    status_file,
)
from tests.support.event_files import EVENT_FILE, SCHEMAS, STATUS_FILE
from tests.support.statuses import (
    FREEZE,
    NOON,
    REBOOT,
    VM,
    EventScenario,
    closed_scenario,
    crowded_scenario,
    empty_scenario,
    failing_status,
    scheduled_scenario,
    started,
    started_scenario,
)

RULES: Final = (Rule("drained", ("Reboot",), require_file="/run/app/ready/{event_id}"), *DEFAULT_RULES)
DEVICES: Final = ("CON", "nul", "Prn", "aux", "com1", "LPT9", "com0")


def contents(status: Status) -> dict[str, Mapping[str, Any]]:
    """Return each file for this status, parsed and validated against its schema."""
    found = {}
    for name, event in named_files(status).items():
        decision = status.state.process.decisions.get(event.tracked.key)
        fields = event_fields(event, decision, vm=status.vm, mode=status.mode, rules=RULES)
        content = event_file(fields, NOON)
        assert len(content) <= MAX_BYTES
        found[name] = json.loads(content)
        EVENT_FILE.validate(found[name])
    return found


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("event_id", [FREEZE["EventId"], "a", "-", "0", "a" * 100, "COM10", "console", "statuses"])
def test_plain_id_is_the_file_name(event_id: str) -> None:
    """Letters, digits, and `-` are used as received."""
    assert file_name(event_id) == f"{event_id}.json"


@pytest.mark.parametrize(
    "event_id",
    [
        "..",
        ".",
        "a/b",
        "a\\b",
        "a.b",
        "a_b",
        "a b",
        "ä",
        "🔥",
        "٣",
        "a\n",
        "~",
        "%2e",
        "a:b",
        "status",
        "STATUS",
        *DEVICES,
    ],
)
def test_other_ids_are_hashed(event_id: str) -> None:
    """No id leaves the directory, names a device, or replaces status.json."""
    assert file_name(event_id) == f"{sha256(event_id)}.json"


@given(st.text(min_size=1, max_size=100))
def test_every_id_has_a_safe_file_name(event_id: str) -> None:
    """Every file system accepts the name, and no two ids share one."""
    name = file_name(event_id)
    assert re.fullmatch(r"[A-Za-z0-9-]{1,100}\.json", name)
    assert name.lower() != "status.json"
    assert may_be_ours(name)


def test_file_has_the_event_and_its_decision() -> None:
    """A Scheduled event: Azure's object as received, and the decision on it."""
    scenario = scheduled_scenario()
    found = contents(scenario.status(mode=Mode.ENFORCE))
    assert set(found) == {f"{FREEZE['EventId']}.json", f"{REBOOT['EventId']}.json"}
    freeze = found[f"{FREEZE['EventId']}.json"]
    assert freeze["type"] == EVENT_TYPE
    assert freeze["event"] == FREEZE
    assert freeze["event_id"] == FREEZE["EventId"]
    assert (freeze["status"], freeze["not_before"]) == ("Scheduled", "2025-11-21T12:15:00.000000Z")
    assert freeze["vm"]["name"] == VM.name
    assert freeze["vm"]["node"] is None
    assert freeze["decision"] == {
        "decision": "approve",
        "reason": None,
        "rule": "short-freeze",
        "finding": None,
        "mode": "enforce",
        "why": "a rule matches (rule short-freeze)",
    }
    assert (freeze["started_at"], freeze["started_by"], freeze["approved_at"], freeze["ready_file"]) == (None,) * 4
    assert "event_omitted_bytes" not in freeze
    reboot = found[f"{REBOOT['EventId']}.json"]
    assert reboot["ready_file"] == f"/run/app/ready/{REBOOT['EventId']}"
    assert (reboot["decision"]["decision"], reboot["decision"]["reason"]) == ("hold", "no-rule")


def test_file_of_a_started_event_keeps_not_before() -> None:
    """Azure removes NotBefore; the file has the last one, the cause of the start, and its time."""
    scenario = started_scenario()
    freeze = contents(scenario.status())[f"{FREEZE['EventId']}.json"]
    assert (freeze["status"], freeze["event"]["NotBefore"]) == ("Started", "")
    assert freeze["not_before"] == "2025-11-21T12:15:00.000000Z"
    assert freeze["started_by"] == "this_vm"
    assert freeze["approved_at"] is not None
    assert freeze["started_at"] is not None
    assert freeze["decision"]["reason"] == "not-scheduled"


@pytest.mark.parametrize(
    ("events", "vm"),
    [
        ([{**FREEZE, "Resources": ["shop-web_9"]}], VM),
        ([FREEZE], Vm()),
        ([{**FREEZE, "Resources": "shop-web_3"}], VM),
        ([], VM),
    ],
    ids=["of a neighbour", "own name unknown", "Resources unreadable", "none"],
)
def test_only_events_of_this_vm_have_files(events: list[dict[str, Any]], vm: Vm) -> None:
    scenario = EventScenario()
    scenario.read(*events)
    assert named_files(scenario.status(vm=vm)) == {}


def test_most_urgent_of_many_events_have_files() -> None:
    """Sixty events have fifty files, for those that start first."""
    status = crowded_scenario(60).status()
    found = list(named_files(status))
    assert len(found) == MAX_FILES
    assert found == [f"event-{place:04}.json" for place in range(59, 9, -1)]
    assert len(contents(status)) == MAX_FILES


@pytest.mark.parametrize("text", ["x" * 300_000, "🔥" * 70_000, [[]] * 90_000], ids=["text", "emoji", "many parts"])
def test_oversized_azure_object_is_omitted_with_its_size(text: Any) -> None:
    """The other members stay."""
    scenario = EventScenario()
    event = {**FREEZE, "Other": text}
    scenario.read(event)
    ((_, found),) = contents(scenario.status()).items()
    assert found["event"] is None
    assert found["event_omitted_bytes"] == len(json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode())
    assert found["status"] == "Scheduled"


@pytest.mark.parametrize("character", ["x", "🔥", "\x01"], ids=["letter", "emoji", "escaped"])
def test_external_texts_are_cut(character: str) -> None:
    """A file above the limit could neither be read nor removed by the next process."""
    long = character * 400_000
    texts: dict[str, Any] = dict.fromkeys(VM_TEXTS[1:], long)
    tags = tuple((f"{character * (MAX_TAG_NAME - 2)}{number:02}", long[:MAX_TAG_VALUE]) for number in range(MAX_TAGS))
    scenario = EventScenario()
    scenario.read({**FREEZE, "EventType": long})
    status = scenario.status(vm=replace(VM, **texts, tags=tags))
    ((_, found),) = contents(status).items()
    assert found["event"] is None
    assert found["event_type"] == found["vm"]["id"] == character * MAX_TEXT
    assert found["vm"]["name"] == VM.name
    content = status_file(status_fields(status, list(named_files(status)), version="1", running=True), NOON)
    assert len(content) <= MAX_BYTES
    STATUS_FILE.validate(json.loads(content))


JSON: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.sampled_from([*FREEZE, "Extra"]) | st.text(max_size=5), JSON, max_size=6),
    st.text(min_size=1, max_size=100),
    st.sampled_from(list(Mode)),
)
def test_event_files_match_their_schema(fields: dict[str, Any], event_id: str, mode: Mode) -> None:
    """Azure's fields may be missing, mistyped, or new."""
    scenario = EventScenario()
    given_event = {**FREEZE, **fields, "Resources": [VM.name], "EventId": event_id}
    document_from({"DocumentIncarnation": 1, "Events": [given_event]})
    scenario.read(given_event)
    found = contents(scenario.status(mode=mode))
    for name, value in found.items():
        assert name == file_name(value["event_id"])
    scenario.read(started(given_event), after=3.0)
    contents(scenario.status(mode=mode))


@pytest.mark.parametrize(
    "status",
    [
        empty_scenario().status(),
        scheduled_scenario().status(mode=Mode.OFF),
        closed_scenario().status(vm=Vm()),
        failing_status(started_scenario()),
        Status(started=Instant(NOON), state=EventScenario().state),
    ],
    ids=["empty", "off", "name unknown", "failing", "nothing read"],
)
@pytest.mark.parametrize("running", [True, False])
def test_status_file_matches_its_schema(status: Status, running: bool) -> None:
    """It always has every member."""
    content = json.loads(status_file(status_fields(status, ["a.json"], version="1.2.3", running=running), NOON))
    STATUS_FILE.validate(content)
    assert content["running"] is running
    assert content["up"] is status.state.process.source.up
    assert content["events"] == ["a.json"]


def test_status_file_has_the_time_of_the_last_valid_document() -> None:
    """With the reason, while the source fails."""
    scenario = started_scenario()
    last = scenario.now
    content = json.loads(status_file(status_fields(failing_status(scenario), [], version="1", running=True), NOON))
    assert (content["up"], content["failure"]) == (False, "timeout")
    assert content["last_read_at"] == f"{last:%Y-%m-%dT%H:%M:%S}.000000Z"
    assert scenario.now - last == timedelta(seconds=60)


def test_schemas_are_valid_and_describe_every_member() -> None:
    for schema in SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(schema)
        assert all("description" in shape or "$ref" in shape for shape in schema["properties"].values())


GUID: Final = "A123BC45-1234-5678-AB90-ABCDEF123456.json"


@pytest.mark.parametrize(
    ("name", "content", "ours"),
    [
        ("a.json", b'{"type": "azure_scheduled_events.event_file.v1"}', True),
        ("a.json", b'{\n  "type": "azure_scheduled_events.event_file.v2",\n  "wri', True),
        ("a.json", b'{"event_id": "a", "type": "azure_scheduled_events.event_file.v1"}', False),
        (GUID, b"", True),
        (GUID, bytes(4096), True),
        (f"{sha256('x')}.json", b"", True),
        ("settings.json", b"", False),
        ("a.json", b'{"type": "azure_scheduled_events.event_files_status.v1"}', False),
        ("a.json", b'{"type": "somebody.else"}', False),
        ("a.json", b'["azure_scheduled_events.event_file.v1"]', False),
        ("a.json", b'{"type": ["azure_scheduled_events.event_file.v1"]}', False),
        (GUID, b"half a senten", False),
        ("a.json", b"[" * 100_000, False),
        ("a.json", b"\xff\xfe", False),
    ],
)
def test_own_files_are_recognized_by_their_type(name: str, content: bytes, ours: bool) -> None:
    """Also truncated ones, or those blanked by a power failure; no other program's files."""
    assert is_event_file(name, content) is ours


@pytest.mark.parametrize(
    ("content", "ours"),
    [
        (b"", True),
        (bytes(100), True),
        (b'{"type": "azure_scheduled_events.event_files_status.v1"}', True),
        (b'{\n  "type": "azure_scheduled_events.event_files_status.v1",\n  "wri', True),
        (b'{"status": "ok"}', False),
        (b"ok", False),
    ],
)
def test_status_file_of_another_program_is_recognized(content: bytes, ours: bool) -> None:
    """The name is common, so that file must not be replaced."""
    assert is_status_file(content) is ours


@pytest.mark.parametrize("name", ["status.json", "a_b.json", "con.json", ".json", "a.txt", "a.json.bak", "ä.json"])
def test_other_names_are_not_event_files(name: str) -> None:
    """Files with these names aren't opened."""
    assert not may_be_ours(name)
