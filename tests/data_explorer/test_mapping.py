"""Messages as typed rows: each kind of record through the ingestion mapping and the update policy, run by duckdb-kql."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import pytest

from exporter.core.records import KINDS, Record
from exporter.sinks.event_hubs.messages import message
from tests.core.test_schema import EXAMPLES, cloudevent
from tests.support.kusto import ENQUEUED, TYPES, Database, tables

pytestmark = pytest.mark.linux("what runs the queries is tried on Linux")

TAKEN: Final = "2026-11-21T07:19:41.500Z"


@pytest.fixture
def database() -> Iterator[Database]:
    found = Database()
    yield found
    found.close()


@pytest.fixture(scope="module")
def by_kind() -> Mapping[str, dict[str, Any]]:
    """The rows of one record of each kind, by the kind that they have."""
    found = Database()
    rows = stored(found, *(cloudevent(kind) | {ENQUEUED: TAKEN} for kind in EXAMPLES))
    found.close()
    assert len(rows) == len(EXAMPLES)
    return {row["Kind"]: row for row in rows}


def moment(text: Any) -> datetime | None:
    """A time of a record as the database gives it: in UTC, without saying so."""
    return datetime.fromisoformat(text).replace(tzinfo=None) if text else None


def known(number: Any) -> Any:
    """A number of Azure's; -1 is: not known."""
    return number if isinstance(number, int) and number >= 0 else None


COLUMNS: Final[Mapping[str, Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Any]]] = {
    "Source": lambda record, data, event: record["source"],
    "Id": lambda record, data, event: record["id"],
    "Time": lambda record, data, event: moment(record["time"]),
    "Kind": lambda record, data, event: record["type"].removeprefix("azure_scheduled_event.").removesuffix(".v1"),
    "EventId": lambda record, data, event: event.get("EventId", "").lower(),
    "Severity": lambda record, data, event: data["severity"],
    "Message": lambda record, data, event: data["message"],
    "VmName": lambda record, data, event: data["vm"]["name"],
    "VmId": lambda record, data, event: data["vm"]["id"],
    "SubscriptionId": lambda record, data, event: data["vm"]["subscription_id"],
    "ResourceGroup": lambda record, data, event: data["vm"]["resource_group"],
    "VmssName": lambda record, data, event: data["vm"]["vmss_name"],
    "Location": lambda record, data, event: data["vm"]["location"],
    "Zone": lambda record, data, event: data["vm"]["zone"],
    "Tags": lambda record, data, event: data["vm"]["tags"],
    "AffectsSelf": lambda record, data, event: data["affects_self"],
    "EventType": lambda record, data, event: event.get("EventType"),
    "EventSource": lambda record, data, event: event.get("EventSource"),
    "EventStatus": lambda record, data, event: data.get("account", {}).get("last_status") or event.get("EventStatus"),
    "Resources": lambda record, data, event: event.get("Resources"),
    "Description": lambda record, data, event: event.get("Description"),
    "NotBefore": lambda record, data, event: moment(data.get("not_before")),
    "AnnouncedSeconds": lambda record, data, event: known(event.get("DurationInSeconds")),
    "Data": lambda record, data, event: data,
    "EnqueuedTime": lambda record, data, event: moment(TAKEN),
}
"""Each typed column out of a record, its `data` and Azure's object. A text that is not known is "", or null here."""


def stored(database: Database, *messages: Any) -> list[dict[str, Any]]:
    """The rows of these messages."""
    database.ingest(messages)
    return database.query("ScheduledEventsTyped | sort by Id asc")


def same(row: Any, expected: Any) -> bool:
    """Whether a row has this value; a text that is not known is "" in Kusto, and may be null with what runs it here."""
    return row == expected or (row in {"", None} and expected in {"", None} if not isinstance(row, list | dict) else False)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_record_is_one_row(kind: str, by_kind: Mapping[str, dict[str, Any]]) -> None:
    """With every column of the table, each of its type and with the value that the record has."""
    record, row = cloudevent(kind), by_kind[kind]
    event = record["data"]["event"] if isinstance(record["data"]["event"], dict) else {}
    assert list(row) == list(COLUMNS) == list(tables()["ScheduledEventsTyped"])
    for column, value in row.items():
        expected = COLUMNS[column](record, record["data"], event)
        assert same(value, expected), (column, value, expected)


