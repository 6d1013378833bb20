"""The destinations in a separate process, which keeps their cost out of the agent's: `python -m benchmarks.peers`.

It reads commands as JSON lines on standard input and writes one line for each: `{"do": "ids"}`,
`{"do": "broker", "word": "stop"}`, `{"do": "received"}` (bodies at the event hub, open connections, and all connections
so far), `{"do": "fault", "text": "drop-after-store*3"}`, `{"do": "collector", "status": 503}`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from exporter.simulator.event_hubs.broker import Broker
from exporter.simulator.otlp_collector import Collector
from tests.support.ports import reserved_port

HUB: Final = "scheduled-events"
DROP: Final = 0


class FlappingCollector(Collector):
    """A collector that returns an error status, or closes the connection, on request."""

    status = 200

    def take(self, path: str, encoding: str, body: bytes) -> int:
        if self.status == DROP:
            raise ConnectionResetError("requested")
        return super().take(path, encoding, body) if self.status == 200 else self.status


class Peers:
    """A context manager for the process."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers"],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        found = self._answer()
        self.connection_string: str = found["connection_string"]
        self.endpoint: str = found["endpoint"]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.resume()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(15)
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def environ(self) -> dict[str, str]:
        """The environment for an agent that sends to both destinations."""
        return {
            "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": self.connection_string,
            "SCHEDULED_EVENTS_OTLP_ENDPOINT": self.endpoint,
        }

    def ask(self, do: str, **further: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **further}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def copies(self) -> tuple[Counter[str], Counter[str]]:
        """Return how often each id arrived at the event hub and at the collector."""
        found = self.ask("ids")
        return Counter(found["hub"]), Counter(found["otlp"])

    def freeze(self) -> None:
        """Pause the process: both destinations stay connected but don't respond. Does nothing on Windows."""
        if sys.platform != "win32":
            os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if sys.platform != "win32":
            os.kill(self.pid, signal.SIGCONT)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


def _obey(command: dict[str, Any], broker: Broker, collector: FlappingCollector) -> dict[str, Any]:
    match command["do"]:
        case "ids":
            hub = Counter(message.message_id or "" for message in broker.messages(HUB))
            return {"hub": hub, "otlp": Counter(collector.ids)}
        case "received":
            bodies = [message.body for message in broker.messages(HUB)]
            return {
                "bodies": [body.decode() for body in bodies],
                "open": broker.connections,
                "connections": broker.total_connections,
            }
        case "broker":
            {"stop": broker.stop, "start": broker.start}[command["word"]]()
        case "fault":
            broker.faults.add(command["text"])
        case "clear":
            broker.faults.set()
        case "collector":
            collector.status = command["status"]
    return {}


def main() -> int:
    collector = FlappingCollector()
    with (
        reserved_port() as port,
        Broker(hubs={HUB: 4}, port=port) as broker,
        collector,
    ):
        print(
            json.dumps({"connection_string": broker.connection_string(HUB), "endpoint": collector.endpoint}), flush=True
        )
        for line in sys.stdin:
            print(json.dumps(_obey(json.loads(line), broker, collector)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
