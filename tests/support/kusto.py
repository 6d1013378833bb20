"""The KQL of deploy/consumers/adx: read, checked by Kusto's language service, and run by DuckDB.

The language service is Microsoft's own, under Node (tests/node/kql.mjs). duckdb-kql, which isn't Kusto, runs the
queries: it translates KQL to SQL and rejects what it can't translate. The ingestion of messages, which isn't a query,
is done here by the mapping.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tests.support.node import FOLDER, run_node
from tests.support.peers import lacking

ADX: Final = Path(__file__).parents[2] / "deploy" / "consumers" / "adx"
COMMANDS: Final = ("1-tables.kql", "2-ingestion.kql", "3-functions.kql")
"""The files with management commands, in the order in which they are run."""
PANELS: Final = ADX / "4-dashboard.kql"
SPAN: Final = ("datetime(2026-11-01)", "datetime(2026-12-01)")
"""The month of a test's queries: its first instant, and the first one after it."""

ENQUEUED: Final = "x-opt-enqueued-time"
"""The system property with which a data connection gives the time at which Event Hubs accepted a message."""

TYPES: Final = {
    "string": "VARCHAR",
    "datetime": "TIMESTAMP",
    "long": "BIGINT",
    "real": "DOUBLE",
    "bool": "BOOLEAN",
    "dynamic": "JSON",
}
"""Kusto's types and DuckDB's, as duckdb-kql maps them."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The language service's findings about commands and queries, as described in tests/node/kql.mjs."""

    commands: Sequence[Mapping[str, Any]]
    problems: Sequence[Mapping[str, Any]]
    entities: Mapping[str, Mapping[str, Any]]
    results: Mapping[str, Sequence[tuple[str, str]] | None]
    paths: Sequence[Mapping[str, Any]]


def texts() -> dict[str, str]:
    """Return the files with commands, by name, in their order."""
    return {name: (ADX / name).read_text(encoding="utf-8") for name in COMMANDS}


def checked(files: Mapping[str, str], queries: Mapping[str, str]) -> Checked:
    """Return the language service's findings about these commands, one file after the other, and then about queries."""
    asked = {
        "files": [{"name": name, "text": text} for name, text in files.items()],
        "queries": [{"name": name, "text": text} for name, text in queries.items()],
    }
    return Checked(**json.loads(run_node(FOLDER / "kql.mjs", given=json.dumps(asked), seconds=300)))


