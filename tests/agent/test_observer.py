"""The observer: with clocks driven by hand, and in a process that is really stopped."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from exporter.agent.observer import KEPT, PAUSE_AFTER_ERROR, QUIET_TICK_SECONDS, TICK_SECONDS, Observer, system_rate
from exporter.commands.tail.records import OutboxReader
from exporter.core.records import Record
from exporter.core.state import InterruptionKind
from exporter.log.protocol import NullLogger
from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService
from tests.support.core_documents import event, started

T = TypeVar("T")
SECOND = 1_000_000_000
EPOCH = 1_763_726_400 * SECOND
SOON = 10.0
ROOT = Path(__file__).parents[2]
STOPPED_SECONDS = 1.2


class Troubles(NullLogger):
    """A log that stores failures."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def failing(self, key: str, event: str, **fields: Any) -> None:
        assert (key, event) == ("observer", "observer.failed")
        self.reasons.append(str(fields["reason"]))


class Stage:
    """An observer with clocks that are numbers, and with ticks that the test releases."""

    def __init__(self, rate: Callable[[], float] | None = None) -> None:
        self.mono_ns, self.real_ns = 50 * SECOND, EPOCH
        self.broken = False
        self.log = Troubles()
        self._sleeps: queue.Queue[float] = queue.Queue()
        self._go: queue.Queue[None] = queue.Queue()
        self.observer = Observer(self.log, self._sleep, self._mono, lambda: self.real_ns, rate=rate)

    def __enter__(self) -> Stage:
        self.observer.start()
        assert self._sleeps.get(timeout=SOON) == TICK_SECONDS
        return self

    def __exit__(self, *_: object) -> None:
        stopper = threading.Thread(target=self.observer.stop)
        stopper.start()
        for _unused in range(2):
            self._go.put(None)
        stopper.join(SOON)
        assert not stopper.is_alive()

    def _mono(self) -> int:
        if self.broken:
            raise OverflowError("a clock that has gone mad")
        return self.mono_ns

    def _sleep(self, seconds: float) -> None:
        self._sleeps.put(seconds)
        self._go.get(timeout=SOON)

    def passes(self, mono: float, wall: float | None = None) -> None:
        self.mono_ns += round(mono * SECOND)
        self.real_ns += round((mono if wall is None else wall) * SECOND)

    def tick(self) -> float:
        """Release one tick. Return the seconds of the next sleep."""
        self._go.put(None)
        return self._sleeps.get(timeout=SOON)

    def taken(self) -> list[tuple[InterruptionKind, float]]:
        return [(found.kind, found.seconds) for found in self.observer.take()]


def test_stall_is_returned_once() -> None:
    with Stage() as stage:
        stage.passes(TICK_SECONDS)
        stage.tick()
        assert stage.taken() == []
        stage.passes(TICK_SECONDS + 2)
        stage.tick()
        assert stage.taken() == [(InterruptionKind.STALL, 2.0)]
        assert stage.taken() == []


@pytest.mark.parametrize(
    ("wall", "recorded"), [(3.1, (InterruptionKind.STALL, 3.0)), (8.1, (InterruptionKind.STALL, 3.0))]
)
def test_interruption_that_just_ended_is_returned_by_take(
    wall: float, recorded: tuple[InterruptionKind, float]
) -> None:
    """The next tick may come too late for its document; it doesn't report the interruption again."""
    with Stage() as stage:
        stage.passes(3.1, wall)
        step = [(InterruptionKind.CLOCK_STEP, wall - 3.1)] if wall > 3.1 else []
        assert stage.taken() == [recorded, *step]
        stage.passes(0.05)
        stage.tick()
        assert stage.taken() == []


def test_time_without_ticks_is_not_a_stall() -> None:
    """After the end, and during the pause of a failed observer."""
    with Stage() as stage:
        stage.broken = True
        assert stage.tick() == PAUSE_AFTER_ERROR
        stage.broken = False
        stage.passes(PAUSE_AFTER_ERROR)
        assert stage.taken() == []
    stage.passes(60.0)
    assert stage.taken() == []


