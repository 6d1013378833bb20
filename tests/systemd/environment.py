"""What every proof needs: the guest with the agent in it, and out here what the agent talks to."""

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
"""Where systemd keeps the state folder of a unit with DynamicUser=."""
DROP_INS: Final = f"/etc/systemd/system/{NAME}.service.d"
HOST: Final = "10.0.2.2"
"""This machine, as the guest sees it: what listens on loopback here."""
PATIENCE: Final = 240.0
"""Seconds: an emulated machine on a busy one is slow."""
VM: Final = "web_0"
ENFORCE: Final = "SCHEDULED_EVENTS_APPROVAL_MODE=enforce\n"
"""A line of the environment file: only so a POST is ever sent."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def until(holds: Callable[[], object], seconds: float = PATIENCE) -> float:
    """Wait until it holds; the seconds that it took, infinity when it did not come."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if holds():
            return time.monotonic() - began
        time.sleep(0.25)
    return float("inf")


class GuestEnvironment:
    """The simulated Azure, Event Hubs and collector of all proofs; `guest` is the machine as it is booted now.

    A context manager. `say` prints a verdict; `good` is whether all were so far.
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
        self.calm()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.azure.close()
        self._stack.close()

    def say(self, good: bool, sentence: str) -> None:
        """Print a line that begins with ok or BAD."""
        self.good = self.good and good
        print(f"{'ok ' if good else 'BAD'} {sentence}", flush=True)

    # -- out here

    def play(self) -> None:
        """Begin the demo's story in the simulated metadata service, at the same address, slowly for a slow guest."""
        self.azure.close()
        self.azure = self._play()

    def calm(self) -> None:
        """Nothing is announced from now on."""
        self._events += 1
        self.azure.set_document({"DocumentIncarnation": 1000 + self._events, "Events": []})

    def _play(self) -> MetadataService:
        service = MetadataService(scenario.load("demo"), port=self._port_of_azure, speed=0.4, vm=VM)
        service.start()
        return service

    @property
    def source(self) -> str:
        """The URL of the metadata service, as the guest reaches it."""
        return self.azure.url.replace("127.0.0.1", HOST)

    @property
    def connection_string(self) -> str:
        """Of the simulated Event Hubs, as the guest reaches it."""
        return re.sub(r"(?<=//)[^:/;]+", HOST, self.broker.connection_string(), count=1)

    @property
    def otlp(self) -> str:
        """The endpoint of the collector, as the guest reaches it."""
        return self.collector.endpoint.replace("127.0.0.1", HOST)

    def announce(self) -> None:
        """A reboot that a user asked for, with an id of its own: what the rules approve at once."""
        self._announce(
            [self._event("Virtual machine is going to be restarted as requested by authorized user.", "User")]
        )

    def announce_platform(self, *ids: str, count: int = 1, notice: float = 900) -> list[str]:
        """Reboots by the platform and nothing else, `notice` seconds ahead: what the package's rules approve once it is
        prepared. With these ids, or `count` new ones. Returns the ids."""
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
        """POSTs that were answered 200 since the story began."""
        return sum(post.status == 200 for post in self.azure.posts)

    def posted(self, event: str) -> int:
        """POSTs for this event that were answered 200."""
        return sum(post.status == 200 and event in post.event_ids for post in self.azure.posts)

    def get(self, path: str) -> str:
        """What the agent answers to a request from outside of the guest; "" when it does not."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def metric(self, name: str) -> float:
        """The sum of a metric's samples; `name` may be followed by a label, such as `x{reason="held"`."""
        found = re.findall(rf"^azure_scheduled_events_{re.escape(name)}\S* (\S+)$", self.get("/metrics"), re.MULTILINE)
        return sum(map(float, found))

    # -- in the guest

    def shown(self, name: str) -> str:
        """A property of the unit."""
        return self.guest.run(f"systemctl show {NAME} --value --property {name}").text

    @property
    def active(self) -> bool:
        """Whether the unit is."""
        return self.shown("ActiveState") == "active"

    @property
    def ready(self) -> bool:
        """Whether the agent says so, to who asks from outside."""
        return self.get("/-/ready").strip() == "Ready"

    def start(self, environ: str = "", drop_in: str = "", wait: bool = True) -> bool:
        """Start the unit with these lines of the environment file and of a drop-in; whether it is ready, once it is or
        has failed for good, or now when it is not to `wait`."""
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
        """The guest's time of day, in seconds."""
        return float(self.guest.run("date +%s.%N").text)

    def log(self, flags: str = "") -> str:
        """What the unit said since it was last started here."""
        journal = f"journalctl --no-pager --output cat --unit {NAME} --since @{self._began:.6f} {flags}"
        return self.guest.run(journal).text

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The records of that kind in the outbox, the oldest first."""
        done = self.guest.run(f"{NAME} tail --outbox {STATE}/outbox.db --format json --kind {kind}")
        return [json.loads(line) for line in done.text.splitlines() if line.startswith("{")]
