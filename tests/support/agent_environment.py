"""The agent in an environment that a test advances: a clock, a scripted source, real files, and a real outbox."""

from __future__ import annotations

import io
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from exporter.agent.app import with_recorder
from exporter.agent.files import check_files
from exporter.agent.loop import Agent
from exporter.agent.ports import AgentOptions, Environment
from exporter.config.load import policy_values
from exporter.core.policy import Mode, Policy, Presence
from exporter.core.records import Record, Storable, Vm, VmIdentity
from exporter.core.snapshot import Status
from exporter.core.state import Instant, Interruption, InterruptionKind, State
from exporter.errors import Failure
from exporter.log.log import Log
from exporter.metadata.client import MetadataResponse
from exporter.metadata.errors import REASONS, MetadataError
from exporter.outbox.errors import OutboxUnwritable
from exporter.outbox.store import Outbox
from exporter.recorder.recorder import Recorder
from exporter.sinks.prometheus.sink import PrometheusSink
from tests.support import factories
from tests.support.log_reading import PATIENCE, logged
from tests.support.metrics_reading import value

START: Final = 1_790_000_000.0
NAME: Final = "web-1"
VM: Final = Vm(name=NAME, id="5c7f1d3e-1c1a-4a3e-9d57-0d1f4c1f2b11", location="westeurope")
OTHER_VM: Final = Vm(name="web-9", id="99999999-1c1a-4a3e-9d57-0d1f4c1f2b99", location="westeurope")
DESTINATIONS: Final = ("event_hubs", "otlp")
CAPACITY: Final = 10 << 20
REBOOT: Final = "A123BC45-1234-5678-AB90-ABCDEF123456"
FREEZE: Final = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
POST_SECONDS: Final = 5.0
NOTICING_SECONDS: Final = 0.004
"""Seconds from the last byte of a document until the observer is called."""
TIMEOUT: Final = MetadataError("timeout", "no answer")


@dataclass(slots=True)
class Clock:
    """Wall and monotonic time, in step unless a test makes them differ."""

    wall: float = START
    mono: float = 1_000.0

    def instant(self) -> Instant:
        return Instant(self.utc(), self.mono)

    def utc(self) -> datetime:
        return datetime.fromtimestamp(self.wall, UTC)

    def monotonic(self) -> float:
        return self.mono

    def go(self, seconds: float) -> None:
        self.wall += seconds
        self.mono += seconds


def event(event_id: str = REBOOT, kind: str = "Reboot", *resources: str, **fields: Any) -> dict[str, Any]:
    """Return a user's Reboot of this VM in fifteen minutes, which the default rules approve; `fields` replace its
    own."""
    not_before = datetime.fromtimestamp(START, UTC) + timedelta(minutes=15)
    return factories.azure_event(
        event_id, kind, list(resources) or [NAME], not_before, **{"EventSource": "User"} | fields
    )


started = factories.as_started


document = factories.document


@dataclass(slots=True)
class Source:
    """A source with a scripted answer, which records the time of each approval."""

    clock: Clock
    answer: bytes | Failure = field(default_factory=lambda: document(1))
    refusal: Failure | None = None
    takes: float = 0.0
    """Seconds between the last byte of an answer and its return (for freshness), on both clocks."""
    posts: list[tuple[float, str]] = field(default_factory=list)
    connects: Callable[[str], float] | None = None
    """Seconds until the POST of an event has a connection; from five on there is none. With threads, as for `hangs`."""
    disconnected: Failure | None = None
    """The reason why POSTs get no connection."""
    cut_off: Failure | None = None
    """The reason why no byte of a permitted POST is written."""
    failures: int = 0
    asked: Callable[[], None] = lambda: None
    """Called when a POST arrives."""
    hangs: Callable[[str], float] | None = None
    """Seconds until the response to a POST; from five on there is none. Each POST then has its own thread."""
    hanging: dict[threading.Event, float] = field(default_factory=dict)
    """The end of each POST that hangs, on the test's clock."""
    polls: list[float] = field(default_factory=list)

    polling: Callable[[], None] = lambda: None
    """Called during each poll."""

    def fetch(self) -> MetadataResponse:
        self.polls.append(self.clock.mono)
        self.polling()
        if isinstance(self.answer, Failure):
            self.failures += 1
            if isinstance(self.answer, MetadataError):
                self.answer.failures = self.failures
            raise self.answer
        self.failures = 0
        read = self.clock.mono
        self.clock.go(self.takes)
        return MetadataResponse(self.answer, read, 0.01)

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def approve(self, event_id: str, leave: Callable[[], None], left: Callable[[], None]) -> None:
        self.hang(self.connects(event_id) if self.connects else 0.0)
        if self.disconnected is not None:
            raise self.disconnected
        leave()
        if self.cut_off is not None:
            raise self.cut_off
        left()
        self.posts.append((self.clock.wall, event_id))
        self.asked()
        self.hang(self.hangs(event_id) if self.hangs else 0.0)
        if self.refusal is not None:
            raise self.refusal

    def hang(self, seconds: float) -> None:
        """Wait on the thread of a POST until this many seconds have passed; from five on the POST fails."""
        if seconds:
            end = threading.Event()
            self.hanging[end] = self.clock.mono + seconds
            assert end.wait(60), "the hanging POST was never ended"
        if seconds >= POST_SECONDS:
            raise MetadataError("timeout", "no answer")


