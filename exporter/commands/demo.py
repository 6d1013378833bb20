"""The whole of it on one machine: a simulated metadata service plays a story, the agent reads, decides and approves,
and every record arrives over real AMQP and real OTLP. The timeline is printed from what a consumer of Event Hubs gets.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TextIO

import httpx

from exporter.agent.app import App
from exporter.commands.simulate import speed
from exporter.config.schema import (
    ApprovalSettings,
    EventHubsSettings,
    OtlpSettings,
    OutboxSettings,
    Settings,
    SourceSettings,
    WebSettings,
)
from exporter.config.types import path_argument, word_argument
from exporter.core.records import APPROVAL_DECIDED, Record
from exporter.log.libraries import captured_libraries
from exporter.log.log import Log
from exporter.secrets import Secret
from exporter.simulator.event_hubs.broker import Broker
from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService
from exporter.simulator.metadata.story import ScenarioError
from exporter.simulator.otlp_collector import Collector
from exporter.text.terminal import complain, say, supports_colour, writable
from exporter.text.timeline import record_lines
from exporter.web.server import parse_listen_address

HUB: Final = "scheduled-events"
POLL_SECONDS: Final = 0.25
PATIENCE_SECONDS: Final = 15.0
FAILED: Final = 1
BAD_USAGE: Final = 2
DEFAULT_ADDRESS: Final = "127.0.0.1:10169"
LOOPBACK: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # what may be asked for
"""Where what listens on all interfaces is asked."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-running", action="store_true", help="Stay after the story, to be scraped and looked at; Ctrl-C ends it."
    )
    parser.add_argument(
        "--scenario",
        default="demo",
        type=path_argument,
        help="Another story: a name of `simulate --list`, or a file.",
    )
    parser.add_argument("--speed", type=speed, default=1.0, help="How many times faster the story is told. Default: 1.")
    parser.add_argument(
        "--web.listen-address",
        dest="listen",
        type=_listen_address,
        default=None,
        help=f"Where to serve /metrics. Default: {DEFAULT_ADDRESS}, or a free port where that is taken.",
    )


