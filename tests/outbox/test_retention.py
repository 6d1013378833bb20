"""What is dropped at the bound: a fiftieth at a time, the oldest first."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from exporter.outbox.queue import drop_oldest
from tests.support.outbox_content import STATE, a_record, drained, opened


@pytest.mark.parametrize(("waiting", "dropped"), [(1, 1), (2, 1), (99, 1), (100, 2), (149, 2), (150, 3)])
def test_a_fiftieth_of_the_waiting_records_is_dropped_and_at_least_one(
    tmp_path: Path, waiting: int, dropped: int
) -> None:
    """Exactly that many, the oldest, and as many are counted."""
    outbox = opened(tmp_path / "o.db", names=("otlp",))
    outbox.commit(STATE, [a_record(number) for number in range(waiting)])
    with closing(sqlite3.connect(outbox.path, isolation_level=None)) as db:
        found = drop_oldest(db)
    assert found is not None
    assert dict(found) == {"otlp": dropped}
    assert drained(outbox, "otlp") == list(range(dropped, waiting))
    outbox.close()


def test_of_nothing_nothing_is_dropped(tmp_path: Path) -> None:
    outbox = opened(tmp_path / "o.db")
    with closing(sqlite3.connect(outbox.path, isolation_level=None)) as db:
        assert drop_oldest(db) is None
    outbox.close()
