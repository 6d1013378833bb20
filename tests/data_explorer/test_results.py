"""Results of the functions and panels for a month of a small fleet (kusto_scenario), run by duckdb-kql."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from exporter.core.document import MINIMUM_NOTICE
from tests.support import kusto_scenario as scenario
from tests.support.kusto import ENQUEUED, SPAN, Database, for_data_explorer, for_grafana, panels

pytestmark = pytest.mark.linux("what runs the queries is tried on Linux")

PAGE: Final = Path(__file__).parents[2] / "docs" / "data-explorer.md"
NOW: Final = datetime(2026, 12, 1, tzinfo=UTC)
PLACE: Final = {"SubscriptionId", "ResourceGroup", "VmssName", "Location", "Tags"}
"""The columns with a VM's place: in most results, and always the same in the scenario."""

DATED: Final = ("Timeline", "ByVm", "Summaries", "Notice", "Freezes", "NeverEnded", "Approvals")
CALLS: Final = {
    "ScheduledEventsMinimumNotice": "ScheduledEventsMinimumNotice()",
    **{f"ScheduledEvents{name}": f"ScheduledEvents{name}({', '.join(SPAN)})" for name in DATED},
    "ScheduledEventsAgents": f"ScheduledEventsAgents({SPAN[1]})",
}
Row = dict[str, Any]


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    found = Database()
    found.ingest(scenario.month())
    yield found
    found.close()


def ask(database: Database, name: str, further: str = "") -> list[Row]:
    """Return the rows of a function over the month, with an unknown text as null."""
    asked = CALLS[f"ScheduledEvents{name}"]
    rows = database.query(f"{asked.removesuffix(')')}{further})", now=NOW)
    return [{column: None if value == "" else value for column, value in row.items()} for row in rows]


def of(rows: Sequence[Row], event_id: str) -> Row:
    """Return the one row of an event."""
    (found,) = (row for row in rows if row["EventId"] == event_id.lower())
    return found


def shown(row: Mapping[str, Any], *columns: str) -> list[Any]:
    """Return some columns of a row; a time as its day and clock."""
    values = (row[column] for column in columns)
    return [f"{value:%d %H:%M:%S}" if isinstance(value, datetime) else value for value in values]


def test_the_least_notice_is_that_of_the_agent(database: Database) -> None:
    """It is the records' `documented_minimum_notice_seconds`."""
    rows = ask(database, "MinimumNotice")
    assert {row["EventType"]: row["MinimumSeconds"] for row in rows} == MINIMUM_NOTICE


def test_an_event_is_one_summary_for_any_number_of_vms(database: Database) -> None:
    """Two named VMs and a neighbour, one of them a second late: the first poll counts, and so does the interrupted
    VM."""
    row = of(ask(database, "Summaries"), scenario.FREEZE)
    assert shown(row, "EventType", "Outcome", "Vms", "ReportingVms") == ["Freeze", "completed", 2, 3]
    assert shown(row, "VmNames", "Resources") == [["web-0", "web-1", "web-2"], ["web-0", "web-1"]]
    assert shown(row, "FirstSeen", "SeenUnbroken", "NoticeSeconds") == ["03 10:00:00", True, 900.0]
    assert shown(row, "NotBefore", "StartedAt", "GoneAt") == ["03 10:15:00", "03 10:15:00", "03 10:20:00"]
    assert shown(row, "AnnouncedSeconds", "InterruptedVms", "InterruptionSecondsWorst", "InterruptionSecondsTotal") == [
        9,
        1,
        4.0,
        4.0,
    ]
    assert shown(row, "StartedBy", "ApproverVm", "Rule", "ApprovedAt") == ["not_before", None, None, None]


def test_an_event_is_joined_in_any_case_of_its_id(database: Database) -> None:
    """web-0 read it in upper case and approved it; web-1, in lower case, can't know the approver: it was this fleet."""
    row = of(ask(database, "Summaries"), scenario.APPROVED)
    assert shown(row, "ReportingVms", "StartedBy", "ApproverVm", "Rule") == [2, "this_vm", "web-0", "short-freeze"]
    assert shown(row, "ApprovedAt", "StartedAt", "GoneAt") == ["05 12:05:00", "05 12:06:00", "05 12:10:00"]


def test_every_event_of_the_month_is_listed_once(database: Database) -> None:
    """In the order in which they were first seen, without one that began before the month."""
    found = [row["EventId"] for row in ask(database, "Summaries")]
    recorded = (scenario.FREEZE, scenario.APPROVED, scenario.CANCELED, scenario.DELETED, scenario.LATE, scenario.LOST)
    assert found == [event_id.lower() for event_id in recorded]


