"""OTLP attributes of any record."""

from __future__ import annotations

from exporter.sinks.otlp import sink as otlp_attributes
from tests.sinks.otlp.test_sink import EVENT, a_record


def test_decisions_approvals_and_summaries_are_flat_attributes() -> None:
    """Decisions and outcomes can be filtered by scalar attributes."""
    decided = a_record(
        "approval.decided",
        decision={"verdict": "hold", "reason": "no-rule", "rule": None, "mode": "enforce", "fields": {"a": 1}},
    )
    failed = a_record("approval.failed", attempt=2, status_code=500, reason="server", error="HTTP 500")
    ended = a_record("ended", summary={"outcome": "ended", "gaps": 1, "unseen": ["x"]}, unseen=["gap"])
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
    assert (read[2]["summary.outcome"], read[2]["summary.gaps"], read[2]["unseen"]) == ("ended", 1, ("gap",))
    assert (read[3]["changed"], read[3]["unexpected"]) == (("NotBefore",), False)


def test_unknown_values_have_no_attribute() -> None:
    """Null, empty text, and Azure's -1 for an unknown duration are unknown; 0 and false are known."""
    unknown = {**EVENT, "DurationInSeconds": -1, "Description": "", "EventSource": None}
    recorded = otlp_attributes.log_attributes(a_record(event=unknown, affects_self=False, rule="", gap_seconds=None))
    known = otlp_attributes.log_attributes(a_record(event={**EVENT, "DurationInSeconds": 0}, affects_self=False))
    left_out = {f"azure_scheduled_event.{name}" for name in ("duration", "description", "source")}
    assert left_out.isdisjoint(recorded)
    assert left_out - {"azure_scheduled_event.description"} <= known.keys()
    assert "azure_scheduled_event.approval.rule" not in recorded
    assert recorded["azure_scheduled_event.affects_self"] is False
    assert known["azure_scheduled_event.duration"] == 0


def test_long_and_nested_values_are_cut_or_sent_as_json() -> None:
    """Texts have at most 8,192 characters; values without an OTLP type are JSON."""
    event = {**EVENT, "Description": "x" * 100_000, "EventSource": {"nested": [1]}, "Resources": ["a", 1, None]}
    recorded = otlp_attributes.log_attributes(a_record(event=event))
    assert len(str(recorded["azure_scheduled_event.description"])) == 8192
    assert recorded["azure_scheduled_event.source"] == '{"nested": [1]}'
    assert recorded["azure_scheduled_event.resources"] == '["a", 1, null]'
