"""Records dropped at the bound: 2 % at a time, oldest first."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from exporter.outbox.queue import drop_oldest
from tests.support.outbox_content import STATE, a_record, drained, opened


@pytest.mark.parametrize(("waiting", "dropped"), [(1, 1), (2, 1), (99, 1), (100, 2), (149, 2), (150, 3)])
def test_two_percent_of_waiting_records_and_at_least_one_are_dropped(
    tmp_path: Path, waiting: int, dropped: int
) -> None:
    """The oldest are dropped, and their number is returned."""
    outbox = opened(tmp_path / "o.db", names=("otlp",))
    outbox.commit(STATE, [a_record(number) for number in range(waiting)])
    with closing(sqlite3.connect(outbox.path, isolation_level=None)) as db:
        found = drop_oldest(db)
    assert found is not None
    assert dict(found) == {"otlp": dropped}
    assert drained(outbox, "otlp") == list(range(dropped, waiting))
    outbox.close()


def test_empty_outbox_drops_nothing(tmp_path: Path) -> None:
    outbox = opened(tmp_path / "o.db")
    with closing(sqlite3.connect(outbox.path, isolation_level=None)) as db:
        assert drop_oldest(db) is None
    outbox.close()
