"""How `make -C tests cluster` reads the API server's messages and actions."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.containers import Line, Mounts, Process
from tests.cluster.drain import granted
from tests.cluster.manifests import AGAINST_RESTRICTED, objections
from tests.cluster.nodes import NODES, names
from tests.cluster.observer import LABEL, Departure, NodeState, departures, node_states
from tests.cluster.watch import Change, most_unavailable, parsed
from tests.support.peers import until


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


def test_a_mount_path_becomes_a_directory_of_the_run_and_back() -> None:
    """Only whole paths are replaced, the longest one first, and a replaced one isn't replaced again."""
    paths = ("/run/agent", "/run/agent/ready", "/etc/agent", "/etc/agent-settings")
    mounts = Mounts({path: Path(f"/tmp/vm{path}") for path in paths})
    text = "events=${EVENTS:-/run/agent} '/run/agent/ready/{event_id}' /etc/agent-settings/a /etc/agents x/etc/agent"
    wanted = (
        "events=${EVENTS:-/tmp/vm/run/agent} '/tmp/vm/run/agent/ready/{event_id}' /tmp/vm/etc/agent-settings/a "
        "/etc/agents x/etc/agent"
    )
    assert mounts.outside(text) == wanted
    assert mounts.inside(wanted) == text


@pytest.mark.linux("is about sessions of processes")
def test_a_killed_container_leaves_no_process(tmp_path: Path) -> None:
    """`timeout` makes a separate process group, which a signal to the group of the shell doesn't reach."""
    lines: list[Line] = []
    script = "timeout 60 sh -c 'echo $$; exec sleep 60' & wait"
    process = Process(("sh", "-c", script), {"PATH": os.environ["PATH"]}, tmp_path, lines)
    until(lambda: lines)
    process.kill()
    assert not process.running
    command = Path("/proc", lines[0].text, "cmdline")
    assert not command.exists() or not command.read_bytes()  # a zombie, if no process waits for orphans


def test_states_of_a_node_begin_with_the_one_at_the_time() -> None:
    """Cordon and label in one step are one state; heartbeats, and other nodes, are none."""
    changes = [
        _node(1, "a"),
        _node(2, "a", cordoned=True),
        _node(3, "a"),
        _node(4, "b", cordoned=True),
        _node(5, "a", cordoned=True, labelled=True),
        _node(6, "a", cordoned=True, labelled=True),
        _node(7, "a"),
    ]
    out_and_back = [NodeState(False, False), NodeState(True, True), NodeState(False, False)]
    assert node_states(changes, "a", 3) == node_states(changes, "a", 4) == out_and_back
    assert node_states(changes, "a") == [NodeState(False, False), NodeState(True, False), *out_and_back]
    assert node_states(changes, "b", 9) == [NodeState(True, False)]


def test_a_departure_is_counted_once_with_the_pods_that_were_ready_before() -> None:
    """A pod departs when its deletion begins; pods of other nodes count as ready, and not as departures."""
    events = [
        _event("ADDED", "one", "a"),
        _event("ADDED", "two", "a"),
        _event("MODIFIED", "one", "a", leaving=True),
        _event("DELETED", "one", "a", leaving=True),
        _event("ADDED", "three", "b"),
        _event("DELETED", "three", "b"),
        _event("DELETED", "two", "a"),
    ]
    changes = [Change(float(number), event) for number, event in enumerate(events)]
    assert departures(changes, "a") == [Departure(2.0, "one", 2), Departure(6.0, "two", 1)]


def test_rules_are_compared_by_group_resource_and_verb() -> None:
    """The API server may return one rule as several."""
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    parts = [{**rule, "verbs": ["get"]}, {**rule, "verbs": ["patch"]}]
    assert granted([rule]) == granted(parts) == {("", "nodes", "get"), ("", "nodes", "patch")}


def _node(at: float, name: str, *, cordoned: bool = False, labelled: bool = False) -> Change:
    metadata = {"name": name, "labels": {LABEL: "true"} if labelled else {}}
    spec = {"unschedulable": True} if cordoned else {}
    return Change(at, {"type": "MODIFIED", "object": {"metadata": metadata, "spec": spec}})


def _replaced(node: str) -> list[dict[str, Any]]:
    return [_event("MODIFIED", f"{node}-1", node, leaving=True), _event("ADDED", f"{node}-2", node)]


def _event(kind: str, name: str, node: str, *, leaving: bool = False) -> dict[str, Any]:
    metadata = {"name": name, **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {})}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"type": kind, "object": {"metadata": metadata, "spec": {"nodeName": node}, "status": status}}
