"""The agent as installed (`python -m exporter run`), in a separate process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.usage import Usage, usage
from exporter.simulator.metadata.scenario import Scenario, ScenarioVm
from exporter.simulator.metadata.service import MetadataService

START_SECONDS: Final = 30.0
VM: Final = "vm-0"
QUIET: Final = Scenario("benchmark", "Nothing happens except what `set_document` sets.", (ScenarioVm(VM),), ())
KEPT: Final = ("PATH", "HOME", "LANG", "SYSTEMROOT", "SYSTEMDRIVE", "PROGRAMDATA", "USERPROFILE", "TEMP", "TMP")
"""Environment variables that the agent inherits. On Windows, sockets need SYSTEMROOT."""
PLAIN_INSTALL: Final = """
import runpy, sys
sys.modules["click"] = sys.modules["rich"] = None
sys.argv[0] = "exporter"
runpy.run_module("exporter", run_name="__main__", alter_sys=False)
"""
"""A plain installation: the test tools install click and rich, and httpx imports both if available (6 MiB)."""


def metadata_service(**further: Any) -> MetadataService:
    """Return a metadata service for one VM, whose document the benchmark sets."""
    return MetadataService(QUIET, **further)


def event(number: int, **fields: object) -> dict[str, object]:
    """Return an event of this VM that the default rules approve, in the format of api-version 2020-07-01."""
    return {
        "EventId": f"00000000-0000-4000-8000-{number:012d}",
        "EventStatus": "Scheduled",
        "EventType": "Reboot",
        "ResourceType": "VirtualMachine",
        "Resources": [VM],
        "NotBefore": "Fri, 01 Jan 2100 00:00:00 GMT",
        "Description": "Virtual machine is going to be restarted as requested by authorized user.",
        "EventSource": "User",
        "DurationInSeconds": -1,
        **fields,
    }


def document(incarnation: int, *events: Mapping[str, object]) -> dict[str, object]:
    return {"DocumentIncarnation": incarnation, "Events": list(events)}


class Agent:
    """A context manager for one process. `url` is the base URL of its HTTP server after `started`."""

    def __init__(
        self,
        folder: Path,
        source: str,
        *flags: str,
        environ: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-c", PLAIN_INSTALL),
        on_line: Callable[[dict[str, Any]], None] | None = None,
        listen: str = "127.0.0.1:0",
    ) -> None:
        self.folder = folder
        self.outbox = folder / "outbox.db"
        self._arguments = [sys.executable, *program, "run", f"--source.url={source}", f"--outbox.path={self.outbox}"]
        self._arguments += [f"--web.listen-address={listen}", "--log.format=json", *flags]
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        self._environ = {**kept, **(environ or {})}
        self._on_line = on_line or (lambda _: None)
        self._listening = threading.Event()
        self.last_lines: list[str] = []
        self.url = ""

    def __enter__(self) -> Self:
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            self._arguments,
            cwd=Path(__file__).parent.parent,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def started(self) -> Self:
        """Wait until the agent serves requests. Raise RuntimeError with its last log lines if it doesn't."""
        if not self._listening.wait(START_SECONDS) or not self.url:
            self.stop()
            raise RuntimeError("the agent did not start:\n" + "\n".join(self.last_lines[-20:]))
        return self

    def stop(self) -> tuple[int, str]:
        """Terminate the agent (on Windows, kill it). Return its exit code and its standard output."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        output = ""
        if self._process.stdout is not None and not self._process.stdout.closed:
            output = self._process.stdout.read()
            self._process.stdout.close()
        return self._process.returncode, output

    def _read(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        with stream:
            for line in stream:
                self.last_lines = [*self.last_lines[-50:], line.rstrip()]
                try:
                    found = json.loads(line)
                except ValueError:
                    continue
                if found.get("event") == "agent.listening":
                    self.url = f"http://{found['address']}"
                    self._listening.set()
                self._on_line(found)
        self._listening.set()

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:  # noqa: S310  # a local address
            text: bytes = answer.read()
        return text.decode()

    def metric(self, name: str, labels: str = "") -> float:
        """Return one sample by its name without the prefix; 0 if there is none."""
        found = re.search(rf"^azure_scheduled_events_{name}{re.escape(labels)} (\S+)$", self.metrics(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def usage(self) -> Usage:
        return usage(self.pid)
