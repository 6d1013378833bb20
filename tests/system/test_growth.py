"""Repeated work leaks nothing: objects are counted, not bytes, because that is exact.

`benchmarks.soak` runs the whole agent for minutes; these tests find smaller leaks, such as one object with each poll.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import linecache
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import pytest
from msgspec.structs import replace

from benchmarks.peers import DROP, Peers
from exporter.core.memory import CLOSED_KEPT
from exporter.errors import Failure
from exporter.metadata.client import MetadataClient
from exporter.metadata.errors import MetadataError
from exporter.sinks.event_hubs.sink import WIDEN_AFTER, WIDEN_SECONDS
from tests.support.agent_environment import AgentEnvironment, document, event, started
from tests.support.eventhubs_broker import FORGETFUL, collected
from tests.support.eventhubs_target import a_record, hub_destination
from tests.support.log_reading import PATIENCE
from tests.support.otlp_receiver import otlp_to
from tests.support.web_target import Pages, serving
from tests.system.test_run import quiet

pytestmark = [*FORGETFUL, pytest.mark.nightly]
_collect = pytest.fixture(autouse=True)(collected)

EVENTS: Final = 4
LOOKS: Final = 12


def objects() -> int:
    """Count Python's small objects after two garbage collections (an end may leave some behind). Source lines that
    pytest reads for a traceback in the log don't count, nor do names in the interpreter's cache of attributes: it goes
    by addresses, so each name that is built takes its own entry, up to 4096."""
    linecache.clearcache()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 3.13, without a replacement
        sys._clear_type_cache()
    gc.collect()
    gc.collect()
    return sys.getallocatedblocks()


def left_behind(work: Callable[[], object], *, times: int, warm: int) -> float:
    """Return objects per repetition, once the work was repeated often enough to fill its caches.

    Some caches are swept now and then, so the lowest of the first third is compared with the lowest of the last.
    """
    for _ in range(warm):
        work()
    counts = []
    for number in range(times):
        if number % (times // LOOKS) == 0:
            counts.append(objects())
        work()
    third = LOOKS // 3
    return (min(counts[-third:]) - min(counts[:third])) / (times * 2 / 3)


def test_a_leak_is_found() -> None:
    """One object lost each time is found; work that keeps nothing gives none.

    Often, because some dozens of objects of earlier tests may be freed meanwhile.
    """
    lost: list[object] = []
    assert left_behind(lambda: lost.append(object()), times=4_800, warm=20) >= 0.9
    assert left_behind(lambda: [object() for _ in range(100)], times=4_800, warm=20) < 0.1


def test_polls_and_maintenance_leak_nothing(tmp_path: Path) -> None:
    """A maintenance with its polls, decisions, records, a failure of the source, and a scrape."""
    numbers = itertools.count(1)
    with AgentEnvironment(tmp_path) as environment:
        environment.outbox.close()
        environment.options = replace(environment.options, event_memory_bytes=1 << 16)  # full before the count begins
        environment.start()

        def scenario() -> None:
            mine = [event(f"event-{next(numbers)}") for _ in range(EVENTS)]
            environment.see(document(next(numbers), *mine), 3)
            environment.see(MetadataError("timeout", "no answer"), 12)
            environment.see(document(next(numbers), *map(started, mine)), 3)
            environment.see(document(next(numbers)), 3)
            environment.sink.render(openmetrics=True)
            for name in ("event_hubs", "otlp"):
                while waiting := environment.outbox.next(name, 100):
                    environment.outbox.delivered(name, [queued.seq for queued in waiting])
            environment.clock.go(31 * 86_400.0)  # what was sent or Started may be dropped then, if its space is needed
            # Data of the test environment.
            environment.kept.clear()
            environment.source.posts.clear()
            environment.source.polls.clear()
            assert environment.log.flush(PATIENCE)
            environment.text.truncate(0)
            environment.text.seek(0)

        assert left_behind(scenario, times=96, warm=8 * CLOSED_KEPT // EVENTS) < 6  # of twelve polls


def test_reading_the_source_leaks_nothing() -> None:
    """Responses, errors of every kind, and broken connections over real HTTP."""
    faults = itertools.cycle((None, "500", "reset", "truncated", "html", "429", "nan", "half-close", "deep", None))
    with quiet() as service, contextlib.closing(MetadataClient(service.url, "2020-07-01")) as client:

        def poll() -> None:
            service.fault(next(faults))
            with contextlib.suppress(Failure):
                client.fetch()
            service.requests.clear()

        assert left_behind(poll, times=240, warm=100) < 0.3


def test_scrapes_leak_nothing() -> None:
    """Scrapes on one connection and on many."""
    pages = Pages()
    with serving(pages) as (host, port), httpx.Client(trust_env=False) as client:

        def scrape() -> None:
            pages.asked.clear()
            client.get(f"http://{host}:{port}/metrics")
            httpx.get(f"http://{host}:{port}/metrics", trust_env=False)

        assert left_behind(scrape, times=96, warm=48) < 0.5


@pytest.mark.linux("has peers that are held by SIGSTOP")
def test_a_flapping_collector_leaks_nothing() -> None:
    """Sends over OTLP that succeed, are rejected in every way, or have their connection broken."""
    statuses = itertools.cycle((200, DROP, 302, 401, 429, 500, 503, 200))
    with Peers() as peers, contextlib.closing(otlp_to(f"{peers.endpoint}/v1/logs", timeout=5.0)) as destination:

        def send() -> None:
            peers.ask("collector", status=next(statuses))
            with contextlib.suppress(Failure):
                destination.send([a_record()])

        assert left_behind(send, times=192, warm=80) < 0.3


@pytest.mark.linux("has peers that are held by SIGSTOP")
def test_backlogs_over_several_connections_leak_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A backlog that drains slowly opens further connections, and closes them when it is drained."""
    now = itertools.count(0.0, 2 * WIDEN_SECONDS)
    with Peers() as peers:
        destination = hub_destination(peers.connection_string, monotonic=lambda: next(now))

        def drain() -> None:
            for _ in range(WIDEN_AFTER + 1):
                destination.send([a_record()])
            destination.send([a_record(number, subject=f"event-{number}") for number in range(destination.subjects)])
            destination.idle()
            caplog.clear()

        assert left_behind(drain, times=12, warm=8) < 4
        destination.close()


@pytest.mark.linux("has peers that are held by SIGSTOP")
def test_reconnecting_to_event_hubs_leaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Each send uses its own connection, which is closed or broken by the other side."""
    now = itertools.count(0.0, 100.0)
    breaks = itertools.cycle(("", "drop-before-store*1", "", "detach*1"))
    with Peers() as peers:
        destination = hub_destination(peers.connection_string, idle_close=1.0, monotonic=lambda: next(now))

        def connect() -> None:
            peers.ask("clear")
            if fault := next(breaks):
                peers.ask("fault", text=fault)
            with contextlib.suppress(Failure):
                destination.send([a_record()])
            destination.idle()
            caplog.clear()  # it keeps the SDK's messages, and with them its connections

        # A leaked client of the SDK would be some thirty objects, even if closed.
        assert left_behind(connect, times=12, warm=8) < 4
        destination.close()