def test_clock_failure_in_take_is_logged() -> None:
    with Stage() as stage:
        stage.broken = True
        assert stage.taken() == []
        assert stage.log.reasons == ["OverflowError"]
        stage.broken = False


@pytest.mark.parametrize(("near", "tick"), [(True, TICK_SECONDS), (False, QUIET_TICK_SECONDS)])
def test_shortest_stall_is_measured_from_the_end_of_each_sleep(near: bool, tick: float) -> None:
    """At both rates, a wake-up 0.199 s late is noise and one 0.2 s late is a stall; a change of rate is neither."""
    with Stage() as stage:
        stage.observer.expect(near)
        stage.passes(TICK_SECONDS)
        assert stage.tick() == tick
        stage.passes(tick + 0.199)
        assert stage.tick() == tick
        stage.passes(tick / 2)
        assert stage.taken() == []
        stage.passes(tick / 2)
        stage.tick()
        assert stage.taken() == []
        stage.passes(tick + 0.2)
        stage.observer.expect(not near)
        stage.tick()
        assert stage.taken() == [(InterruptionKind.STALL, 0.2)]


@pytest.mark.parametrize("near", [True, False])
def test_next_tick_observes_a_clock_step(near: bool) -> None:
    """Of 0.2 s or more, at both rates; a smaller one adds up with the next."""
    with Stage() as stage:
        stage.observer.expect(near)
        stage.passes(TICK_SECONDS)
        tick = stage.tick()
        stage.passes(tick, tick + 0.199)
        stage.tick()
        assert stage.taken() == []
        stage.passes(tick, tick + 0.2)
        stage.tick()
        ((kind, seconds),) = stage.taken()
    assert (kind, round(seconds, 2)) == (InterruptionKind.CLOCK_STEP, 0.4)
    assert stage.log.reasons == []


def test_clock_failure_is_logged_and_retried() -> None:
    """The time without observations isn't a stall."""
    with Stage() as stage:
        stage.broken = True
        assert stage.tick() == PAUSE_AFTER_ERROR
        stage.broken = False
        stage.passes(PAUSE_AFTER_ERROR)
        assert stage.tick() == TICK_SECONDS
        stage.passes(TICK_SECONDS + 2)
        stage.tick()
        assert stage.taken() == [(InterruptionKind.STALL, 2.0)]
    assert stage.log.reasons == ["OverflowError"]


def test_slewing_with_a_reported_rate_is_not_a_step() -> None:
    """As on Windows: only the wall clock runs half as fast again for a minute."""
    with Stage(rate=lambda: 0.5) as stage:
        for _ in range(600):
            stage.passes(TICK_SECONDS, TICK_SECONDS * 1.5)
            stage.tick()
        assert stage.taken() == []
        stage.passes(TICK_SECONDS, TICK_SECONDS * 1.5 + 5)
        stage.tick()
        ((kind, seconds),) = stage.taken()
    assert kind is InterruptionKind.CLOCK_STEP
    assert seconds == pytest.approx(5.0, abs=0.01)


@pytest.mark.parametrize("wall", [0.5, 1.0, 1.5])
def test_unreadable_rate_is_logged_and_causes_no_step(wall: float) -> None:
    """What no possible rate explains is still a step, somewhat too short."""
    rate = system_rate("win32", no_reader)
    with Stage(rate=rate) as stage:
        for _ in range(100):
            stage.passes(TICK_SECONDS, TICK_SECONDS * wall)
            stage.tick()
        assert stage.taken() == []
        stage.passes(TICK_SECONDS, TICK_SECONDS + 5)
        stage.tick()
        ((kind, seconds),) = stage.taken()
    assert kind is InterruptionKind.CLOCK_STEP
    assert 4 <= seconds <= 5
    assert set(stage.log.reasons) == {"clock-rate"}


