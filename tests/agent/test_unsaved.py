"""Records that the disk doesn't accept: their memory limit, and the order in which they are dropped."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Final

import pytest

from exporter.agent.persistence import UNSAVED_BYTES, UNSAVED_RECORDS
from tests.support.agent_environment import AgentEnvironment, document, event, policy

MIB: Final = 1 << 20


@pytest.mark.parametrize(
    ("capacity", "most"), [(100 * MIB, UNSAVED_BYTES), (8 * MIB, 2 * MIB)], ids=["a large outbox", "a small one"]
)
def test_unsaved_records_are_limited_in_bytes(tmp_path: Path, capacity: int, most: int) -> None:
    """A different document of 1 MB per second: the oldest records are dropped and counted, the newest are kept.

    The process uses the memory of the limit and of a few documents.
    """
    blocked = tmp_path / "state"
    blocked.write_text("no folder")
    with AgentEnvironment(
        tmp_path, policy(mode="dry-run"), path=blocked / "outbox.db", capacity=capacity
    ) as environment:

        def sees(number: int) -> None:
            text = f"{number:09}" * (MIB // 9)
            environment.see(document(number, event(Description=text if number else "")), 1)
            environment.kept.clear()

        sees(2)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(3, 43):
            sees(number)
        gc.collect()  # on Windows, a system error and its frames reference each other
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert after - before < most + 12 * MIB
        dropped = environment.value("destination_records_dropped_total", destination="otlp", reason="outbox-unwritable")
        assert dropped
        assert dropped > 10
        assert environment.said("outbox.dropped")
        blocked.unlink()
        environment.see(document(43, event()), 3)
        recorded = environment.records("updated")
        assert recorded[-1].data["changed"]["Description"]["to"] is None
        assert len(environment.records()) + dropped >= 41
        assert sum(len(record.to_json()) for record in recorded) < most + 4 * MIB


def test_unsaved_records_are_limited_in_number(tmp_path: Path) -> None:
    """The newest ten thousand are kept."""
    blocked = tmp_path / "state"
    blocked.write_text("no folder")
    with AgentEnvironment(
        tmp_path, policy(mode="off"), path=blocked / "outbox.db", capacity=100 * MIB, all_events=True
    ) as environment:
        crowd = [event(f"{number:05}", "Freeze", "web-2") for number in range(UNSAVED_RECORDS // 2)]
        for number in range(2, 6):
            environment.see(document(number, *(crowd if number % 2 == 0 else ())), 1)
        dropped = environment.value("destination_records_dropped_total", destination="otlp", reason="outbox-unwritable")
        assert dropped
        blocked.unlink()
        environment.live(2)
        assert len(environment.records()) <= UNSAVED_RECORDS + 5
        assert environment.records()[-1].kind in ("canceled", "ended")
