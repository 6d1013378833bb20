"""Real peers for the tests: Prometheus and Alertmanager as installed, on free ports, in a temporary folder.

A missing peer skips its tests with a message on a developer's machine and fails them under CI=true.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

import httpx
import pytest

TOOLS: Final = Path(__file__).parents[2] / "build" / "tools" / "bin"
BUILT: Final = ("actionlint", "kube-score")
"""Checkers that no package contains: `.ci/tools` builds the versions of .ci/go/go.mod into TOOLS; no other version is
accepted."""

LISTENING: Final = re.compile(r'Listening on".*?address=\S*:(\d+)')
START_SECONDS: Final = 120.0
NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without it, httpx reads the authorities for each request again, 15 ms of processor time, even without TLS."""

T = TypeVar("T")


def need(name: str) -> str:
    """Return the path of a peer's binary; without it, skip the test with a message, or fail under CI=true."""
    path = shutil.which(name, path=str(TOOLS) if name in BUILT else None)
    return path or lacking(f"{name} is not installed here: make peers")


def lacking(sentence: str) -> NoReturn:
    """Skip the test with a message, or fail it under CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)


def until(look: Callable[[], T], *, seconds: float = 60.0, every: float = 0.05) -> T:
    """Return the first true result of `look`, called repeatedly; fail if there is none in time."""
    end = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > end:
            pytest.fail(f"did not come true within {seconds} s: {look}")
        time.sleep(every)
    return found


class Daemon:
    """A peer's process. Its log has its port; it is ready when `/-/ready` returns 200; it is stopped by its pid."""

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        self._arguments, self._folder = list(arguments), folder
        self._listening = threading.Event()
        self.lines: list[str] = []
        self.port = 0

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._arguments,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process; kill it if it does not stop."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        self._reader.join(30)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def get(self, path: str, **parameters: object) -> Any:
        """Return the JSON response to a GET."""
        recorded = {name: str(value) for name, value in parameters.items()}
        answer = httpx.get(self.url + path, params=recorded, timeout=30, verify=NO_TLS)
        return answer.raise_for_status().json()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an instant query (Prometheus only)."""
        result: list[dict[str, Any]] = self.get("/api/v1/query", query=expression)["data"]["result"]
        return result

    def targets(self) -> list[dict[str, Any]]:
        """Return the targets of Prometheus, with `health`, `lastError`, and `labels`."""
        result: list[dict[str, Any]] = self.get("/api/v1/targets")["data"]["activeTargets"]
        return result

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line.rstrip())
            found = LISTENING.search(line)
            if found and not self.port:
                self.port = int(found[1])
                self._listening.set()
        self._listening.set()

    def _wait_until_ready(self) -> None:
        self._listening.wait(START_SECONDS)
        until(self._is_ready, seconds=START_SECONDS)

    def _is_ready(self) -> bool:
        if not self.port or self._process.poll() is not None:
            raise RuntimeError("the peer did not start:\n" + "\n".join(self.lines[-20:]))
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(self.url + "/-/ready", timeout=2, verify=NO_TLS).status_code == httpx.codes.OK
        return False


def prometheus(
    folder: Path,
    scrapes: Sequence[Mapping[str, object]],
    *,
    rules: Sequence[Path] = (),
    alertmanager_address: str = "",
    interval: str = "250ms",
    receives: bool = False,
) -> Daemon:
    """A Prometheus with these `scrape_configs`. Its first scrape starts up to 5 s after its start.

    With `receives` it accepts samples by remote write.
    """
    config: dict[str, object] = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": list(scrapes),
    }
    if alertmanager_address:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager_address]}]}]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    arguments = [
        need("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        "--web.listen-address=127.0.0.1:0",
        "--rules.alert.resend-delay=1s",
        "--enable-feature=exemplar-storage",
        *(["--web.enable-remote-write-receiver"] if receives else []),
    ]
    return Daemon(arguments, folder)


def scrape(job: str, address: str, **further: object) -> dict[str, object]:
    """Return one entry of `scrape_configs`; `further` in Prometheus' spelling (scheme, tls_config, basic_auth)."""
    return {"job_name": job, "static_configs": [{"targets": [address]}], **further}


def alertmanager(folder: Path, webhook_url: str) -> Daemon:
    """An Alertmanager that sends every alert to one webhook at once, and resolutions too."""
    config = {
        "route": {
            "receiver": "hook",
            "group_by": ["alertname"],
            "group_wait": "100ms",
            "group_interval": "500ms",
            "repeat_interval": "1h",
        },
        "receivers": [{"name": "hook", "webhook_configs": [{"url": webhook_url, "send_resolved": True}]}],
    }
    return alertmanager_of(folder, config)


def alertmanager_of(folder: Path, config: Mapping[str, object]) -> Daemon:
    """A separate Alertmanager with this configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "alertmanager.yml").write_text(json.dumps(config))
    arguments = [
        need("prometheus-alertmanager"),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        "--cluster.listen-address=",
    ]
    return Daemon(arguments, folder)


class Webhook:
    """Receives an Alertmanager's notifications: `received` has the JSON bodies in order."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []

    def alerts(self, status: str) -> list[dict[str, Any]]:
        """Return all alerts so far with this status: "firing" or "resolved"."""
        return [alert for body in list(self.received) for alert in body["alerts"] if alert["status"] == status]

    def __enter__(self) -> Self:
        received = self.received

        class Post(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Suppress the request log."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Post)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join(30)
        self._server.server_close()
