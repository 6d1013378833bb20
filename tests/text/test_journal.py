"""The journal keeps the priority of each line: `journalctl -p warning` shows only warnings and errors."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.choices import LogFormat
from exporter.log.log import MAX_LINE, Log
from exporter.log.writer import MAX_WAITING_LINES
from exporter.text.terminal import is_journal
from tests.support.log_reading import logged

pytestmark = pytest.mark.linux("tests systemd's journal")
INVALID = ("--source.url=http://127.0.0.1:9", "--web.listen-address=127.0.0.1:99999")
"""The port of the second is out of range."""


def named(descriptor: int) -> str:
    """Return the value that systemd sets JOURNAL_STREAM to for this stream."""
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"


def exit_code(stderr: int, journal: str) -> int:
    """Run an agent with invalid settings and this standard error; return its exit code."""
    command = [sys.executable, "-m", "exporter", "run", *INVALID]
    done = subprocess.run(command, stderr=stderr, env=os.environ | {"JOURNAL_STREAM": journal}, timeout=60, check=False)
    return done.returncode


@pytest.mark.parametrize("log_format", ["logfmt", "json"])
def test_journal_lines_begin_with_their_priority(log_format: LogFormat) -> None:
    """debug 7, info 6, warn 4, error 3 [syslog(3)], before an otherwise unchanged line."""
    plain, stream = io.StringIO(), io.StringIO()
    for target, priorities in ((plain, False), (stream, True)):
        log = Log(target, level="debug", format=log_format, clock=lambda: 0.0, priorities=priorities)
        for write in (log.debug, log.info, log.warn, log.error):
            write("event", text="<1>external")
        logged(log, target)
    without = plain.getvalue().splitlines()
    assert stream.getvalue().splitlines() == [
        f"<{number}>{line}" for number, line in zip((7, 6, 4, 3), without, strict=True)
    ]


def test_longest_line_is_written_atomically() -> None:
    """With its priority it is at most as long as a pipe's atomic write."""
    stream = io.StringIO()
    log = Log(stream, priorities=True)
    log.error("event", **{f"field{number}": "x" * 900 for number in range(9)})
    assert MAX_LINE - 1000 < len(logged(log, stream)) <= 4096


def test_lost_lines_are_reported_as_a_warning() -> None:
    """The line that replaces them has its priority too."""
    reader, writer = os.pipe()
    with open(reader, "rb") as read, open(writer, "w", encoding="utf-8") as stream:
        log = Log(stream, priorities=True)
        for number in range(MAX_WAITING_LINES * 3):
            log.info("event", number=number, text="x" * 900)
        lines: list[bytes] = []
        while not lines or b"log.lines_lost" not in lines[-1]:
            lines.append(read.readline())
        log.close()
    assert lines[-1].startswith(b"<4>")
    assert {line[:3] for line in lines[:-1]} == {b"<6>"}


def test_journal_is_recognized_by_device_and_inode() -> None:
    """Another socket, a file, no stream, and an invalid variable aren't the journal."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("w") as stream, open(os.devnull, "w", encoding="utf-8") as null:
        journal = {"JOURNAL_STREAM": named(ours.fileno())}
        assert is_journal(stream, journal)
        assert not is_journal(null, journal)
        assert not is_journal(None, journal)
        assert not is_journal(io.StringIO(), journal)
        assert not is_journal(stream, {})
        assert not is_journal(stream, {"JOURNAL_STREAM": named(theirs.fileno())})
        assert not is_journal(stream, {"JOURNAL_STREAM": "of:none"})
    assert not is_journal(stream, journal)


def test_invalid_settings_are_errors_in_the_journal(tmp_path: Path) -> None:
    """The message has priority 3 in the journal, and no prefix in a file that replaces it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert exit_code(ours.fileno(), named(ours.fileno())) == 2
        theirs.settimeout(30)
        assert theirs.recv(4096).startswith(b"<3>azure-scheduled-events-exporter: --web.listen-address")
        with (tmp_path / "stderr").open("wb") as file:
            assert exit_code(file.fileno(), named(ours.fileno())) == 2
    assert (tmp_path / "stderr").read_bytes().startswith(b"azure-scheduled-events-exporter: --web.listen-address")
