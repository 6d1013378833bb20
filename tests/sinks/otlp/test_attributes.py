"""Any record becomes attributes that the protocol can carry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.sinks.otlp import attributes as otlp_attributes
from exporter.sinks.otlp.sink import OtlpDestination
from tests.sinks.otlp.test_sink import EVENT, VM, a_record
from tests.support.otlp_receiver import Receiver, attributes, plain


def test_decisions_approvals_and_accounts_are_flat_attributes() -> None:
    """What the agent decided and how the story ended can be filtered by scalar attributes."""
    decided = a_record(
        "approval.decided",
        decision={"verdict": "hold", "reason": "no-rule", "rule": None, "mode": "enforce", "fields": {"a": 1}},
    )
    failed = a_record("approval.failed", attempt=2, status_code=500, reason="server", error="HTTP 500")
    ended = a_record("ended", account={"outcome": "ended", "gaps": 1, "unseen": ["x"]}, unseen=["gap"])
    changed = a_record("updated", changed={"NotBefore": {"from": 1, "to": 2}}, unexpected=False)
    read = [
        {
            name.removeprefix("azure_scheduled_event."): value
            for name, value in otlp_attributes.log_attributes(r).items()
        }
        for r in (decided, failed, ended, changed)
    ]
    assert {k: v for k, v in read[0].items() if k.startswith("decision")} == {
        "decision.verdict": "hold",
        "decision.reason": "no-rule",
        "decision.mode": "enforce",
    }
    assert read[1]["approval.attempt"] == 2
    assert read[1]["approval.status_code"] == 500
    assert read[1]["approval.reason"] == "server"
    assert read[1]["error"] == "HTTP 500"
    assert (read[2]["account.outcome"], read[2]["account.gaps"], read[2]["unseen"]) == ("ended", 1, ("gap",))
    assert (read[3]["changed"], read[3]["unexpected"]) == (("NotBefore",), False)


def test_what_is_not_known_is_no_attribute() -> None:
    """Neither null, nor an empty text, nor Azure's -1 for a duration that it does not know; 0 and false are known."""
    unknown = {**EVENT, "DurationInSeconds": -1, "Description": "", "EventSource": None}
    told = otlp_attributes.log_attributes(a_record(event=unknown, affects_self=False, rule="", gap_seconds=None))
    known = otlp_attributes.log_attributes(a_record(event={**EVENT, "DurationInSeconds": 0}, affects_self=False))
    left_out = {f"azure_scheduled_event.{name}" for name in ("duration", "description", "source")}
    assert left_out.isdisjoint(told)
    assert left_out - {"azure_scheduled_event.description"} <= known.keys()
    assert "azure_scheduled_event.approval.rule" not in told
    assert told["azure_scheduled_event.affects_self"] is False
    assert known["azure_scheduled_event.duration"] == 0


NASTY: dict[str, Any] = {
    "EventId": "lone \ud800 surrogate",
    "EventType": 2**80,
    "EventStatus": 10**5000,
    "EventSource": {"nested": [1, {"deep": "\udfff"}]},
    "Resources": ["a", 1, None],
    "DurationInSeconds": float("nan"),
    "Description": "x" * 100_000,
    "ResourceType": None,
}


def test_a_value_that_protobuf_cannot_carry_never_costs_a_record() -> None:
    """Lone surrogates, integers beyond 64 bits, nesting and endless text arrive as something readable."""
    with Receiver() as receiver:
        destination = OtlpDestination(receiver.url)
        destination.send([a_record(event=NASTY, message="\ud800", vm={**VM, "name": "\udc00"})])
        destination.close()
    resource, _, log = receiver.logs[0]
    read = attributes(log.attributes)
    assert read["azure_scheduled_event.id"] == "lone ? surrogate"
    assert read["azure_scheduled_event.type"] == str(2**80)
    assert read["azure_scheduled_event.status"].startswith("an integer of")
    assert json.loads(read["azure_scheduled_event.source"]) == {"nested": [1, {"deep": "?"}]}
    assert json.loads(read["azure_scheduled_event.resources"]) == ["a", 1, None]
    assert read["azure_scheduled_event.duration"] == "nan"
    assert len(read["azure_scheduled_event.description"]) == 8192
    assert plain(log.body) == "?"
    assert resource["host.name"] == "?"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(event=JSON | st.fixed_dictionaries(dict.fromkeys(EVENT, JSON)), data=st.dictionaries(st.text(), JSON))
def test_any_json_becomes_attributes_that_the_protocol_takes(event: Any, data: Mapping[str, Any]) -> None:
    """Whatever the service sends, each attribute is text in UTF-8, a bounded number, a boolean or a list of texts."""
    record = a_record(event=event, **{k: v for k, v in data.items() if k not in ("kind", "event", "vm", "severity")})
    for value in otlp_attributes.log_attributes(record).values():
        for item in value if isinstance(value, tuple) else (value,):
            assert isinstance(item, str | bool | int | float)
            if isinstance(item, str):
                item.encode()
            elif isinstance(item, int):
                assert -(2**63) <= item < 2**63


def test_deep_nesting_never_costs_a_record() -> None:
    """A value nested deeper than Python's stack becomes a word, not an error."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert otlp_attributes.encodable(deep) == "unprintable list"
