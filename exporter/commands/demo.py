"""The command `demo`: the agent, with a simulated metadata service, a broker, and a collector in one process.

A scenario plays, the agent reads, decides, and approves, and every record is sent over real AMQP and real OTLP. The
timeline shows what a consumer of Event Hubs receives.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
from msgspec import Struct, field

from exporter.agent.app import App
from exporter.commands.simulate import add_play
from exporter.commands.stops import on_stop
from exporter.commands.tail.records import record_in
from exporter.config.command_line import listen_argument
from exporter.config.schema import (
    ApprovalSettings,
    EventHubsSettings,
    OtlpSettings,
    OutboxSettings,
    Settings,
    SourceSettings,
    WebSettings,
)
from exporter.config.types import word_argument
from exporter.core.policy import Mode
from exporter.core.records import Record
from exporter.errors import BAD_USAGE, DONE, FAILED, Failure
from exporter.log.log import Log, captured_libraries
from exporter.secrets import Secret
from exporter.simulator.event_hubs.broker import Broker
from exporter.simulator.metadata.scenario import ScenarioError, load
from exporter.simulator.metadata.service import MetadataService
from exporter.simulator.otlp_collector import Collector
from exporter.text.format import counted
from exporter.text.terminal import print_error, print_wrapped
from exporter.text.timeline import print_record
from exporter.text.values import split_address

if TYPE_CHECKING:
    from exporter.sinks.event_hubs.consumer import EventHubsReader

HUB: Final = "scheduled-events"
POLL_SECONDS: Final = 0.25
LONGEST_PLAY_SECONDS: Final = 3600.0
DELIVERY_SECONDS: Final = 15.0
"""Time limit for the delivery of the last records to every destination."""
CONSUMER_SECONDS: Final = 5.0
"""Time limit for the consumer to receive them after that."""
AGENT_SECONDS: Final = 10.0
"""Time limit for the agent to stop."""
TICK_SECONDS: Final = 0.1
SUMMARY_INDENT: Final = 12
"""Indent of continuation lines: the column after the label."""
DEFAULT_ADDRESS: Final = "127.0.0.1:10169"
LOOPBACK: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # values of the flag, not bound here
"""The address to print and to scrape, by the address that means all addresses."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `demo`."""
    played = parser.add_argument_group("scenario")
    add_play(played)
    played.add_argument(
        "--vm", metavar="NAME", type=word_argument, help="VM that runs the agent. Default: the scenario's first VM."
    )
    played.add_argument(
        "--keep-running", action="store_true", help="Keep serving after the scenario; stop with Ctrl-C."
    )
    parser.add_argument_group("network").add_argument(
        "--listen",
        metavar="ADDRESS",
        type=_listen_address,
        help=f"Address for /metrics and the page. Default: {DEFAULT_ADDRESS}, or a free port if it is in use.",
    )


def _listen_address(text: str) -> str:
    listen_argument(text)
    return text


def demo(args: argparse.Namespace) -> int:
    """Play the scenario, then print a summary.

    Return the exit code: 0 if every output received every record.
    """
    log = Log(None)
    ended = threading.Event()
    try:
        scenario = load(args.scenario)
        scenario.vm(args.vm)
    except ScenarioError as error:
        print_error(f"demo: {error}")
        return BAD_USAGE
    # Before the agent's thread starts: Azure's modules import each other in cycles, so if two threads import them at
    # the same time, one gets a partly initialised module.
    from exporter.sinks.event_hubs.consumer import EventHubsReader  # noqa: PLC0415  # `demo --help` does not need it

    with (
        on_stop(ended.set),
        captured_libraries(log),
        # Windows removes no file that is open, as the outbox is where the agent does not end in time.
        tempfile.TemporaryDirectory(prefix="azse-demo-", ignore_cleanup_errors=True) as folder,
        Broker(hubs={HUB: 1}) as broker,  # one partition: the timeline is read in the order in which it was sent
        Collector() as collector,
        MetadataService(scenario, speed=args.speed, vm=args.vm) as service,
    ):
        settings = _settings(service.url, broker.connection_string(HUB), collector.endpoint, folder)
        try:
            app, address = _listening(settings, log, args.listen or "")
        except OSError as error:
            print_error(f"demo: {error.strerror or error}")
            return FAILED
        run = _Run(app, address, service, broker, collector, EventHubsReader(settings.event_hubs, "start"))
        return run.to_end(ended, keep_running=args.keep_running)


def _settings(source: str, connection_string: str, collector: str, folder: str) -> Settings:
    return Settings(
        source=SourceSettings(url=source, poll_interval=POLL_SECONDS),
        approval=ApprovalSettings(mode=Mode.ENFORCE),
        event_hubs=EventHubsSettings(connection_string=Secret(connection_string), event_hub=HUB),
        otlp=OtlpSettings(endpoint=collector, logs_url=f"{collector}/v1/logs"),
        outbox=OutboxSettings(path=str(Path(folder) / "outbox.db")),
    )