class Disk(Outbox):
    """The outbox on a disk that may be slow."""

    takes: Callable[[], None] = staticmethod(lambda: None)
    full: Callable[[], bool] = staticmethod(lambda: False)
    """Whether the disk rejects writes; its content stays readable."""

    def commit(self, state: State, records: Sequence[Storable]) -> Mapping[str, int]:
        self._refuse()
        done = super().commit(state, records)
        self.takes()
        return done

    def save_heartbeat(self, seen: datetime) -> None:
        self._refuse()
        super().save_heartbeat(seen)

    def _refuse(self) -> None:
        if self.full():
            raise OutboxUnwritable("full", "no space left on device")


class AgentEnvironment:
    """One VM with its disk. `restart` ends the process without any clean-up, as a crash does, and begins another."""

    def __init__(
        self,
        folder: Path,
        policy: Policy | None = None,
        *,
        vm: Vm = VM,
        all_events: bool = False,
        poll_interval: float = 1.0,
        capacity: int = CAPACITY,
        path: Path | None = None,
        boot_id: str = "boot-1",
        source: Callable[[Clock], Source] | None = None,
        recording: Path | None = None,
        published: Callable[[Status], None] = lambda _status: None,
    ) -> None:
        self.published = published
        self.clock = Clock()
        self.source = source(self.clock) if source else Source(self.clock)
        self.identity = VmIdentity(vm)
        self.path = path or folder / "outbox.db"
        self.capacity = capacity
        self.options = AgentOptions(
            policy=policy or Policy(mode=Mode.ENFORCE),
            poll_interval=poll_interval,
            all_events=all_events,
            version="1.0.0",
            boot_id=boot_id,
        )
        self.observed_interruptions: list[Interruption] = []
        """The interruptions that the observer has seen."""
        self.ending: list[tuple[InterruptionKind, float]] = []
        """The interruptions that it returns when it is next called, because they ended only then."""
        self.kept: list[bytes] = []
        self.stopping = False
        self.disk_is_full = False
        self.threads: list[threading.Thread] = []
        self.no_thread = False
        self.look: Callable[[Iterable[str]], Mapping[str, Presence]] = check_files
        self.text = io.StringIO()
        self.log = Log(None)
        self.recording = recording
        self.start()

    def start(self) -> None:
        """Begin a process."""
        self.sink = PrometheusSink(
            "1.0.0",
            tuple(rule.name for rule in self.options.policy.rules),
            destinations=DESTINATIONS,
            poll_failure_reasons=REASONS,
            now=self.clock.instant,
            include_process_metrics=False,
        )
        self.outbox = Disk(self.path, self.capacity, DESTINATIONS, now=self.clock.utc)
        self.outbox.full = lambda: self.disk_is_full
        self.log.close(PATIENCE)  # that of the process before
        self.log = log = Log(self.text, clock=lambda: self.clock.wall, monotonic=self.clock.monotonic)
        environment = Environment(
            clock=self.clock.instant,
            identity=lambda: self.identity,
            check_files=self._check_files,
            interruptions=self._interruptions,
            record_document=lambda body, _read: self.kept.append(body),
            stopping=lambda: self.stopping,
            spawn=self._spawn,
            publish_status=self.published,
        )
        self.recorder: Recorder | None = None
        if self.recording is not None:
            interval, policy = self.options.poll_interval, policy_values(self.options.policy)
            self.recorder = recorder = Recorder(
                self.recording, 64 << 20, 1, log=log, identity=lambda: self.identity, poll_interval=interval
            )
            recorder.began(self.clock.utc(), self.options.version, self.options.boot_id, policy)
            environment = with_recorder(environment, recorder)
        self.agent = Agent(self.options, self.source, self.outbox, self.sink, log=log, environment=environment)

    def _check_files(self, paths: Iterable[str]) -> Mapping[str, Presence]:
        return self.look(paths)

    def stop(self) -> None:
        """End the process in order."""
        self.agent.stop()
        if self.recorder is not None:
            self.recorder.ended(self.clock.utc())

    def restart(self, seconds: float = 1.0, *, boot_id: str | None = None) -> None:
        self._close()
        self.clock.go(seconds)
        self.clock.mono = 5.0  # another process, perhaps another boot: its clock starts elsewhere
        self.stopping = False
        if boot_id is not None:
            self.options = replace(self.options, boot_id=boot_id)
        self.start()

    def start_again(self) -> None:
        """Restart at once, without a change of the clock: the outbox is reopened."""
        self.outbox.close()
        self.start()

    def __enter__(self) -> AgentEnvironment:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self.source.close()

    def _close(self) -> None:
        self.outbox.close()
        self.close_recording()

    def close_recording(self) -> None:
        """Assert that the file has all of it."""
        if self.recorder is not None:
            self.recorder.close(60)

    def _interruptions(self) -> Sequence[Interruption]:
        for kind, seconds in self.ending:
            self.clock.go(NOTICING_SECONDS)
            self.observed_interruptions.append(Interruption(kind, seconds, self.clock.instant()))
        found, self.observed_interruptions, self.ending = self.observed_interruptions, [], []
        return found

    def _spawn(self, task: Callable[[], None], _patience: float) -> None:
        """Run a POST at once, or until it hangs."""
        if self.no_thread:
            raise RuntimeError("can't start new thread")
        if self.source.hangs is None and self.source.connects is None:
            task()
            return
        hanging = len(self.source.hanging)
        thread = threading.Thread(target=task, daemon=True)
        thread.start()
        while thread.is_alive() and len(self.source.hanging) == hanging:
            thread.join(0.001)
        self.threads.append(thread)

    def end_posts_now(self) -> None:
        """Give the hanging POSTs their response, or their connection, at once."""
        self._end_posts(float("inf"))

    def _end_posts(self, until: float | None = None) -> None:
        """Give the POSTs that are due their response, or their connection."""
        until = self.clock.mono if until is None else until
        over = [end for end, at in self.source.hanging.items() if at <= until + 1e-6]
        for end in over:
            del self.source.hanging[end]
            end.set()
        while sum(thread.is_alive() for thread in self.threads) > len(self.source.hanging):
            for thread in self.threads:
                thread.join(0.001)

    # -- advance

    def see(self, answer: bytes | Failure, seconds: float = 1.0) -> None:
        """Make the source return this from now on; advance by that long."""
        self.source.answer = answer
        self.live(seconds)

    def live(self, seconds: float) -> None:
        """Run the loop until this much time has passed."""
        end = self.clock.mono + seconds
        while True:
            self._end_posts()
            wait = self.agent.tick()
            wait = min([wait, *(at - self.clock.mono for at in self.source.hanging.values())])
            if self.clock.mono + max(wait, 0.01) > end + 1e-6:
                self.clock.go(max(0.0, end - self.clock.mono))
                return
            self.clock.go(max(wait, 0.01))

    # -- observe

    def records(self, *kinds: str, destination: str = "event_hubs") -> list[Record]:
        """Return everything that was ever committed and is still queued for this destination, oldest first."""
        return [found for found in queued_in(self.outbox.path, destination) if not kinds or found.kind in kinds]

    @property
    def writable(self) -> bool:
        """Return what the status reports of the disk."""
        return self.agent.status.outbox.writable

    def kinds(self) -> list[str]:
        return [record.kind for record in self.records()]

    def reasons(self) -> list[str | None]:
        """Return the reason of each published decision, None for an approval."""
        return [record.data["decision"]["reason"] for record in self.records("approval.decided")]

    def said(self, name: str) -> list[str]:
        """Return the lines of the agent's log with this event name."""
        return [line for line in logged(self.log, self.text).splitlines() if f"event={name} " in f"{line} "]

    def value(self, name: str, **labels: str) -> float | None:
        """Return a sample of `/metrics`."""
        return value(self.sink, name, **labels)


def queued_in(path: Path, destination: str) -> list[Record]:
    """Return the records that wait for a destination, read from the file while the agent runs."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute(
            "SELECT r.body FROM queue q JOIN records r USING (seq) WHERE q.destination = ? AND q.parked IS NULL"
            " ORDER BY q.seq",
            (destination,),
        ).fetchall()
    return [Record.from_json(body) for (body,) in rows]


def policy(mode: str = "enforce", **more: Any) -> Policy:
    """Return a policy in this mode, with other fields as given."""
    return Policy(mode=Mode(mode), **more)


def apart(posts: Iterable[tuple[float, str]]) -> list[float]:
    """Return the seconds from one POST to the next."""
    return [round(later - earlier, 3) for (earlier, _), (later, _) in pairwise(posts)]
