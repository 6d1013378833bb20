"""An application with fixed pages, raw clients for it, and a process that serves nothing else."""

from __future__ import annotations

import argparse
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exporter.log.log import Log
from exporter.web.config import WebConfig
from exporter.web.connection import Limits
from exporter.web.responses import Accept, WebResponse
from exporter.web.server import WebServer

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
METRICS = b"".join(b"# HELP m%d Text.\n# TYPE m%d gauge\nm%d %d\n" % (n, n, n, n) for n in range(400))
ASK = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n%s\r\n"

SLOWEST_SECONDS = 4.5
"""A scrape that waits for a silent client takes at least the five seconds that such a client gets."""


class Pages:
    """An application that counts the requests for each page. `before` makes `/metrics` longer."""

    def __init__(self, before: bytes = b"") -> None:
        self.asked: list[tuple[str, Accept]] = []
        self._metrics = before + METRICS

    def respond(self, path: str, accept: Accept) -> WebResponse:
        self.asked.append((path, accept))
        if path != "/metrics":
            return WebResponse(200, "text/plain; charset=utf-8", b"fine\n")
        if accept == "text":
            return WebResponse(200, TEXT, self._metrics)
        return WebResponse(200, OPENMETRICS, self._metrics + b"# EOF\n")


def config(folder: Path, text: str) -> WebConfig:
    """Return a web-config file with this text in the folder, as parsed."""
    (folder / "web.yml").write_text(text)
    return WebConfig(folder / "web.yml")


@contextmanager
def serving(
    pages: object = None, *, limits: Limits | None = None, web_config: WebConfig | None = None
) -> Iterator[tuple[str, int]]:
    """The address of a server in this process."""
    server = WebServer("127.0.0.1:0", pages or Pages(), limits=limits, web_config=web_config)  # type: ignore[arg-type]  # any test double
    server.start()
    try:
        yield server.address
    finally:
        server.stop()


class Target:
    """A server in a separate process, for measurements of memory, threads, and processor time."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.web_target", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        self.address = ("127.0.0.1", int(self._process.stdout.readline()))

    def status(self, name: str) -> int:
        """Return a number of /proc/PID/status: VmRSS in KiB, Threads."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1])

    def processor_seconds(self) -> float:
        """Return user and system time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))

    def stop(self) -> str:
        """End it; return its standard error."""
        self._process.terminate()
        _, errors = self._process.communicate(timeout=60)
        return errors


@contextmanager
def target(*arguments: str) -> Iterator[Target]:
    """Yield a running `Target`, stopped afterwards."""
    running = Target(*arguments)
    try:
        yield running
    finally:
        running.stop()


def connect(address: tuple[str, int], first: bytes = b"", *, receive_buffer: int = 0) -> socket.socket:
    """A hostile client: connected, has sent this much, never waits."""
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(30)
    sock.connect(address)
    sock.setblocking(False)
    send(sock, first)
    return sock


def send(sock: socket.socket, data: bytes) -> None:
    """Send what the kernel accepts; the test checks the rest, and whether the server has closed."""
    try:
        sock.send(data)
    except OSError:
        return


def is_closed(sock: socket.socket) -> bool:
    """Return True once the server has closed, without reading what it sent.

    Windows has no `poll`; a peek at the next byte does not see past it, but it sees a reset, and an end without data.
    """
    if not hasattr(select, "poll"):
        try:
            return socket.socket.recv(sock, 1, socket.MSG_PEEK) == b""  # a TLS socket's own allows no flags
        except BlockingIOError:
            return False
        except OSError:
            return True
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def read_all(sock: socket.socket, seconds: float = 5.0) -> bytes:
    """Return everything until the server closes."""
    sock.settimeout(seconds)
    received = b""
    try:
        while data := sock.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def scrape_seconds(address: tuple[str, int], context: ssl.SSLContext | None = None, headers: bytes = b"") -> float:
    """Return the time of a legitimate scraper from connecting to the last byte; fail unless it gets its 200."""
    begun = time.monotonic()
    with socket.create_connection(address, 5) as plain:
        if context is None:
            received = _ask_and_read(plain, headers)
        else:
            with context.wrap_socket(plain, server_hostname="localhost") as sock:
                received = _ask_and_read(sock, headers)
    assert received.startswith(b"HTTP/1.1 200 OK\r\n"), received[:200]
    assert received.endswith(METRICS[-20:])
    return time.monotonic() - begun


def _ask_and_read(sock: socket.socket, headers: bytes) -> bytes:
    sock.sendall(ASK % (headers + b"Connection: close\r\n"))
    return read_all(sock, 9)


def main() -> None:
    """Serve until terminated; the port is the first line on standard output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nofile", type=int)
    parser.add_argument("--waste", type=int, default=0)
    parser.add_argument("--web-config")
    parser.add_argument("--kib", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="for a client's request instead of the limits as shipped")
    options = parser.parse_args()
    if options.nofile and sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (options.nofile, options.nofile))
    web_config = WebConfig(Path(options.web_config)) if options.web_config else None
    pages = Pages(b"# filled\n" * (options.kib * 1024 // 9))
    limits = Limits(head_seconds=options.seconds, exchange_seconds=options.seconds) if options.seconds else None
    server = WebServer("127.0.0.1:0", pages, limits=limits, web_config=web_config, log=Log(sys.stderr))
    server.start()
    wasted = [os.dup(0) for _ in range(options.waste)]
    print(server.address[1], flush=True)
    threading.Event().wait()
    del wasted


if __name__ == "__main__":
    main()
