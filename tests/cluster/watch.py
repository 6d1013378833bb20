"""Objects as the API server reports them: a watch, each change with its time, and what it shows of a rollout."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.cluster.clients import Client, Json

Event = dict[str, Any]


class Change(NamedTuple):
    """An event of a watch, and the time at which it was read, in seconds since the epoch."""

    time: float
    event: Event


class Watch:
    """Follows the objects that `kubectl get` lists with these arguments, during a `with`."""

    def __init__(self, kubectl: Client, *arguments: str) -> None:
        self._command = [str(kubectl.path), "get", *arguments, "--watch", "--output-watch-events", "-o", "json"]
        self._environment = kubectl.environment
        self._changes: list[Change] = []
        self._current: dict[str, Json] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *self._command],
            env=self._environment,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        """kubectl prints each event on a line or, indented, up to a line with only a bracket."""
        assert self._process.stdout is not None
        lines: list[str] = []
        for line in self._process.stdout:
            lines.append(line)
            if line.rstrip() == "}" or line.startswith('{"'):
                for event in parsed("".join(lines)):
                    self._add(event)
                lines.clear()

    def _add(self, event: Event) -> None:
        uid = event["object"]["metadata"]["uid"]
        current = {known: value for known, value in self._current.items() if known != uid}
        self._current = current if event["type"] == "DELETED" else {**current, uid: event["object"]}
        self._changes.append(Change(time.time(), event))

    def changes(self) -> list[Change]:
        """The changes so far, in their order."""
        return list(self._changes)

    def current(self) -> list[Json]:
        """The objects that exist."""
        return list(self._current.values())

    @property
    def running(self) -> bool:
        return self._process.poll() is None


def parsed(text: str) -> Iterator[Event]:
    """Yield the JSON values of a text that may end within one."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            event, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            return
        yield event


def most_unavailable(events: Iterable[Event], nodes: frozenset[str]) -> int:
    """Return the maximum number of nodes that had no ready pod at the same moment, from the moment on at which all had
    one.

    A pod that is being deleted no longer counts. Raises ValueError if there was no such moment.
    """
    ready: dict[str, str] = {}  # by the pod's name, its node
    most: int | None = None
    for event in events:
        pod = event["object"]
        name = pod["metadata"]["name"]
        ready.pop(name, None)
        if event["type"] != "DELETED" and is_ready(pod):
            ready[name] = pod["spec"]["nodeName"]
        missing = len(nodes.difference(ready.values()))
        if most is not None or not missing:
            most = max(most or 0, missing)
    if most is None:
        raise ValueError("there was no moment at which each node had a pod that was ready")
    return most


def is_ready(pod: Event) -> bool:
    """Return whether the kubelet reports it ready, and it is not being deleted."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
