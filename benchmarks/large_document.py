"""The time and memory that large documents take: `python -m benchmarks.large_document`.

Each document is served to a new agent that polls once a second and has both destinations. "Handled" is the time from
the GET that returns the document to the POST for its last event, the only one that matches a rule. By then the agent
has read, compared, decided, recorded, and committed every event.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.agent import Agent, document, event, metadata_service
from benchmarks.peers import Peers
from exporter.simulator.metadata.protocol import EVENTS_PATH
from exporter.simulator.metadata.service import MetadataService

SIZES: Final = (1, 100, 1_000, 10_000)
PATIENCE: Final = 60.0
UNCHANGED_SECONDS: Final = 8.0
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Handling:
    """Costs of one document, in seconds and bytes. `unchanged` is the share of a core while the document stays the
    same."""

    events: int
    body: int
    handled: float
    next_poll: float
    unchanged: float
    peak_rss: int


def large_document(count: int, *, own: bool) -> dict[str, object]:
    """Return a document with `count` events of this VM (`own`) or of others. Only the last event, always of this VM,
    matches a rule."""
    others = {} if own else {"Resources": ["neighbour"]}
    events = [event(number, EventType="Redeploy", EventSource="Platform", **others) for number in range(1, count)]
    return document(2, *events, event(0))


def handle(count: int, *, own: bool) -> Handling:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="azse-bench-"))
        environ = stack.enter_context(Peers()).environ
        service = stack.enter_context(metadata_service())
        service.set_document(document(1))
        flags = ("--approval.mode=enforce",)
        agent = stack.enter_context(Agent(Path(folder), service.url, *flags, environ=environ)).started()
        if not service.wait_until(lambda: len(_polls(service)) >= 3, PATIENCE):
            raise RuntimeError("the agent doesn't poll")
        changed = large_document(count, own=own)
        service.set_document(changed)
        before = len(_polls(service))
        if not service.wait_until(lambda: len(service.posts) > 0 and len(_polls(service)) > before + 1, PATIENCE):
            raise RuntimeError(f"the agent didn't handle a document of {count} events")
        read, following = _polls(service)[before : before + 2]
        _until_delivered(agent)
        usage = agent.usage()
        time.sleep(UNCHANGED_SECONDS)
        after = agent.usage()
        return Handling(
            events=count,
            body=len(repr(changed)),
            handled=service.posts[0].time - read,
            next_poll=following - read,
            unchanged=(after.running - usage.running) / (after.at - usage.at),
            peak_rss=after.peak_rss,
        )


def _until_delivered(agent: Agent) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if not any(agent.metric("outbox_records", f'{{destination="{name}"}}') for name in ("event_hubs", "otlp")):
            return
        time.sleep(0.5)


def approve_all(count: int) -> tuple[float, int]:
    """Return the seconds until `count` simultaneous events are approved, and the number of POSTs."""
    with tempfile.TemporaryDirectory(prefix="azse-bench-") as folder, metadata_service() as service:
        service.set_document(document(1))
        with Agent(Path(folder), service.url, "--approval.mode=enforce") as agent:
            agent.started()
            service.wait_until(lambda: len(_polls(service)) >= 3, PATIENCE)
            service.set_document(document(2, *(event(number) for number in range(count))))
            began = time.time()
            service.wait_until(lambda: len(_approved(service)) >= count, 5 * PATIENCE)
            return time.time() - began, len(service.posts)


def _approved(service: MetadataService) -> set[str]:
    return {event_id for post in service.posts for event_id in post.event_ids}


def _polls(service: MetadataService) -> list[float]:
    return [r.time for r in service.requests if r.method == "GET" and r.path.startswith(EVENTS_PATH)]


def report(sizes: tuple[int, ...] = SIZES) -> bool:
    """Print the table. Return whether 1,000 events are handled within one poll interval of 1 s."""
    fine = True
    print("events in one document      handled s   next poll after s   CPU if unchanged      peak MiB")
    for own in (True, False):
        for count in sizes:
            found = handle(count, own=own)
            owner = "of this VM" if own else "of neighbours"
            print(
                f"  {count:>6} {owner:<16}{found.handled:>12.3f}{found.next_poll:>20.2f}{found.unchanged:>22.2%}"
                f"{found.peak_rss / MIB:>11.1f}",
                flush=True,
            )
            fine = fine and (count > 1_000 or found.handled < 1.0)
    seconds, posts = approve_all(100)
    print(f"100 simultaneous events that match a rule: approved after {seconds:.1f} s, with {posts} POSTs")
    return fine


if __name__ == "__main__":
    report()
