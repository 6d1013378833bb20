"""The environment of every proof: the guest with the agent in it, and the agent's peers outside."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

from exporter.simulator.event_hubs.broker import Broker
from exporter.simulator.metadata import scenario
from exporter.simulator.metadata.service import MetadataService
from exporter.simulator.otlp_collector import Collector
from tests.support.factories import azure_event
from tests.systemd.guest import Guest

NAME: Final = "azure-scheduled-events-exporter"
ETC: Final = f"/etc/{NAME}"
STATE: Final = f"/var/lib/private/{NAME}"
"""The directory in which systemd keeps the state of a unit with DynamicUser=."""
DROP_INS: Final = f"/etc/systemd/system/{NAME}.service.d"
HOST: Final = "10.0.2.2"
"""This machine's address for the guest: it reaches services on loopback here."""
PATIENCE: Final = 240.0
"""Seconds: an emulated machine on a busy one is slow."""
VM: Final = "web_0"
ENFORCE: Final = "SCHEDULED_EVENTS_APPROVAL_MODE=enforce\n"
"""A line of the environment file: without it no POST is ever sent."""


def free_port() -> int:
    """Return a port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def until(holds: Callable[[], object], seconds: float = PATIENCE) -> float:
    """Wait until the condition holds; return the seconds that it took, infinity if it never held."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if holds():
            return time.monotonic() - began
        time.sleep(0.25)
    return float("inf")


class GuestEnvironment:
    """The simulated Azure, Event Hubs, and collector of all proofs; `guest` is the currently booted machine.

    A context manager. `say` prints a verdict; `good` is whether all were ok so far.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.good = True
        self.guest: Guest
        self._stack = ExitStack()
        self._events = 0
        self._began = 0.0

    def __enter__(self) -> Self:
        self.broker = self._stack.enter_context(Broker())
        self.collector = self._stack.enter_context(Collector())
        self._port_of_azure = free_port()
        self.azure = self._play()
        self.end_events()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.azure.close()
        self._stack.close()

    def say(self, good: bool, sentence: str) -> None:
        """Print a line that begins with ok or BAD."""
        self.good = self.good and good
        print(f"{'ok ' if good else 'BAD'} {sentence}", flush=True)

    # -- outside the guest

    def play(self) -> None:
        """Begin the demo's scenario in the simulated metadata service, at the same address, slowly for a slow guest."""
        self.azure.close()
        self.azure = self._play()

    def end_events(self) -> None:
        """End all events."""
        self._events += 1
        self.azure.set_document({"DocumentIncarnation": 1000 + self._events, "Events": []})

    def _play(self) -> MetadataService:
        service = MetadataService(scenario.load("demo"), port=self._port_of_azure, speed=0.4, vm=VM)
        service.start()
        return service

    @property
    def source(self) -> str:
        """The URL of the metadata service for the guest."""
        return self.azure.url.replace("127.0.0.1", HOST)

    @property
    def connection_string(self) -> str:
        """The connection string of the simulated Event Hubs for the guest."""
        return re.sub(r"(?<=//)[^:/;]+", HOST, self.broker.connection_string(), count=1)

    @property
    def otlp(self) -> str:
        """The endpoint of the collector for the guest."""
        return self.collector.endpoint.replace("127.0.0.1", HOST)

    def announce(self) -> None:
        """Schedule a reboot by a user, with a separate id, which the rules approve at once."""
        self._announce(
            [self._event("Virtual machine is going to be restarted as requested by authorized user.", "User")]
        )

    def announce_platform(self, *ids: str, count: int = 1, notice: float = 900) -> list[str]:
        """Schedule only reboots by the platform, `notice` seconds ahead, which the package's rules approve once they
        are prepared. With these ids, or `count` new ones. Return the ids."""
        text = "Virtual machine is going to be restarted because of host maintenance."
        events = [self._event(text, "Platform", notice) for _ in ids or range(count)]
        for event, known in zip(events, ids, strict=False):
            event["EventId"] = known
        self._announce(events)
        return [str(event["EventId"]) for event in events]

    def _event(self, description: str, source: str, notice: float = 900) -> dict[str, Any]:
        self._events += 1
        event_id = f"00000000-0000-4000-8000-{self._events:012}"
        not_before = datetime.now(UTC) + timedelta(seconds=notice)
        return azure_event(event_id, "Reboot", [VM], not_before, Description=description, EventSource=source)

    def _announce(self, events: list[dict[str, Any]]) -> None:
        self._events += 1
        self.azure.set_document({"DocumentIncarnation": 1000 + self._events, "Events": events})

    @property
    def approved(self) -> int:
        """The number of POSTs that were answered 200 since the scenario began."""
        return sum(post.status == 200 for post in self.azure.posts)

    def posted(self, event: str) -> int:
        """Return the number of POSTs for this event that were answered 200."""
        return sum(post.status == 200 and event in post.event_ids for post in self.azure.posts)

    def get(self, path: str) -> str:
        """Return the agent's response to a request from outside the guest; "" if there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples; `name` may be followed by a label, such as `x{reason="held"`."""
        found = re.findall(rf"^azure_scheduled_events_{re.escape(name)}\S* (\S+)$", self.get("/metrics"), re.MULTILINE)
        return sum(map(float, found))

    # -- in the guest

    def shown(self, name: str) -> str:
        """Return a property of the unit."""
        return self.guest.run(f"systemctl show {NAME} --value --property {name}").text

    @property
    def active(self) -> bool:
        """Whether the unit is active."""
        return self.shown("ActiveState") == "active"

    @property
    def ready(self) -> bool:
        """Whether the agent reports ready to a request from outside."""
        return self.get("/-/ready").strip() == "Ready"

    def start(self, environ: str = "", drop_in: str = "", wait: bool = True) -> bool:
        """Start the unit with these lines of the environment file and of a drop-in; return whether it is ready, once it
        is or has failed permanently, or at once without `wait`."""
        self.guest.run(f"systemctl stop {NAME}; systemctl reset-failed {NAME}; rm -rf {DROP_INS}")
        if drop_in:
            self.guest.write(f"{DROP_INS}/proof.conf", drop_in)
        self.guest.write(f"{ETC}/environment", f"SCHEDULED_EVENTS_SOURCE_URL={self.source}\n{environ}")
        self.guest.run("systemctl daemon-reload")
        self._began = self.now()
        self.guest.run(f"systemctl start {NAME}")
        if wait:
            until(lambda: self.ready or self.shown("ActiveState") == "failed")
        return self.ready

    def now(self) -> float:
        """Return the guest's time of day, in seconds."""
        return float(self.guest.run("date +%s.%N").text)

    def log(self, flags: str = "") -> str:
        """Return the unit's journal since its last start here."""
        journal = f"journalctl --no-pager --output cat --unit {NAME} --since @{self._began:.6f} {flags}"
        return self.guest.run(journal).text

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Return the records of that kind in the outbox, the oldest first."""
        done = self.guest.run(f"{NAME} tail --outbox {STATE}/outbox.db --format json --kind {kind}")
        return [json.loads(line) for line in done.text.splitlines() if line.startswith("{")]