def panels() -> dict[str, str]:
    """Return the queries of the dashboard by their titles, as they are pasted."""
    found = re.findall(r"^// panel: (.*)\n((?:.+\n)+)", PANELS.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(found)


def for_grafana(query: str, begin: str = SPAN[0], end: str = SPAN[1]) -> str:
    """Return a query with the macros of Grafana's Azure Data Explorer data source replaced, as its editor's help
    specifies."""
    query = re.sub(r"\$__timeFilter\((\w+)\)", rf"\1 >= {begin} and \1 <= {end}", query)
    return query.replace("$__timeFrom", begin).replace("$__timeTo", end)


def for_data_explorer(query: str) -> str:
    """Return a query in the form for a dashboard of Azure Data Explorer, with its parameters declared."""
    query = re.sub(r"\$__timeFilter\((\w+)\)", r"\1 between (_startTime .. _endTime)", query)
    query = query.replace("$__timeFrom", "_startTime").replace("$__timeTo", "_endTime")
    return f"let _startTime = {SPAN[0]};\nlet _endTime = {SPAN[1]};\n{query}"


def commands(verb: str) -> dict[str, str]:
    """Return the commands that begin with these words, by the name of their object, in order."""
    pieces = (piece.strip() for text in texts().values() for piece in text.split("\n\n"))
    found = (piece for piece in pieces if piece.startswith(verb))
    return {_named(piece.removeprefix(verb)): piece for piece in found}


def _named(rest: str) -> str:
    """Return the name after a command's verb and its `with (…)`."""
    name = re.match(r"\s*(?:with\s*\([^)]*\)\s*)?(\w+)", rest)
    assert name is not None, rest
    return name[1]


def tables() -> dict[str, dict[str, str]]:
    """Return the columns of each table: Kusto's types by column name, in order."""
    found = commands(".create-merge table")
    return {name: dict(re.findall(r"^    (\w+): (\w+)", text, re.MULTILINE)) for name, text in found.items()}


def views() -> dict[str, str]:
    """Return the query of each materialized view."""
    return {
        name: text[text.index("{") + 1 : -1] for name, text in commands(".create-or-alter materialized-view").items()
    }


def mapping() -> list[dict[str, Any]]:
    """Return the JSON ingestion mapping of the raw table: columns with their paths."""
    (found,) = re.findall(r'ingestion json mapping "\w+"\n```\n(.*?)\n```', texts()["1-tables.kql"], re.DOTALL)
    mapped: list[dict[str, Any]] = json.loads(found)
    return mapped


def update_policy() -> dict[str, Any]:
    """Return the one update policy."""
    (found,) = re.findall(r"policy update\n```\n(.*?)\n```", texts()["2-ingestion.kql"], re.DOTALL)
    (policy,) = json.loads(found)
    assert isinstance(policy, dict)
    return policy


def at_path(message: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path of a JSON mapping, `$` or `$.a.b`, in a message; None if there is none."""
    found: Any = message
    for part in path.split(".")[1:]:
        found = found.get(part) if isinstance(found, dict) else None
    return found


@lru_cache(1)
def _engine() -> ModuleType:
    """Return duckdb-kql with the functions of the files, which it reads once."""
    if find_spec("duckdb_kql") is None or find_spec("duckdb") is None:
        lacking("duckdb-kql is not installed here: pip install -e .[test]")
    import duckdb_kql

    duckdb_kql.set_functions(list(commands(".create-or-alter function").values()))
    return duckdb_kql


class Database:
    """A database with the tables, functions, and the view of the files, run by duckdb-kql: `query` runs KQL on it."""

    def __init__(self) -> None:
        self._kql = _engine()
        self._connection = self._kql.connect()
        for name, columns in tables().items():
            declared = ", ".join(f'"{column}" {TYPES[kind]}' for column, kind in columns.items())
            self._connection.execute(f'CREATE TABLE "{name}" ({declared})')

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def ingest(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Ingest messages through mapping, update policy, and view, as Event Hubs and Data Explorer would: bodies,
        parsed.

        A message may have the system property `x-opt-enqueued-time` in addition to the members of its body.
        """
        policy = update_policy()
        columns = tables()[policy["Source"]]
        rows = [
            [_stored(at_path(message, one["Properties"]["Path"]), columns[one["column"]]) for one in mapping()]
            for message in messages
        ]
        names = ", ".join(f'"{one["column"]}"' for one in mapping())
        raw = policy["Source"]
        self._connection.execute(f'DELETE FROM "{raw}"')  # noqa: S608  # a name of the project's own file
        marks = ", ".join("?" for _ in mapping())
        self._connection.executemany(f'INSERT INTO "{raw}" ({names}) VALUES ({marks})', rows)  # noqa: S608  # as above
        self._kql.query(self._connection, policy["Query"]).create("new_rows")
        self._connection.execute('INSERT INTO "ScheduledEventsTyped" SELECT * FROM new_rows')
        self._connection.execute("DROP TABLE new_rows")
        for name, query in views().items():
            self._connection.execute(f'DROP TABLE IF EXISTS "{name}"')
            self._kql.query(self._connection, query).create(name)

    def query(self, text: str, *, now: datetime | None = None) -> list[dict[str, Any]]:
        """Return the rows of a query, by columns; a dynamic value is as parsed from JSON. `now` is the result of
        now()."""
        found = self._kql.query(self._connection, text, query_now=now)
        dynamic = [str(kind) == "JSON" for kind in found.types]
        return [
            {
                name: json.loads(value) if is_json and value is not None else value
                for name, value, is_json in zip(found.columns, row, dynamic, strict=True)
            }
            for row in found.fetchall()
        ]


def _stored(value: Any, kind: str) -> Any:
    """Return a value as DuckDB accepts it for a column of this Kusto type."""
    return json.dumps(value) if kind == "dynamic" and value is not None else value