def _listening(settings: Settings, log: Log, wanted: str) -> tuple[App, str]:
    """Return the started agent and its base URL.

    An empty `wanted` means the default address or, if that is in use, any free port. Raises OSError.
    """
    for address in (wanted,) if wanted else (DEFAULT_ADDRESS, "127.0.0.1:0"):
        app = App(replace(settings, web=WebSettings(listen_address=address)), log)
        try:
            app.start()
        except OSError:
            if wanted or address != DEFAULT_ADDRESS:
                raise
            continue
        host, port = split_address(address)[0], app.web.address[1]
        host = LOOPBACK.get(host, host)
        return app, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    raise AssertionError("unreachable: the last address starts or raises")


class _Run(Struct):
    """One run of the demo, from the first poll to the summary. `records`: what the consumer received, by id."""

    app: App
    address: str
    service: MetadataService
    broker: Broker
    collector: Collector
    reader: EventHubsReader
    records: dict[str, Record] = field(default_factory=dict)
    copies: int = 0
    samples: int = 0

    def to_end(self, ended: threading.Event, *, keep_running: bool) -> int:
        """Run until the scenario ends or `ended` is set.

        Return the exit code.
        """
        agent = threading.Thread(target=self.app.run, name="agent", daemon=True)
        agent.start()
        try:
            self._print(f"Simulated Azure: {self.service.url} · VM: {self.service.vm.name} · approval mode: enforce")
            self._print(f"Metrics: {self.address}/metrics · page: {self.address}/")
            self._print(f"Page as JSON: {self.address}/api/v1/status")
            self._print("")
            self.reader.open()
            self._read_until(lambda: ended.is_set() or self.service.finished(), LONGEST_PLAY_SECONDS)
            if keep_running and not ended.is_set():
                self._print("")
                self._print("The scenario has ended; still serving. Press Ctrl-C to stop.")
                self._read_until(ended.is_set, math.inf)
            self._read_until(self._all_delivered, DELIVERY_SECONDS)
            page = httpx.get(f"{self.address}/metrics", trust_env=False).text
            self.samples = sum(line.startswith("azure_scheduled_events_") for line in page.splitlines())
            self.app.stop()
            self._read_until(lambda: not agent.is_alive(), AGENT_SECONDS)
            self._read_until(lambda: len(self.records) >= len(self._stored_ids()), CONSUMER_SECONDS)
        finally:
            self.app.stop()  # even if the reader of the output has closed it: the agent's files are removed next
            agent.join(AGENT_SECONDS)
            self.reader.close()
        return self._summary()

    def _read_until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Print the records that arrive at the event hub, as `tail` does, until `holds()` or for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while not holds() and time.monotonic() < deadline:
            message = self.reader.get(TICK_SECONDS)
            record = None if message is None or isinstance(message, Failure) else record_in(message.body)
            if record is None:
                continue
            if record.id in self.records:
                self.copies += 1
                continue
            self.records[record.id] = record
            print_record(record)

    def _all_delivered(self) -> bool:
        """Return whether nothing waits for a destination and, unless interrupted, the last document was read."""
        queues = self.app.status.destinations
        document = self.app.status.state.document
        read = not self.service.finished() or (document is not None and not document.events)
        return read and all(queue.records == 0 for queue in queues)

    def _stored_ids(self) -> list[str]:
        return [message.message_id or "" for message in self.broker.messages(HUB)]

    def _summary(self) -> int:
        records = list(self.records.values())
        kinds = Counter(record.kind for record in records)
        self._print("")
        self._print("Recorded    " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
        posts = self.service.posts
        accepted = sum(post.status == HTTPStatus.OK for post in posts)
        self._print(f"Approvals   {len(posts)} sent, {accepted} accepted by the simulated Azure (HTTP 200)")
        stored, consumed, exported = set(self._stored_ids()), set(self.records), set(self.collector.ids)
        self._print(
            f"Event Hubs  {len(stored)} records sent over AMQP, {len(consumed)} read back with Azure's SDK, "
            f"{counted(self.copies, 'duplicate')}"
        )
        self._print(f"OTLP        {len(exported)} log records received and decoded")
        self._print(f"Prometheus  {self.samples} samples scraped from {self.address}/metrics at the end")
        matches = stored == consumed == exported and bool(stored)
        self._print("Every record arrived in every output, with the same id." if matches else "The outputs differ.")
        return DONE if matches else FAILED

    def _print(self, text: str) -> None:
        print_wrapped(text, hang=SUMMARY_INDENT)
