"""The pods of a DaemonSet during a rollout: a watch of the API server, replayed afterwards."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster.clients import Client

Event = dict[str, Any]


class Watch:
    """Stores every event of a namespace's pods with these labels during a `with`."""

    def __init__(self, kubectl: Client, namespace: str, selector: str, folder: Path) -> None:
        self._command = [str(kubectl.path), "--namespace", namespace, "get", "pods", "--selector", selector]
        self._command += ["--watch", "--output-watch-events", "-o", "json"]
        self._environment, self._file = kubectl.environment, folder / "watch.json"

    def __enter__(self) -> Self:
        with self._file.open("wb") as file:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._command], env=self._environment, stdout=file
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def events(self) -> list[Event]:
        """The events so far, in the order in which they happened. A half-written last one is omitted."""
        return list(parsed(self._file.read_text(encoding="utf-8")))


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