def test_an_event_that_is_still_open_for_one_vm_is_not_ended() -> None:
    """`ended` comes from an agent that did not see the outcome; another one still has the event."""
    records = [record for record in scenario.month() if record["data"]["vm"]["name"] == "web-0"]
    closing = next(record for record in records if record["data"]["kind"] == "completed")
    other = Database()
    for kind, expected in (("ended", "open"), ("completed", "completed")):
        recorded = json.loads(json.dumps(closing).replace('"completed"', f'"{kind}"'))
        recorded |= {"source": f"another-{kind}", "id": "its own", "type": f"azure_scheduled_event.{kind}.v1"}
        recorded["data"]["event_id"] = scenario.LOST.lower()
        recorded["data"]["summary"]["first_seen"] = "2026-11-20T18:00:00.000000Z"
        other.ingest([*records, recorded])
        assert of(ask(other, "Summaries"), scenario.LOST)["Outcome"] == expected
    other.close()


def test_short_notice_is_null_if_unknown(database: Database) -> None:
    """Below the documented minimum; just met, one poll late; and unknown if not seen Scheduled, or not in time."""
    rows = ask(database, "Notice")
    assert [shown(row, "NoticeSeconds", "MinimumSeconds", "Short") for row in rows] == [
        [900.0, 900.0, False],
        [900.0, 900.0, False],
        [600.0, 900.0, True],
        [300.0, 300.0, False],
        [None, 900.0, None],
        [900.0, 900.0, False],
    ]
    strict = of(ask(database, "Notice", ", 300.5"), scenario.CANCELED)
    assert strict["Short"] is False


def test_observed_interruptions_are_compared_with_announced_ones(database: Database) -> None:
    """A row per affected VM; null, not 0, without an interruption; interruptions of one event are added up."""
    rows = ask(database, "Freezes")
    columns = (
        "VmName",
        "AnnouncedSeconds",
        "InterruptionSeconds",
        "InterruptionLongestSeconds",
        "Interruptions",
        "LongerBySeconds",
    )
    assert [shown(row, *columns) for row in rows] == [
        ["web-0", 2, None, None, 0, None],
        ["web-0", 9, 4.0, 4.0, 1, -5.0],
        ["web-1", 9, None, None, 0, None],
        ["web-0", 5, 7.5, 5.0, 2, 2.5],
        ["web-1", 5, None, None, 0, None],
        ["web-2", None, None, None, None, None],
        ["web-1", None, None, None, 0, None],
        ["web-0", 0, None, None, None, None],
    ]


def test_interruptions_are_known_without_the_closing_record() -> None:
    """The records of the interruptions contain it, if that of the end is lost."""
    other = Database()
    other.ingest(record for record in scenario.month() if record["data"]["kind"] != "completed")
    row = next(row for row in ask(other, "Freezes") if row["Interruptions"] == 2)
    other.close()
    assert shown(row, "VmName", "Outcome", "InterruptionSeconds", "InterruptionLongestSeconds") == [
        "web-0",
        "open",
        7.5,
        5.0,
    ]


def test_events_that_never_ended_are_found(database: Database) -> None:
    """A VM that was deleted, and one that still exists: for that one a record is missing."""
    rows = ask(database, "NeverEnded")
    assert [shown(row, "EventType", "VmNames", "VmsHeardLater", "VmIsDeleted") for row in rows] == [
        ["Terminate", ["web-2"], 0, True],
        ["Freeze", ["web-0"], 1, False],
    ]
    assert [shown(row, "EventType") for row in ask(database, "NeverEnded", ", 12d")] == [["Terminate"]]


def test_approvals_show_what_started_each_event(database: Database) -> None:
    """What started it, with which rule, how long before NotBefore, after how many POSTs, and why other agents held
    it."""
    row = of(ask(database, "Approvals"), scenario.APPROVED)
    assert shown(row, "StartedBy", "ApproverVm", "Rule", "SecondsEarlier") == [
        "this_vm",
        "web-0",
        "short-freeze",
        600.0,
    ]
    assert shown(row, "Attempts", "Failed", "HeldFor") == [2, 1, ["not-leader"]]
    by = {row["EventId"]: row["StartedBy"] for row in ask(database, "Approvals")}
    assert by[scenario.LATE.lower()] == "unknown"
    assert by[scenario.CANCELED.lower()] is None


def test_agents_are_as_they_were_at_that_time(database: Database) -> None:
    """Version and mode of the last start before, and whether the agent has stopped since."""
    rows = ask(database, "Agents")
    assert [shown(row, "VmName", "Version", "Mode", "Stopped") for row in rows] == [
        ["web-0", "1.0.0", "enforce", True],
        ["web-1", "1.0.0", "enforce", False],
        ["web-2", "1.0.0", "dry-run", False],
    ]
    earlier = database.query("ScheduledEventsAgents(datetime(2026-11-01))")
    assert [shown(row, "Version", "Stopped") for row in earlier] == [
        ["0.9.0", False],
        ["1.0.0", False],
        ["1.0.0", False],
    ]


def test_timeline_has_every_record_of_events(database: Database) -> None:
    """Sorted by time, without VM-wide records, and only from the span."""
    rows = ask(database, "Timeline")
    begin = scenario.at(1, "00:00:00").replace(tzinfo=None)
    recorded = [record for record in scenario.month() if record["data"]["event_id"] and record["time"] >= "2026-11-01"]
    assert [row["Time"] for row in rows] == sorted(row["Time"] for row in rows)
    assert all(begin <= row["Time"] < begin + timedelta(days=30) for row in rows)
    assert sorted(row["Message"] for row in rows) == sorted(record["data"]["message"] for record in recorded)


