"""The real `python -m exporter run` as a process, for tests from outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.sinks.prometheus.catalogue import PREFIX
from tests.support.peers import NO_TLS, until
from tests.support.systems import OWN_CONSOLE, terminate

LISTENING: Final = re.compile(r"event=agent\.listening address=(\S+)")


class Run:
    """One process of the agent, on a free port, polling four times a second. A context manager that ends it."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *flags: str,
        environ: Mapping[str, str] | None = None,
        stderr: int | IO[Any] | None = None,
        prefix: tuple[str, ...] = (),
        listen: str = "127.0.0.1:0",
        where: Path | None = None,
    ) -> None:
        """Start it in the working folder `where`: outside the checkout, the installed package runs."""
        self.lines: list[str] = []
        self._flags = [
            f"--source.url={url}",
            "--source.poll-interval=250ms",
            f"--outbox.path={folder / 'outbox.db'}",
            f"--web.listen-address={listen}",
            *flags,
        ]
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        self._environ |= {**(environ or {})}
        self._stderr, self._prefix, self._where = stderr, prefix, where
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [*self._prefix, sys.executable, "-m", "exporter", "run", *self._flags],
            env=self._environ,
            cwd=self._where,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if self._stderr is None else self._stderr,
            text=True,
            encoding="utf-8",
            creationflags=OWN_CONSOLE,
        )
        if self._stderr is None:
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        if self._reader is not None:
            self._reader.join(30)
        if self.process.stderr is not None:
            self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    @property
    def address(self) -> str:
        """Its listen address, from its log."""

        def found() -> str:
            assert self.process.poll() is None, self.lines
            return next((match[1] for line in list(self.lines) if (match := LISTENING.search(line))), "")

        return until(found, every=0.01)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://{self.address}{path}", timeout=30, trust_env=False, verify=NO_TLS)

    def metric(self, name: str, **labels: str) -> float | None:
        """Return one sample of a scrape."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith(PREFIX + name)]
        for family in parse_text("\n".join([*lines, ""])):
            for sample in family.samples:
                if sample.name == PREFIX + name and sample.labels == labels:
                    return float(sample.value)
        return None

    def wait_for(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until the condition holds; fail with the log if it does not in time."""
        try:
            until(holds, seconds=seconds)
        except BaseException:
            print("\n".join(self.lines))
            raise

    def said(self, name: str) -> list[str]:
        return [line for line in list(self.lines) if f"event={name} " in f"{line} "]

    def stop(self, seconds: float = 30.0) -> int:
        """Stop it, by SIGTERM or on Windows by Ctrl-C; return the exit code, which must come in time."""
        terminate(self.process)
        code = self.process.wait(seconds)
        if self._reader is not None:
            self._reader.join(30)
        return code

    def ended(self, seconds: float = 30.0) -> int:
        """Return the exit code of a process that ends by itself."""
        code = self.process.wait(seconds)
        if self._reader is not None:
            self._reader.join(30)
        return code
