"""The functions and the Python consumer summarize the same records in the same way."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import pytest

from deploy.consumers.python.event_summaries.join import event_summary
from deploy.consumers.python.event_summaries.record import Fact, read
from tests.support import kusto_scenario as scenario
from tests.support.kusto import SPAN, Database

pytestmark = pytest.mark.linux("what runs the queries is tried on Linux")

NOW: Final = "2026-12-01T00:00:00.000000Z"


@pytest.fixture
def database() -> Iterator[Database]:
    found = Database()
    yield found
    found.close()


@pytest.mark.parametrize("seed", range(5))
def test_functions_and_consumer_give_the_same_summary(seed: int, database: Database) -> None:
    """For all records, and for the rest after many are lost, duplicated, and out of order: the seed selects which."""
    chance = random.Random(seed)  # noqa: S311  # the same loss in each run
    records = scenario.month()
    if seed:
        records = [record for record in records if chance.random() > 0.15 * seed for _ in range(chance.choice((1, 2)))]
        chance.shuffle(records)
    database.ingest(records)
    rows = database.query(f"ScheduledEventsSummaries({', '.join(SPAN)})")
    facts: dict[str | None, list[Fact]] = defaultdict(list)
    for record in records:
        fact = read(json.dumps(record).encode())
        facts[fact.event_id].append(fact)
    joined = {event_id: event_summary(own, NOW, 3600.0) for event_id, own in facts.items() if event_id is not None}
    begun = {
        event_id: one["first_seen"] or min(fact.time for fact in facts[event_id]) for event_id, one in joined.items()
    }
    expected = {event_id: by_consumer(one) for event_id, one in joined.items() if begun[event_id] >= "2026-11"}
    assert {row["EventId"]: by_functions(row) for row in rows} == expected


def by_functions(row: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a row, with null for unknown values."""
    columns = ("EventType", "SeenUnbroken", "NoticeSeconds", "AnnouncedSeconds", "InterruptionSecondsTotal")
    texts = ("StartedBy", "ApproverVm", "Rule")
    times = ("FirstSeen", "NotBefore", "ApprovedAt", "StartedAt", "GoneAt")
    return {
        "Outcome": row["Outcome"],
        "ReportingVms": row["VmNames"],
        **{column: row[column] for column in columns},
        **{column: row[column] or None for column in texts},
        **{column: row[column] for column in times},
    }


def by_consumer(found: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a summary, with the names of the functions."""
    observed = [seconds for seconds in found["interruption_seconds"].values() if seconds is not None]
    times = {
        "FirstSeen": "first_seen",
        "NotBefore": "not_before",
        "ApprovedAt": "approved_at",
        "StartedAt": "started_at",
        "GoneAt": "gone_at",
    }
    return {
        "Outcome": found["outcome"] or "open",
        "ReportingVms": found["reported_by"],
        "EventType": found["event_type"],
        "SeenUnbroken": found["seen_before"] == "unbroken",
        "NoticeSeconds": found["notice_seconds"],
        "AnnouncedSeconds": found["announced_duration_seconds"],
        "InterruptionSecondsTotal": sum(observed) if observed else None,
        "StartedBy": found["started_by"],
        "ApproverVm": found["approved_by_vm"],
        "Rule": found["rule"],
        **{column: _moment(found[name]) for column, name in times.items()},
    }


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=None)
