"""The time from a changed document to its approval: `python -m benchmarks.reaction`.

The metadata service, in another process than the agent, measures from the arrival of the GET that returns the changed
document to the arrival of the complete POST. The wait for the next poll isn't included.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.agent import Agent, document, event, metadata_service
from benchmarks.peers import Peers
from exporter.simulator.metadata.protocol import EVENTS_PATH
from exporter.simulator.metadata.service import MetadataService

CHANGES: Final = 200
INTERVAL: Final = 0.05
PATIENCE: Final = 20.0
ROUNDS: Final = 4
"""The number of agents with event files, and of agents without."""


def reactions(service: MetadataService, changes: int) -> list[float]:
    """Return the seconds from each change to its approval, without the first three (warm-up)."""
    found: list[float] = []
    for number in range(1, changes + 4):
        service.set_document(document(number, event(number)))
        if not service.wait_until(lambda n=number: len(service.posts) >= n, PATIENCE):  # type: ignore[misc]  # a default can't be annotated
            raise RuntimeError(f"change {number} was not approved")
        post = service.posts[-1]
        read = next(
            request.time
            for request in reversed(service.requests)
            if request.method == "GET" and request.path.startswith(EVENTS_PATH) and request.time < post.time
        )
        found.append(post.time - read)
    return found[3:]


@contextmanager
def _baseline(url: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.baseline", url, str(INTERVAL)],
        cwd=Path(__file__).parent.parent,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def of_baseline(changes: int) -> list[float]:
    with metadata_service() as service, _baseline(service.url):
        return reactions(service, changes)


def of_agent(changes: int, *, outputs: bool, event_files: bool = False) -> list[float]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="azse-bench-"))
        environ = stack.enter_context(Peers()).environ if outputs else {}
        service = stack.enter_context(metadata_service())
        flags = ["--approval.mode=enforce", f"--source.poll-interval={INTERVAL * 1000:.0f}ms"]
        if event_files:
            (Path(folder) / "events").mkdir()
            flags.append(f"--event-files.path={folder}/events")
        stack.enter_context(Agent(Path(folder), service.url, *flags, environ=environ)).started()
        return reactions(service, changes)


def with_and_without_event_files(changes: int) -> tuple[list[float], list[float]]:
    """Return the times of agents with and without event files, in turns, so that other load affects both equally."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for on in (True, False, False, True) * (ROUNDS // 2):
        times[on] += of_agent(changes // ROUNDS, outputs=False, event_files=on)
    return times[True], times[False]


def report(changes: int = CHANGES) -> bool:
    """Print the times. Return whether each median meets the target of 10 ms."""
    baseline = of_baseline(changes)
    print(f"reaction, {changes} changes each        median ms   p99 ms   worst ms   median / baseline")
    _line("baseline", baseline, baseline)
    found = {name: of_agent(changes, outputs=on) for name, on in (("no outputs", False), ("all outputs", True))}
    for name, times in found.items():
        _line(f"agent, {name}", times, baseline)
    written, none = with_and_without_event_files(changes)
    _line("agent, event files", written, baseline)
    _line("agent, no event files", none, baseline)
    print(f"  event files: {statistics.median(written) / statistics.median(none):.2f} x the median without")
    return all(statistics.median(times) < 0.010 for times in (*found.values(), written))


def _line(name: str, times: list[float], baseline: list[float]) -> None:
    median, p99 = statistics.median(times), sorted(times)[int(len(times) * 0.99)]
    ratio = median / statistics.median(baseline)
    print(f"  {name:<30}{median * 1e3:>10.2f}{p99 * 1e3:>9.2f}{max(times) * 1e3:>11.2f}{ratio:>12.1f}x", flush=True)


if __name__ == "__main__":
    report(int(sys.argv[1]) if len(sys.argv) > 1 else CHANGES)
