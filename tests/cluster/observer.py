"""Nodes and pods as the API server reports them: two watches, each change with its time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, NamedTuple, Self

from tests.cluster.clients import Client, Json
from tests.cluster.watch import Change, Event, Watch, is_ready

LABEL: Final = "azure-scheduled-events-exporter/cordoned"


class NodeState(NamedTuple):
    """Whether a node is cordoned, and whether it has the handshake's label."""

    cordoned: bool
    labelled: bool


class Departure(NamedTuple):
    """A pod that left its node; `ready` is the number of ready pods among all observed ones just before."""

    time: float
    name: str
    ready: int


class Observer:
    """The nodes and the pods during a `with`."""

    def __init__(self, kubectl: Client) -> None:
        self._nodes, self._pods = Watch(kubectl, "nodes"), Watch(kubectl, "pods", "--all-namespaces")

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._nodes)
            stack.enter_context(self._pods)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def running(self) -> bool:
        return self._nodes.running and self._pods.running

    def node_states(self, node: str, since: float = 0.0) -> list[NodeState]:
        """Return the states of a node: the one at a time, and each different one after it."""
        return node_states(self._nodes.changes(), node, since)

    def evictable(self, node: str) -> list[str]:
        """Return the pods on a node that a drain must remove: neither a DaemonSet's nor static."""
        return sorted(pod["metadata"]["name"] for pod in self._pods.current() if on(pod, node) and is_evictable(pod))

    def staying(self, node: str) -> list[str]:
        """Return the other pods on a node."""
        return sorted(
            pod["metadata"]["name"] for pod in self._pods.current() if on(pod, node) and not is_evictable(pod)
        )

    def pods(self, label: str, value: str) -> list[Json]:
        """Return the pods with a label."""
        return [pod for pod in self._pods.current() if _has(pod, label, value)]

    def departures(self, node: str, label: str, value: str) -> list[Departure]:
        """Return the departures from a node among the pods with a label."""
        changes = [change for change in self._pods.changes() if _has(change.event["object"], label, value)]
        return departures(changes, node)

    def drained_at(self, node: str, since: float) -> float:
        """Return the time at which the last pod that a drain must remove was removed from a node; 0 for none."""
        return max((at for at, event in self._pods.changes() if at > since and _is_removal(event, node)), default=0.0)


def node_states(changes: Iterable[Change], node: str, since: float = 0.0) -> list[NodeState]:
    """Return the states of a node: the one at a time, and each different one after it."""
    states: list[NodeState] = []
    for change in changes:
        found = change.event["object"]
        if found["metadata"]["name"] != node:
            continue
        labels = found["metadata"].get("labels", {})
        state = NodeState(bool(found["spec"].get("unschedulable")), labels.get(LABEL) == "true")
        if change.time <= since:
            states = [state]
        elif not states or states[-1] != state:
            states.append(state)
    return states


def departures(changes: Sequence[Change], node: str) -> list[Departure]:
    """Return the departures from a node, in their order: each pod when it is first seen deleted or being deleted."""
    found: list[Departure] = []
    ready: set[str] = set()
    left: set[str] = set()
    for at, event in changes:
        pod = event["object"]
        name = pod["metadata"]["name"]
        leaves = event["type"] == "DELETED" or "deletionTimestamp" in pod["metadata"]
        if leaves and on(pod, node) and name not in left:
            left.add(name)
            found.append(Departure(at, name, len(ready)))
        ready.discard(name)
        if not leaves and is_ready(pod):
            ready.add(name)
    return found


def on(pod: Json, node: str) -> bool:
    return bool(pod["spec"].get("nodeName") == node)


def is_evictable(pod: Json) -> bool:
    """Return whether a drain removes this pod: neither a DaemonSet's nor static."""
    metadata = pod["metadata"]
    owners = {owner["kind"] for owner in metadata.get("ownerReferences", [])}
    return "DaemonSet" not in owners and "kubernetes.io/config.mirror" not in metadata.get("annotations", {})


def _is_removal(event: Event, node: str) -> bool:
    return event["type"] == "DELETED" and on(event["object"], node) and is_evictable(event["object"])


def _has(found: Json, label: str, value: str) -> bool:
    return bool(found["metadata"].get("labels", {}).get(label) == value)
