"""Records of random documents: every destination can encode them unchanged."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from exporter.core.records import Vm
from exporter.sinks.event_hubs.messages import message, partition_key
from exporter.sinks.otlp.sink import log_attributes
from tests.support.agent_environment import AgentEnvironment
from tests.support.core_documents import NOT_BEFORE
from tests.support.eventhubs_target import body_of
from tests.support.otlp_receiver import otlp_to

TEXT = st.text(st.characters(exclude_categories=())) | st.sampled_from(["lone \ud800", "nul \0", "x" * 10_000])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([2**80, 10**400]) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
EVENT = st.fixed_dictionaries(
    {"EventId": TEXT, "EventStatus": st.sampled_from(["Scheduled", "Started"]) | JSON},
    optional={
        "EventType": st.sampled_from(["Freeze", "Reboot"]) | JSON,
        "Resources": st.just(["web-1"]) | st.lists(TEXT, max_size=3) | JSON,
        "NotBefore": st.just(NOT_BEFORE) | JSON,
        "Description": JSON,
        "EventSource": JSON,
        "DurationInSeconds": JSON,
    },
)
NASTY: dict[str, Any] = {
    "EventId": "an id",
    "EventType": 2**80,
    "EventStatus": 10**400,
    "EventSource": {"nested": [1, {"deep \ud800": "\udfff"}]},
    "Resources": ["web-1", 1, None],
    "DurationInSeconds": -(2**63) - 1,
    "Description": "nul \0, lone \ud800, " + "x" * 100_000,
}
DESTINATION = otlp_to("http://127.0.0.1:1/v1/logs")


@settings(max_examples=60, deadline=None)
@given(first=st.lists(EVENT | JSON, max_size=3), second=st.lists(EVENT, max_size=2), name=TEXT)
@example(first=[NASTY], second=[{**NASTY, "EventId": "lone \ud800"}, {**NASTY, "EventId": "y" * 100}], name="\udc00")
def test_every_record_of_any_document_can_be_sent(first: list[Any], second: list[Any], name: str) -> None:
    """Also with a random identity: no destination has to clean a text, a number, or a nested value."""
    with (
        tempfile.TemporaryDirectory() as folder,
        AgentEnvironment(Path(folder), vm=Vm(name=name, id=name, location=name)) as environment,
    ):
        for number, events in enumerate((first, second, [])):
            environment.see(json.dumps({"DocumentIncarnation": number, "Events": events}).encode(), 2)
        records = environment.records()
    assert records
    DESTINATION._encode(records)
    for record in records:
        # The SDK leaves out what it can't encode.
        assert all(-(2**63) <= value < 2**63 for value in log_attributes(record).values() if isinstance(value, int))
        (partition_key(record.subject) or "").encode()
        for message_format in ("cloudevents", "azure-sample"):
            sent = message(record, message_format)
            "".join(map(str, (sent.message_id, *(sent.properties or {}).values()))).encode()
            assert b"\\u0000" not in body_of(sent)