def no_reader() -> Callable[[], float]:
    raise OSError(errno.ENOSYS, "no such function")


def test_rate_is_read_on_windows_only() -> None:
    """Linux slews the monotonic clock like the wall clock."""
    assert system_rate("linux", no_reader)() == 0.0
    assert system_rate("win32", lambda: lambda: 0.25)() == 0.25


def test_number_of_untaken_interruptions_is_limited() -> None:
    """The newest are kept."""
    with Stage() as stage:
        for number in range(KEPT + 5):
            stage.passes(TICK_SECONDS + 1 + number)
            stage.tick()
        taken = stage.taken()
    assert len(taken) == KEPT
    assert taken[-1] == (InterruptionKind.STALL, KEPT + 5.0)


def test_observer_that_never_started_can_be_stopped() -> None:
    """An agent that fails to start ends cleanly."""
    Observer(Troubles()).stop()


@pytest.mark.linux("counts descriptors in /proc")
def test_observer_leaves_no_thread_or_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    observer = Observer(Troubles())
    observer.start()
    assert threading.active_count() == before[1] + 1
    observer.stop()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


# -- a stopped process

OBSERVING = """
import json, time
from exporter.agent.observer import Observer
class Log:
    def failing(self, *words, **fields): print(json.dumps([str(words), 0]), flush=True)
observer = Observer(Log())
observer.start()
time.sleep(0.3)
print("observing", flush=True)
while True:
    for found in observer.take():
        print(json.dumps([found.kind, found.seconds]), flush=True)
    time.sleep(0.02)
"""


