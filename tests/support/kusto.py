"""The KQL of deploy/consumers/adx: read, checked by Kusto's language service, and run by DuckDB.

The language service is Microsoft's own, under Node (tests/node/kql.mjs). What runs the queries is duckdb-kql, which
translates KQL to SQL and refuses what it can't; it is no Kusto. The ingestion of messages, which is no query, is done
here as the mapping says.
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
"""The month that the queries of a test are about: its first instant, and the first one after it."""

ENQUEUED: Final = "x-opt-enqueued-time"
"""The system property under which a data connection gives the time at which Event Hubs took a message."""

TYPES: Final = {
    "string": "VARCHAR",
    "datetime": "TIMESTAMP",
    "long": "BIGINT",
    "real": "DOUBLE",
    "bool": "BOOLEAN",
    "dynamic": "JSON",
}
"""Kusto's types and DuckDB's, as duckdb-kql has them."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What the language service says of commands and queries, as tests/node/kql.mjs describes it."""

    commands: Sequence[Mapping[str, Any]]
    problems: Sequence[Mapping[str, Any]]
    entities: Mapping[str, Mapping[str, Any]]
    results: Mapping[str, Sequence[tuple[str, str]] | None]
    paths: Sequence[Mapping[str, Any]]


def texts() -> dict[str, str]:
    """The files with commands, by name, in their order."""
    return {name: (ADX / name).read_text(encoding="utf-8") for name in COMMANDS}


def checked(files: Mapping[str, str], queries: Mapping[str, str]) -> Checked:
    """What the language service says of these commands, one file after the other, and of queries after them."""
    asked = {
        "files": [{"name": name, "text": text} for name, text in files.items()],
        "queries": [{"name": name, "text": text} for name, text in queries.items()],
    }
    return Checked(**json.loads(run_node(FOLDER / "kql.mjs", given=json.dumps(asked), seconds=300)))


def panels() -> dict[str, str]:
    """The queries of the dashboard by their titles, as they are pasted."""
    found = re.findall(r"^// panel: (.*)\n((?:.+\n)+)", PANELS.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(found)


def for_grafana(query: str, begin: str = SPAN[0], end: str = SPAN[1]) -> str:
    """A query with the macros of Grafana's Azure Data Explorer data source replaced, as its editor's help says."""
    query = re.sub(r"\$__timeFilter\((\w+)\)", rf"\1 >= {begin} and \1 <= {end}", query)
    return query.replace("$__timeFrom", begin).replace("$__timeTo", end)


def for_data_explorer(query: str) -> str:
    """A query as the dashboard's file says for a dashboard of Azure Data Explorer, with its parameters declared."""
    query = re.sub(r"\$__timeFilter\((\w+)\)", r"\1 between (_startTime .. _endTime)", query)
    query = query.replace("$__timeFrom", "_startTime").replace("$__timeTo", "_endTime")
    return f"let _startTime = {SPAN[0]};\nlet _endTime = {SPAN[1]};\n{query}"


def commands(verb: str) -> dict[str, str]:
    """The commands of the files that begin with these words, by the name of what they make, in their order."""
    pieces = (piece.strip() for text in texts().values() for piece in text.split("\n\n"))
    found = (piece for piece in pieces if piece.startswith(verb))
    return {_named(piece.removeprefix(verb)): piece for piece in found}


def _named(rest: str) -> str:
    """The name behind a command's verb and its `with (…)`."""
    name = re.match(r"\s*(?:with\s*\([^)]*\)\s*)?(\w+)", rest)
    assert name is not None, rest
    return name[1]


def tables() -> dict[str, dict[str, str]]:
    """The columns of each table: their types of Kusto's by their names, in their order."""
    found = commands(".create-merge table")
    return {name: dict(re.findall(r"^    (\w+): (\w+)", text, re.MULTILINE)) for name, text in found.items()}


def views() -> dict[str, str]:
    """The query of each materialized view."""
    return {
        name: text[text.index("{") + 1 : -1] for name, text in commands(".create-or-alter materialized-view").items()
    }


def mapping() -> list[dict[str, Any]]:
    """The JSON ingestion mapping of the raw table: columns with their paths."""
    (found,) = re.findall(r'ingestion json mapping "\w+"\n```\n(.*?)\n```', texts()["1-tables.kql"], re.DOTALL)
    mapped: list[dict[str, Any]] = json.loads(found)
    return mapped


def update_policy() -> dict[str, Any]:
    """The one update policy."""
    (found,) = re.findall(r"policy update\n```\n(.*?)\n```", texts()["2-ingestion.kql"], re.DOTALL)
    (policy,) = json.loads(found)
    assert isinstance(policy, dict)
    return policy


def at_path(message: Mapping[str, Any], path: str) -> Any:
    """What a path of a JSON mapping, `$` or `$.a.b`, takes out of a message; None where there is nothing."""
    found: Any = message
    for part in path.split(".")[1:]:
        found = found.get(part) if isinstance(found, dict) else None
    return found


@lru_cache(1)
def _engine() -> ModuleType:
    """duckdb-kql, which knows the functions of the files: it reads them once."""
    if find_spec("duckdb_kql") is None or find_spec("duckdb") is None:
        lacking("duckdb-kql is not installed here: pip install -e .[test]")
    import duckdb_kql

    duckdb_kql.set_functions(list(commands(".create-or-alter function").values()))
    return duckdb_kql


class Database:
    """A database with the tables, functions and the view of the files, run by duckdb-kql: `query` asks it in KQL."""

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
        """Messages through mapping, update policy and view, as Event Hubs and Data Explorer would: bodies, parsed.

        A message may have the system property `x-opt-enqueued-time` beside the members of its body.
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
        """The rows of a query, by columns; a dynamic value is as parsed from JSON. `now` is what now() says."""
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
    """A value as DuckDB takes it for a column of this type of Kusto's."""
    return json.dumps(value) if kind == "dynamic" and value is not None else value