def _listen_address(text: str) -> str:
    try:
        parse_listen_address(word_argument(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def demo(args: argparse.Namespace) -> int:
    """Tells the story, then sums it up. Answers the exit code: 0 when every output received every record."""
    # Before the agent and the consumer would import it on their threads at once: its modules import each other in
    # circles, and one of the two threads is then given a module that is only half there.
    importlib.import_module("azure.eventhub.aio")

    log = Log(None)
    ended = threading.Event()
    try:
        scenario = load(args.scenario)
    except ScenarioError as error:
        complain(f"demo: {error}")
        return BAD_USAGE
    with (
        _signals(ended),
        captured_libraries(log),
        tempfile.TemporaryDirectory(prefix="azse-demo-") as folder,
        Broker(hubs={HUB: 1}) as broker,  # one partition: the timeline is read in the order in which it was sent
        Collector() as collector,
        MetadataService(scenario, speed=args.speed) as service,
    ):
        settings = _settings(service.url, broker.connection_string(HUB), collector.endpoint, folder)
        try:
            app, address = _listening(settings, log, args.listen or "")
        except OSError as error:
            complain(f"demo: {error.strerror or error}")
            return FAILED
        story = _Story(app, address, _Stage(service, broker, collector), writable(sys.stdout))
        return story.tell(ended, keep_running=args.keep_running)


@contextlib.contextmanager
def _signals(ended: threading.Event) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: ended.set()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _settings(source: str, connection_string: str, collector: str, folder: str) -> Settings:
    return Settings(
        source=SourceSettings(url=source, poll_interval=POLL_SECONDS),
        approval=ApprovalSettings(mode="enforce"),
        event_hubs=EventHubsSettings(connection_string=Secret(connection_string), event_hub=HUB),
        otlp=OtlpSettings(endpoint=collector, logs_url=f"{collector}/v1/logs"),
        outbox=OutboxSettings(path=str(Path(folder) / "outbox.db")),
    )


def _listening(settings: Settings, log: Log, wanted: str) -> tuple[App, str]:
    """The agent, serving where it was asked to, or anywhere else if nobody asked and the usual port is taken."""
    for address in (wanted,) if wanted else (DEFAULT_ADDRESS, "127.0.0.1:0"):
        app = App(replace(settings, web=WebSettings(listen_address=address)), log)
        try:
            app.start()
        except OSError:
            if wanted or address != DEFAULT_ADDRESS:
                raise
            continue
        host, port = parse_listen_address(address)[0], app.web.address[1]
        host = LOOPBACK.get(host, host)
        return app, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    raise AssertionError("one of the two addresses was taken or raised")


@dataclass(slots=True)
class _Received:
    """What the consumer got: records by id, and how many copies of one it already had."""

    records: dict[str, Record] = field(default_factory=dict)
    copies: int = 0


@dataclass(frozen=True, slots=True)
class _Stage:
    """What plays the parts of Azure and of the collector."""

    service: MetadataService
    broker: Broker
    collector: Collector


class _Story:
    """One telling, from the first poll to the summary."""

    def __init__(self, app: App, address: str, stage: _Stage, out: TextIO) -> None:
        self._app = app
        self._address = address
        self._service = stage.service
        self._broker = stage.broker
        self._collector = stage.collector
        self._out = out
        self._colour = supports_colour(out, os.environ)
        self._received = _Received()
        self._samples = 0

    def tell(self, ended: threading.Event, *, keep_running: bool) -> int:
        self._say(f"A simulated Azure at {self._service.url} tells its story to the agent: {self._service.vm.name}.")
        self._say(f"Metrics {self._address}/metrics · page {self._address}/ · approvals are enforced")
        self._say("")
        agent = threading.Thread(target=self._app.run, name="agent", daemon=True)
        agent.start()
        with _Consumer(self._broker.connection_string(HUB), self._take):
            _until(lambda: ended.is_set() or self._service.finished(), 3600.0)
            if keep_running and not ended.is_set():
                self._say("")
                self._say("The story is over; still serving. Ctrl-C ends it.")
                ended.wait()
            _until(self._settled, PATIENCE_SECONDS)
            self._samples = self._scrape()
            self._app.stop()
            agent.join(10.0)
            _until(lambda: len(self._received.records) >= len(self._produced()), 5.0)
        return self._summary()

    def _settled(self) -> bool:
        """The last document was read, unless the story was broken off, and nothing waits for a destination."""
        queues = self._app.status.destinations
        document = self._app.status.state.document
        read = not self._service.finished() or (document is not None and not document.events)
        return read and all(queue.records == 0 for queue in queues)

    def _scrape(self) -> int:
        """How many samples `/metrics` holds, asked as Prometheus would."""
        answer = httpx.get(f"{self._address}/metrics", trust_env=False)
        return sum(1 for text in answer.text.splitlines() if text.startswith("azure_scheduled_events_"))

    def _produced(self) -> list[str]:
        return [message.message_id or "" for message in self._broker.messages(HUB)]

    def _take(self, record: Record) -> None:
        if record.id in self._received.records:
            self._received.copies += 1
            return
        self._received.records[record.id] = record
        for text in record_lines(record, colour=self._colour):
            self._say(text)

    def _summary(self) -> int:
        records = list(self._received.records.values())
        kinds = Counter(record.kind for record in records)
        self._say("")
        self._say("Seen        " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
        for text in _decisions(records):
            self._say(text)
        posts = self._service.posts
        taken = sum(post.status == 200 for post in posts)  # noqa: PLR2004  # HTTP's word for yes
        self._say(f"Approved    {len(posts)} sent, {taken} answered 200 by the simulated Azure")
        produced, consumed, exported = set(self._produced()), set(self._received.records), set(self._collector.ids)
        self._say(
            f"Event Hubs  {len(produced)} records sent over AMQP, {len(consumed)} read back by the official SDK"
            f", {self._received.copies} more than once"
        )
        self._say(f"OTLP        {len(exported)} log records received and decoded")
        self._say(f"Prometheus  {self._samples} samples scraped from {self._address}/metrics at the end")
        matches = produced == consumed == exported and bool(produced)
        self._say("Every record arrived in every output, under one id." if matches else "The outputs do not match.")
        return 0 if matches else 1

    def _say(self, text: str) -> None:
        say(text, self._out, colour=self._colour)


def _decisions(records: list[Record]) -> list[str]:
    lines: list[str] = []
    for record in records:
        if record.kind != APPROVAL_DECIDED:
            continue
        decision, event = record.data["decision"], record.data["event"]
        why = f"rule {decision['rule']}" if decision["verdict"] == "approve" else decision["reason"]
        if decision["verdict"] != "approve" and decision["rule"]:
            why += f" (rule {decision['rule']})"
        lines.append(f"Decided     {decision['verdict']:<8}{event.get('EventType')!s:<9} {record.subject}  {why}")
    return lines


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    """Waits for something that has no event of its own to wait for."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.05)
    return True


class _Consumer:
    """Reads the hub with the official SDK, from the beginning, on a thread of its own."""

    def __init__(self, connection_string: str, take: Callable[[Record], None]) -> None:
        self._connection_string = connection_string
        self._take = take
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)

    def __enter__(self) -> _Consumer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(5.0)

    def _stop(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, contextlib.suppress(asyncio.CancelledError):
            runner.run(self._read())

    async def _read(self) -> None:
        from azure.eventhub.aio import EventHubConsumerClient  # noqa: PLC0415  # `demo` has loaded it, `demo --help` need not

        client = EventHubConsumerClient.from_connection_string(self._connection_string, consumer_group="$Default")
        async with client:
            await client.receive(self._on_event, starting_position="-1", max_wait_time=1)

    async def _on_event(self, _partition: Any, event: Any) -> None:
        if event is not None:
            self._take(Record.from_json(event.body_as_str().encode()))
