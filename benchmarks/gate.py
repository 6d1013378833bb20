"""Response times of `/-/gate` and `/-/healthy` with 50 events of this VM: `python -m benchmarks.gate`.

One client requests both in turn, so that the machine's load is the same for both: on one connection, on a new
connection for each request, and after a pause that expires cached pages, like a prober that sends a request every few
seconds.
"""

from __future__ import annotations

import http.client
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.agent import Agent, document, event, metadata_service
from exporter.web.connection import Limits

EVENTS: Final = 50
REQUESTS: Final = 500
PAUSED_REQUESTS: Final = 20
PAUSE: Final = Limits().fresh_seconds + 0.01
TARGET: Final = 0.001
"""Seconds by which the median may exceed that of `/-/healthy`."""
PATHS: Final = ("/-/healthy", "/-/gate")
PATIENCE: Final = 30.0

Times = dict[str, list[float]]
"""Seconds of each response, by path."""


def in_turn(ask: Callable[[str], int], requests: int, pause: float = 0.0) -> Times:
    """Return the times of `requests` responses for each path, without the first one (warm-up)."""
    times: Times = {path: [] for path in PATHS}
    for _ in range(requests + 1):
        for path in PATHS:
            time.sleep(pause)
            begun = time.perf_counter()
            ask(path)
            times[path].append(time.perf_counter() - begun)
    return {path: found[1:] for path, found in times.items()}


def of_agent(
    requests: int = REQUESTS, paused_requests: int = PAUSED_REQUESTS, *, closed: bool = False
) -> dict[str, Times]:
    """Return the times for each way of connecting. `closed`: the last event closes the gate."""
    with tempfile.TemporaryDirectory(prefix="azse-bench-") as folder, metadata_service() as service:
        last = event(EVENTS, EventStatus="Started", NotBefore="") if closed else event(EVENTS)
        service.set_document(document(2, *(event(number) for number in range(1, EVENTS)), last))
        with Agent(Path(folder), service.url, "--approval.mode=off") as agent:
            agent.started()
            host, port = urlsplit(agent.url).hostname or "", urlsplit(agent.url).port or 0
            expected = {"/-/healthy": 200, "/-/gate": 503 if closed else 200}
            end = time.monotonic() + PATIENCE
            while b"document_events 50" not in _metrics(host, port):
                if time.monotonic() > end:
                    raise RuntimeError("the agent didn't read its document")
                time.sleep(0.1)

            def ask_anew(path: str) -> int:
                with closing(http.client.HTTPConnection(host, port)) as connection:
                    return _ask(connection, path, expected)

            kept = http.client.HTTPConnection(host, port)
            kept.connect()
            kept.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with closing(kept):
                return {
                    "one connection": in_turn(lambda path: _ask(kept, path, expected), requests),
                    "a new connection each": in_turn(ask_anew, requests),
                    "new, after a pause": in_turn(ask_anew, paused_requests, PAUSE),
                }


def _metrics(host: str, port: int) -> bytes:
    with closing(http.client.HTTPConnection(host, port)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read()


def _ask(connection: http.client.HTTPConnection, path: str, expected: dict[str, int]) -> int:
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    if answer.status != expected[path]:
        raise RuntimeError(f"{path} returned {answer.status}")
    return answer.status


def report() -> bool:
    """Print the times. Return whether each median meets the target."""
    fine = True
    print(f"{f'the gate, {EVENTS} events':<42}/-/healthy ms   /-/gate ms   difference ms   p99 of /-/gate ms")
    for words, closed in (("open", False), ("closed", True)):
        for how, times in of_agent(closed=closed).items():
            healthy, gate = (statistics.median(times[path]) for path in PATHS)
            p99 = sorted(times["/-/gate"])[int(len(times["/-/gate"]) * 0.99)]
            columns = f"{healthy * 1e3:>14.3f}{gate * 1e3:>13.3f}{(gate - healthy) * 1e3:>16.3f}{p99 * 1e3:>21.3f}"
            print(f"  {words + ', ' + how:<40}{columns}", flush=True)
            fine = fine and gate - healthy < TARGET
    return fine


if __name__ == "__main__":
    sys.exit(int(not report()))