def test_every_column_was_seen_with_a_value(by_kind: Mapping[str, dict[str, Any]]) -> None:
    """The records of all kinds together fill each column at least once, but for those that have tests of their own."""
    empty = {column for column in COLUMNS if all(row[column] in ("", None, {}) for row in by_kind.values())}
    assert empty <= {"SubscriptionId", "ResourceGroup", "VmssName", "Tags", "AnnouncedSeconds"}


def test_all_that_a_vm_says_of_itself_arrives(database: Database) -> None:
    """Place and tags: a tag that the VM lacks is null in the row as well."""
    record = cloudevent("scheduled")
    place = {"subscription_id": "s", "resource_group": "g", "vmss_name": "web", "tags": {"owner": "shop", "team": None}}
    record["data"]["vm"] |= place
    (row,) = stored(database, record)
    assert [row[name] for name in ("SubscriptionId", "ResourceGroup", "VmssName")] == ["s", "g", "web"]
    assert row["Tags"] == {"owner": "shop", "team": None}


def test_system_properties_are_optional(database: Database) -> None:
    """A data connection that was made without them leaves the time of arrival null."""
    (row,) = stored(database, cloudevent("started"))
    assert row["EnqueuedTime"] is None


def test_records_of_the_first_agents_have_kind_and_event(database: Database) -> None:
    """They have neither `data.kind` nor `data.event_id`: both come from `type` and from Azure's object."""
    record = cloudevent("approval.accepted")
    del record["data"]["kind"], record["data"]["event_id"]
    (row,) = stored(database, record)
    assert row["Kind"] == "approval.accepted"
    assert row["EventId"] == record["data"]["event"]["EventId"].lower()


def test_a_duration_that_azure_does_not_know_is_null(database: Database) -> None:
    """-1 is no number of seconds; 0 is one."""
    rows = []
    for seconds in (-1, 0, 9):
        record = cloudevent("scheduled") | {"id": str(seconds)}
        record["data"]["event"]["DurationInSeconds"] = seconds
        rows.append(record)
    assert [row["AnnouncedSeconds"] for row in stored(database, *rows)] == [None, 0, 9]


def test_what_is_no_record_leaves_no_row(database: Database) -> None:
    """Messages of others on the same hub, and such as would pass for a record without a time, an id or a source."""
    record = cloudevent("scheduled")
    other = message(_record("scheduled"), "azure-sample").body
    strangers = [
        json.loads(other),
        {},
        "text",
        7,
        record | {"type": "com.example.other"},
        record | {"type": None},
        record | {"time": "yesterday"},
        record | {"time": None},
        record | {"id": ""},
        record | {"source": None},
    ]
    assert stored(database, *strangers) == []
    assert len(stored(database, *strangers, record)) == 1


@pytest.mark.parametrize("found", [None, "text", 7, ["anything", None], {"EventId": 7, "DurationInSeconds": "soon"}])
def test_an_object_of_azure_that_is_none_leaves_its_columns_empty(found: Any, database: Database) -> None:
    """event.rejected quotes whatever stood there: the row comes all the same."""
    record = cloudevent("event.rejected")
    record["data"]["event"] = found
    (row,) = stored(database, record)
    assert row["Kind"] == "event.rejected"
    assert row["Data"]["event"] == found
    assert row["AnnouncedSeconds"] is None
    assert not row["EventType"]


def test_the_types_are_kustos() -> None:
    """Each column has a type that the test's database knows, and every one of them is tried."""
    kinds = {kind for columns in tables().values() for kind in columns.values()}
    assert kinds <= set(TYPES)
    assert kinds >= {"string", "datetime", "long", "bool", "dynamic"}


def _record(kind: str) -> Record:
    return EXAMPLES[kind]()[1]