def test_order_and_copies_change_nothing(database: Database) -> None:
    """Backwards, twice, or in two batches, each copy accepted at another time: each function has the same result."""
    expected = {name: ask(database, name) for name in ("Timeline", "Summaries", "Freezes", "Approvals", "Agents")}
    for records in scenario.shuffled(scenario.month()):
        other = Database()
        taken = [record | {ENQUEUED: f"2026-12-01T00:00:{n % 60:02}Z"} for n, record in enumerate(records)]
        other.ingest(taken[: len(taken) // 2])
        other.ingest(taken[len(taken) // 2 :])
        assert {name: ask(other, name) for name in expected} == expected
        other.close()


@pytest.mark.parametrize("title", panels())
def test_a_panel_shows_something(title: str, database: Database) -> None:
    """In Grafana and in a dashboard of Azure Data Explorer alike."""
    query = panels()[title]
    rows = database.query(for_grafana(query), now=NOW)
    assert rows
    assert rows == database.query(for_data_explorer(query), now=NOW)


def test_the_panels_of_a_month(database: Database) -> None:
    """Events per day, interruptions, short notice, and agents, from the month of records."""
    queries = {title.split(" (")[0]: for_grafana(query) for title, query in panels().items()}
    found = {title: database.query(query, now=NOW) for title, query in queries.items()}
    started = found["Events started per day, by type and outcome"]
    assert [shown(row, "Time", "EventType", "Outcome", "Events") for row in started] == [
        ["03 00:00:00", "Freeze", "completed", 1],
        ["05 00:00:00", "Freeze", "completed", 1],
        ["09 00:00:00", "Terminate", "open", 1],
        ["12 00:00:00", "Reboot", "completed", 1],
        ["20 00:00:00", "Freeze", "open", 1],
    ]
    interruptions = found["Interruptions per day: p50, p99, and longest, in seconds"]
    assert [shown(row, "Time", "p50", "p99", "longest") for row in interruptions] == [
        ["03 00:00:00", 4.0, 4.0, 4.0],
        ["05 00:00:00", 7.5, 7.5, 7.5],
    ]
    assert [row["EventType"] for row in found["Events with short notice"]] == ["Reboot"]
    agents = [shown(row, "Mode", "Version", "Vms") for row in found["Agents by mode and version"]]
    assert agents == [["dry-run", "1.0.0", 1], ["enforce", "1.0.0", 1]]


def test_each_event_of_the_range_is_a_row_for_each_vm(database: Database) -> None:
    """The newest first, with the starter, the rule of the VM's own approval, its interruption, and the outcome."""
    rows = database.query(for_grafana(panels()["Events in this range, by VM (table)"]), now=NOW)
    found = [shown(row, "Began", "VmName", "EventType", "NoticeSeconds") for row in rows]
    assert found == [
        ["20 18:15:00", "web-0", "Freeze", 900.0],
        ["12 04:00:01", "web-1", "Reboot", None],
        ["09 15:10:00", "web-2", "Terminate", 300.0],
        ["07 09:00:00", "web-1", "Reboot", 600.0],
        ["05 12:06:00", "web-0", "Freeze", 900.0],
        ["05 12:06:00", "web-1", "Freeze", 900.0],
        ["03 10:15:00", "web-0", "Freeze", 900.0],
        ["03 10:15:00", "web-1", "Freeze", 899.0],
        ["01 00:05:00", "web-0", "Freeze", 900.0],
    ]
    approved = [shown(row, "StartedBy", "Rule", "InterruptionSeconds", "Outcome") for row in rows[4:6]]
    assert approved == [["this_vm", "short-freeze", 7.5, "completed"], ["other", None, None, "completed"]]
    assert [row["Outcome"] for row in rows if row["Outcome"] != "completed"] == ["open", "open", "canceled"]


@pytest.mark.parametrize("name", CALLS)
def test_the_page_shows_each_function_correctly(name: str, database: Database) -> None:
    """The example in docs/data-explorer.md is a row of the result, with all columns except those of the place.

    Resource ids are shortened to one line.
    """
    page = PAGE.read_text(encoding="utf-8")
    example = re.search(rf"^### `{name}\(.*?^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    rows = ask(database, name.removeprefix("ScheduledEvents"))
    written = [{column: _plain(row[column]) for column in row if column not in PLACE} for row in rows]
    assert example is not None, written[:2]
    found = json.loads(example[1])
    assert found in written, written
    assert list(found) == list(written[0])


def _plain(value: Any) -> Any:
    """Return a value as the page shows it: as JSON has it, with a shortened resource id."""
    if isinstance(value, str):
        return re.sub(r"^/subscriptions/.*(?=/virtualMachines/)", "/subscriptions/…", value)
    return f"{value.isoformat()}Z" if isinstance(value, datetime) else value
