"""Disk read errors, which SQLite reports as damage: the outbox waits, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.peers import need
from tests.support.read_errors import RECORDS

SHIM: Final = Path(__file__).parents[1] / "support" / "read_errors.c"

pytestmark = pytest.mark.linux("preloads a library that fails reads")


def test_read_errors_lose_nothing_and_rename_nothing(tmp_path: Path) -> None:
    """Every record is delivered once, for any failed read, once or repeatedly, at the start or later."""
    library = tmp_path / "read_errors.so"
    subprocess.run([need("cc"), "-shared", "-fPIC", "-nostdlib", "-o", library, SHIM], check=True)
    command = [sys.executable, "-m", "tests.support.read_errors", str(tmp_path)]
    environ = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *lives, patience = [json.loads(line) for line in done.stdout.splitlines()]
    assert patience["reads"] < 500  # in an hour: once a minute, and more often at first
    assert len(lives) > 100
    for life in lives:
        assert life["got"] == list(range(RECORDS + 3)), life
        assert (life["lost"], life["faults"], life["state"]) == ([], [], True), life
        assert {*life["left"], *life.get("during", ())} == {"o.db", "o.db-shm", "o.db-wal"}, life
