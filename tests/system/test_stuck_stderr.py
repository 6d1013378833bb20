"""A standard error that is never read, on the real `run`: it polls, serves, approves, and ends as usual."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.support.agent_environment import document
from tests.support.peers import NO_TLS, until
from tests.support.ports import reserved_port
from tests.support.running import Run
from tests.system.test_run import mine, quiet

ENFORCE = "--approval.mode=enforce"


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Return a pipe without space for one more byte: its end to read, and the one to write."""
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        with contextlib.suppress(OSError):  # EAGAIN; EINVAL in Wine
            while os.write(write, b"x"):
                pass
        os.set_blocking(write, True)
        yield read, write
    finally:
        os.close(read)
        os.close(write)


def answers(port: int, path: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5, trust_env=False, verify=NO_TLS).status_code == 200
    except httpx.TransportError:
        return False


def test_an_unread_standard_error_stops_nothing(tmp_path: Path) -> None:
    """No line can be written, from the first on: it approves, is ready and scraped, and ends within five seconds."""
    with full_pipe() as (_, write), reserved_port() as port, quiet() as service:
        service.set_document(document(6, mine()))
        with Run(service.url, tmp_path, ENFORCE, listen=f"127.0.0.1:{port}", stderr=write) as run:
            until(lambda: len(service.posts) == 1)
            until(lambda: answers(port, "/-/ready"))
            assert answers(port, "/metrics")
            begin = time.monotonic()
            assert run.stop() == 0
            assert time.monotonic() - begin < 5


def test_lines_logged_without_a_reader_are_kept_for_it(tmp_path: Path) -> None:
    """A log collector that hung and continues finds every line, from the first to the last."""
    with full_pipe() as (read, write), reserved_port() as port, quiet() as service:
        service.set_document(document(6, mine()))
        with Run(service.url, tmp_path, ENFORCE, listen=f"127.0.0.1:{port}", stderr=write) as run:
            until(lambda: len(service.posts) == 1)
            found = b""
            while b"event=agent.listening" not in found:
                found += os.read(read, 1 << 16)
            assert run.stop() == 0
        found += os.read(read, 1 << 16)
    events = [line.split(" event=")[1].split()[0] for line in found.decode().lstrip("x").splitlines()]
    assert events[-1] == "agent.stopped"
    assert {"agent.listening", "agent.started", "approval.accepted"} <= set(events)
    assert "log.lines_lost" not in events