def stop_and_continue(pid: int, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> float:
    """Stop a child for this many seconds and return the real ones. `meanwhile` runs during the stop."""
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    # One thread handles the signal and stops the others, which run until it gets a processor.
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    meanwhile()
    time.sleep(seconds)  # the test needs real time
    os.kill(pid, signal.SIGCONT)
    return time.monotonic() - began


@pytest.mark.linux("stops a process with SIGSTOP")
def test_stopped_process_observes_a_stall() -> None:
    """SIGSTOP is a stall of its duration, up to one tick less, and no step."""
    with subprocess.Popen([sys.executable, "-c", OBSERVING], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "observing\n"
            lasted = stop_and_continue(process.pid, STOPPED_SECONDS)
            kind, seconds = json.loads(process.stdout.readline())
        finally:
            process.kill()
    assert kind == "stall"
    assert lasted - TICK_SECONDS - 0.1 <= seconds <= lasted + 0.2


@pytest.mark.linux("stops a process with SIGSTOP")
def test_agent_stopped_during_an_event_attributes_the_stall(tmp_path: Path) -> None:
    """Afterwards it polls as before."""
    with MetadataService(load("live-migration")) as service:
        vm = service.vm.name
        service.set_document({"DocumentIncarnation": 1, "Events": [event(Resources=[vm])]})
        with agent(service.url, tmp_path) as (process, url):
            wait_for(lambda: metric(url, "document_events") == 1)
            service.set_document({"DocumentIncarnation": 2, "Events": [started(Resources=[vm], DurationInSeconds=9)]})
            wait_for(lambda: metric(url, "events", 'event_type="Reboot",event_status="Started"') == 1)
            lasted = stop_and_continue(process.pid, STOPPED_SECONDS)
            asked, since = len(service.requests), time.monotonic()
            wait_for(lambda: metric(url, "observed_interruption_seconds_sum", OBSERVED) >= lasted - TICK_SECONDS - 0.1)
            most = time.monotonic() - since + 3
            assert len(service.requests) - asked <= most, "missed polls must not be repeated"
        service.set_document({"DocumentIncarnation": 3, "Events": []})
    records = [record for record in outbox(tmp_path) if record.kind == "interruption.observed"]
    # A busy machine may also stop the agent for a moment: the longest stop is that of the test.
    record = max(records, key=lambda record: float(record.data["interruption"]["seconds"]))
    recorded = record.data["interruption"]
    assert record.subject == event()["EventId"]
    assert (recorded["kind"], recorded["attributed"], recorded["announced_seconds"]) == ("stall", True, 9)
    assert recorded["seconds"] == recorded["longest_seconds"] <= recorded["total_seconds"]
    assert lasted - TICK_SECONDS - 0.1 <= recorded["seconds"] <= lasted + 1


FREEZES = 8
FROZEN_SECONDS = 0.5


@pytest.mark.linux("stops a process with SIGSTOP")
def test_stall_until_the_end_of_the_event_is_in_its_summary(tmp_path: Path) -> None:
    """The poll that finds the event removed often comes before the observer's next tick."""
    with MetadataService(load("live-migration")) as service:
        vm, number = service.vm.name, 1
        service.set_document({"DocumentIncarnation": number, "Events": []})
        with agent(service.url, tmp_path, "--source.poll-interval=50ms") as (process, url):
            wait_for(lambda: metric(url, "document_incarnation") == 1)
            for freeze in range(FREEZES):
                shown = started(EventId=f"freeze-{freeze}", EventType="Freeze", Resources=[vm])
                service.set_document({"DocumentIncarnation": number + 1, "Events": [shown]})
                number += 2
                is_started = f'event_id="freeze-{freeze}",event_status="Started"'
                wait_for(partial(equals, 1, url, "event_status", is_started))
                gone = {"DocumentIncarnation": number, "Events": []}
                stop_and_continue(process.pid, FROZEN_SECONDS, partial(service.set_document, gone))
                wait_for(partial(equals, freeze + 1, url, "events_closed_total", COMPLETED))
    summaries = [record.data["summary"] for record in outbox(tmp_path) if record.kind == "completed"]
    observed = [summary["interruption_longest_seconds"] or 0.0 for summary in summaries]
    assert len(observed) == FREEZES
    assert [seconds for seconds in observed if seconds < FROZEN_SECONDS - TICK_SECONDS - 0.1] == []


def equals(value: float, url: str, name: str, labels: str) -> bool:
    return metric(url, name, labels) == value


COMPLETED = 'event_type="Freeze",outcome="completed"'
OBSERVED = 'kind="stall",attributed="true"'


@contextlib.contextmanager
def agent(source: str, folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start an agent that keeps its records, because their destination is missing; yield the address of its metrics."""
    command = [sys.executable, "-m", "exporter", "run", f"--source.url={source}", f"--outbox.path={folder / 'outbox'}"]
    command += ["--web.listen-address=127.0.0.1:0", "--otlp.endpoint=http://127.0.0.1:1", "--log.format=json", *flags]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stderr=log, text=True)
    try:
        yield process, f"http://{wait_for(lambda: _listening(folder / 'log'))}/metrics"
    finally:
        process.terminate()
        process.wait(SOON)


def _listening(log: Path) -> str:
    found = re.search(r'"address": ?"([^"]+)"', log.read_text())
    return found[1] if found else ""


def wait_for(holds: Callable[[], T]) -> T:
    """Return the result of `holds` as soon as it is true."""
    deadline = time.monotonic() + 3 * SOON
    while not (answer := holds()):
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.05)  # time between two requests to another process
    return answer


def metric(url: str, name: str, labels: str = "") -> float:
    """Return the value of one series; -1 if it doesn't exist."""
    with urllib.request.urlopen(url, timeout=SOON) as answer:  # noqa: S310  # our own agent on loopback
        text = answer.read().decode()
    wanted = set(labels.split(",")) - {""}
    for line in text.splitlines():
        found = re.fullmatch(rf"azure_scheduled_events_{name}(?:\{{(.*)\}})? (\S+)", line)
        if found and set((found[1] or "").split(",")) - {""} == wanted:
            return float(found[2])
    return -1.0


def outbox(folder: Path) -> list[Record]:
    return [kept.record for kept in OutboxReader(str(folder / "outbox")).new()]
