"""Messages as typed rows: each kind of record through the mapping and the update policy, run by duckdb-kql."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import pytest

from exporter.core.records import KINDS, Record
from exporter.sinks.event_hubs.messages import message
from tests.core.test_schema import EXAMPLES, cloudevent
from tests.support.eventhubs_target import body_of
from tests.support.hostile_messages import hostile
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
    """Return the rows of one record of each kind, by kind."""
    found = Database()
    rows = stored(found, *(cloudevent(kind) | {ENQUEUED: TAKEN} for kind in EXAMPLES))
    found.close()
    assert len(rows) == len(EXAMPLES)
    return {row["Kind"]: row for row in rows}


def moment(text: Any) -> datetime | None:
    """Return a time of a record as the database has it: in UTC, without a zone."""
    return datetime.fromisoformat(text).replace(tzinfo=None) if text else None


def known(number: Any) -> Any:
    """Return one of Azure's numbers; -1 means unknown."""
    return number if isinstance(number, int) and number >= 0 else None


def expected(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return each typed column of a record that arrived at `TAKEN`. An unknown text is "", or null here."""
    data, vm = record["data"], record["data"]["vm"]
    event = data["event"] if isinstance(data["event"], dict) else {}
    return {
        "Source": record["source"],
        "Id": record["id"],
        "Time": moment(record["time"]),
        "Kind": record["type"].removeprefix("azure_scheduled_event.").removesuffix(".v1"),
        "EventId": event.get("EventId", "").lower(),
        "Severity": data["severity"],
        "Message": data["message"],
        "VmName": vm["name"],
        "VmId": vm["id"],
        "SubscriptionId": vm["subscription_id"],
        "ResourceGroup": vm["resource_group"],
        "VmssName": vm["vmss_name"],
        "Location": vm["location"],
        "Zone": vm["zone"],
        "Tags": vm["tags"],
        "AffectsSelf": data["affects_self"],
        "EventType": event.get("EventType"),
        "EventSource": event.get("EventSource"),
        "EventStatus": data.get("summary", {}).get("last_status") or event.get("EventStatus"),
        "Resources": event.get("Resources"),
        "Description": event.get("Description"),
        "NotBefore": moment(data.get("not_before")),
        "AnnouncedSeconds": known(event.get("DurationInSeconds")),
        "Data": data,
        "EnqueuedTime": moment(TAKEN),
    }


def stored(database: Database, *messages: Any) -> list[dict[str, Any]]:
    """Return the rows of these messages."""
    database.ingest(messages)
    return database.query("ScheduledEventsTyped | sort by Id asc")


def same(row: Any, value: Any) -> bool:
    """Return whether a row has this value; an unknown text is "" in Kusto, and may be null in duckdb-kql."""
    unknown = ("", None)
    return row == value or (row in unknown and value in unknown)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_record_is_one_row(kind: str, by_kind: Mapping[str, dict[str, Any]]) -> None:
    """With every column of the table, each with its type and with the record's value."""
    row, values = by_kind[kind], expected(cloudevent(kind))
    assert list(row) == list(values) == list(tables()["ScheduledEventsTyped"])
    for column, value in row.items():
        assert same(value, values[column]), (column, value, values[column])


def test_every_column_has_a_value_in_some_record(by_kind: Mapping[str, dict[str, Any]]) -> None:
    """The records of all kinds together fill each column at least once, except for those with their own tests."""
    empty = {
        column
        for column in tables()["ScheduledEventsTyped"]
        if all(row[column] in ("", None, {}) for row in by_kind.values())
    }
    assert empty <= {"SubscriptionId", "ResourceGroup", "VmssName", "Tags", "AnnouncedSeconds"}


def test_every_member_of_vm_arrives(database: Database) -> None:
    """Place and tags: a tag that the VM lacks is null in the row as well."""
    record = cloudevent("scheduled")
    place = {"subscription_id": "s", "resource_group": "g", "vmss_name": "web", "tags": {"owner": "shop", "team": None}}
    record["data"]["vm"] |= place
    (row,) = stored(database, record)
    assert [row[name] for name in ("SubscriptionId", "ResourceGroup", "VmssName")] == ["s", "g", "web"]
    assert row["Tags"] == {"owner": "shop", "team": None}


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_is_one_line(kind: str) -> None:
    """The format of the data connection, JSON, has an object on each line."""
    body = body_of(message(_record(kind), "cloudevents"))
    assert b"\n" not in body
    assert json.loads(body) == cloudevent(kind)


def test_system_properties_are_optional(database: Database) -> None:
    """A data connection without them leaves the time of arrival null."""
    (row,) = stored(database, cloudevent("started"))
    assert row["EnqueuedTime"] is None


def test_an_unknown_duration_is_null(database: Database) -> None:
    """-1 is not a number of seconds; 0 is."""
    rows = []
    for seconds in (-1, 0, 9):
        record = cloudevent("scheduled") | {"id": str(seconds)}
        record["data"]["event"]["DurationInSeconds"] = seconds
        rows.append(record)
    assert [row["AnnouncedSeconds"] for row in stored(database, *rows)] == [None, 0, 9]


def test_an_invalid_record_leaves_no_row(database: Database) -> None:
    """Messages of other senders on the same hub, and records without a time, an id, or a source."""
    record = cloudevent("scheduled")
    other = body_of(message(_record("scheduled"), "azure-sample"))
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


def test_no_message_is_of_another_kind_than_its_type(database: Database) -> None:
    """Neither `data.kind` nor the case of the event's id counts. A later version and a type in capitals have no row."""
    record = cloudevent("scheduled")
    event_id = record["data"]["event_id"]
    shouted = {**record, "data": {**record["data"], "kind": "completed", "event_id": event_id.upper()}}
    others = [
        record | {"type": "azure_scheduled_event.scheduled.v2"},
        record | {"type": "azure_scheduled_event.scheduled"},
        record | {"type": "AZURE_SCHEDULED_EVENT.scheduled.v1"},
        record | {"type": "azure_scheduled_event..v1"},
    ]
    (row,) = stored(database, shouted, *others)
    assert (row["Kind"], row["EventId"]) == ("scheduled", event_id)


def test_a_hostile_message_leaves_the_rows_of_the_others_as_they_are(database: Database) -> None:
    """It produces no row, or one about its own event, with the kind of its type."""
    before = {row["Kind"]: row for row in stored(database, *(cloudevent(kind) for kind in KINDS))}
    messages = list(readable_messages())
    rows = stored(database, *messages)
    ids = {row["Id"] for row in before.values()}
    assert {row["Kind"]: row for row in rows if row["Id"] in ids} == before
    kinds = {one["id"]: one["type"].removeprefix("azure_scheduled_event.") for one in messages if isinstance(one, dict)}
    others = [row for row in rows if row["Id"] not in ids]
    assert len(others) > 5
    for row in others:
        assert f"{row['Kind']}.v1" == kinds[row["Id"]]
        assert row["EventId"] != "stolen"


def readable_messages() -> Iterator[Any]:
    """The hostile messages that are JSON for DuckDB too."""
    for name, body in hostile().items():
        if not name.startswith("deep") and name not in {"half a character", "huge number", "no number"}:
            with contextlib.suppress(ValueError):
                yield json.loads(body)


@pytest.mark.parametrize("found", [None, "text", 7, ["anything", None], {"EventId": 7, "DurationInSeconds": "soon"}])
def test_an_invalid_object_of_azure_leaves_its_columns_empty(found: Any, database: Database) -> None:
    """event.rejected contains any value as received, and still produces a row."""
    record = cloudevent("event.rejected")
    record["data"]["event"] = found
    (row,) = stored(database, record)
    assert row["Kind"] == "event.rejected"
    assert row["Data"]["event"] == found
    assert row["AnnouncedSeconds"] is None
    assert not row["EventType"]


def test_every_type_is_one_of_kusto() -> None:
    """Each column has a type that the test's database knows, and each type is tested."""
    kinds = {kind for columns in tables().values() for kind in columns.values()}
    assert kinds <= set(TYPES)
    assert kinds >= {"string", "datetime", "long", "bool", "dynamic"}


def _record(kind: str) -> Record:
    return EXAMPLES[kind]()[1]
