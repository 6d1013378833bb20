"""The console command as a shell sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPLAY = [sys.executable, "-m", "exporter", "replay"]


@pytest.fixture
def document(tmp_path: Path) -> str:
    path = tmp_path / "document.json"
    path.write_text('{"DocumentIncarnation": 1, "Events": []}')
    return str(path)


@pytest.mark.linux("needs a device that is always full")
def test_output_that_cannot_be_written_is_reported_in_one_line(document: str) -> None:
    """A command that writes to a full disk ends with exit code 1 and one line with the reason."""
    with open("/dev/full", "w") as full:
        done = subprocess.run([*REPLAY, document], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("azure-scheduled-events-exporter: ")
    assert "No space left" in line


def test_a_closed_output_ends_the_command_without_a_message(document: str) -> None:
    """A command whose reader has ended exits with code 1 and prints no message."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        done = subprocess.run([*REPLAY, document], stdout=gone, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
