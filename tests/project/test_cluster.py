"""How `make -C tests cluster` reads the API server's messages and actions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.manifests import AGAINST_RESTRICTED, objections
from tests.cluster.nodes import NODES, names
from tests.cluster.watch import most_unavailable, parsed


def test_a_warning_of_pod_security_is_read_objection_by_objection() -> None:
    """Commas and brackets within an objection do not end it; a rejection is read like a warning."""
    warning = f'would violate PodSecurity "restricted:latest": {", ".join(AGAINST_RESTRICTED)}'
    refusal = f'Error creating: pods "agent-x" is forbidden: {warning.replace("would violate", "violates")}'
    assert objections(warning) == objections(refusal) == ("restricted", AGAINST_RESTRICTED)
    assert objections("some other warning") == ("", ())


def test_a_rollout_is_judged_by_its_worst_moment() -> None:
    """Two nodes without pods at the same time count as two, although each pod comes back; a pod to be deleted is
    absent."""
    nodes = frozenset(("a", "b", "c"))
    start = [_event("ADDED", f"{node}-1", node) for node in "abc"]
    one_by_one = [step for node in "abc" for step in _replaced(node)]
    assert most_unavailable([*start, *one_by_one], nodes) == 1
    (a_leaves, a_comes), (b_leaves, b_comes) = _replaced("a"), _replaced("b")
    assert most_unavailable([*start, a_leaves, b_leaves, a_comes, b_comes], nodes) == 2
    assert most_unavailable(start, nodes) == 0


def test_a_rollout_without_a_complete_start_is_rejected() -> None:
    """A watch that never saw a ready pod on each node can't count the missing ones."""
    with pytest.raises(ValueError, match="no moment"):
        most_unavailable([_event("ADDED", "a-1", "a")], frozenset(("a", "b")))


def test_a_watch_is_read_up_to_its_last_whole_event() -> None:
    """kubectl may be writing the next event."""
    text = json.dumps({"a": 1}, indent=4) + "\n" + json.dumps({"b": [2]}) + '\n{"c": '
    assert list(parsed(text)) == [{"a": 1}, {"b": [2]}]


def test_ten_linux_nodes_make_a_tenth_one_node() -> None:
    """`maxUnavailable: 10%` is tested where it means one node, in addition to nodes without a Linux agent."""
    assert len(names("linux")) == 10
    assert len(names("windows")) == 2
    assert len(NODES) == 13


def _replaced(node: str) -> list[dict[str, Any]]:
    return [_event("MODIFIED", f"{node}-1", node, leaving=True), _event("ADDED", f"{node}-2", node)]


def _event(kind: str, name: str, node: str, *, leaving: bool = False) -> dict[str, Any]:
    metadata = {"name": name, **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {})}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"type": kind, "object": {"metadata": metadata, "spec": {"nodeName": node}, "status": status}}
