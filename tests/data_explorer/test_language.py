"""The commands and queries, checked by Kusto's own language service against the tables that the commands create."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

import pytest

from exporter.core.document import FIELDS
from tests.support import kusto
from tests.support.kusto import SPAN, Checked, checked

pytestmark = [pytest.mark.linux("the Node of the tests"), pytest.mark.peer("node")]

SCHEMA: Final[Mapping[str, Any]] = json.loads(
    files("exporter").joinpath("schema", "record.v1.json").read_text(encoding="utf-8")
)
IDEMPOTENT: Final = (".create-merge ", ".create-or-alter ", ".alter ", ".alter-merge ")
"""Commands that may be run again; an ARM template's script accepts these as well."""

ROOTS: Final = {"Record": (), "Data": ("data",), "Tags": ("data", "vm", "tags")}
"""Where in a record the dynamic columns begin that members are extracted from."""

AZURE: Final = {"Resources": "array", "DurationInSeconds": "integer"}
"""Types of the fields of Azure's object that aren't strings."""

FITTING: Final = {
    "tostring": {"string"},
    "todatetime": {"date-time"},
    "toreal": {"number", "integer"},
    "tolong": {"integer"},
    "tobool": {"boolean"},
    "todynamic": {"array", "object"},
}
"""Types that each conversion accepts, in addition to null."""


def calls() -> dict[str, str]:
    """A query for each function, by its name."""
    named = kusto.commands(".create-or-alter function")
    dated = {name: f"{name}({SPAN[0]}, {SPAN[1]})" for name, text in named.items() if "Begin: datetime" in text}
    return (
        {name: f"{name}()" for name in named} | {"ScheduledEventsAgents": f"ScheduledEventsAgents({SPAN[1]})"} | dated
    )


def blocks_of_the_page() -> list[str]:
    """The blocks of KQL in docs/data-explorer.md."""
    page = (kusto.ADX.parents[2] / "docs" / "data-explorer.md").read_text(encoding="utf-8")
    blocks = [
        textwrap.dedent(block) for block in re.findall(r"^ *```kusto\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    ]
    assert len(blocks) > 2
    return blocks


@lru_cache(1)
def found() -> Checked:
    """Return the files, a call of each function, each panel in both forms, and the page's examples."""
    queries = calls()
    queries |= {f"page: {text}": text for text in blocks_of_the_page()}
    for title, query in kusto.panels().items():
        queries[f"grafana: {title}"] = kusto.for_grafana(query)
        queries[f"data explorer: {title}"] = kusto.for_data_explorer(query)
    return checked(kusto.texts(), queries)


def test_the_language_service_finds_no_error() -> None:
    """No error, no warning, and no unknown name: in the commands, functions, panels, and on the page."""
    assert found().problems == []


def test_the_language_service_finds_mistakes() -> None:
    """A wrong column, function, type, conversion, or keyword is reported at its place, in each kind of command."""
    wrong = kusto.texts()
    mistakes = (
        ("1-tables.kql", "Location: string", "Location: text"),
        ("2-ingestion.kql", 'tostring(Record["type"]) startswith', 'tostring(Recrod["type"]) startswith'),
        ("2-ingestion.kql", "by Source, Id\n", "by Sorce, Id\n"),
        ("3-functions.kql", "coalesce(ClosedBefore, OpenedBefore)", "coalesce(ClosedBefore, OpendBefore)"),
        ("3-functions.kql", "    let Seen = ScheduledEventsByVm(", "    let Seen = ScheduledEventsByMv("),
        ("3-functions.kql", "let Ids = Summaries | distinct EventId", "let Ids = Summaries | distnct EventId"),
    )
    for name, right, spoilt in mistakes:
        assert wrong[name].count(right) == 1, right
        wrong[name] = wrong[name].replace(right, spoilt)
    recorded = checked(
        wrong, {"a panel": "ScheduledEventsRecords | where Tme > ago(1d) | summarize percentil(Time, 50)"}
    )
    for name, _, spoilt in mistakes:
        lines = [number for number, line in enumerate(wrong[name].splitlines(), 1) if spoilt.strip() in line]
        assert {(problem["where"], problem["line"]) for problem in recorded.problems} >= {(name, lines[0])}, spoilt
    assert {problem["at"] for problem in recorded.problems if problem["where"] == "a panel"} >= {"Tme", "percentil"}


def test_every_command_can_be_run_again() -> None:
    """The first words of each permit it, and each is one command: none is split in two."""
    assert len(found().commands) > 20
    for command in found().commands:
        assert command["text"].startswith(IDEMPOTENT), command
        assert re.match(r"(Create|Alter)", command["kind"]), command


def test_the_update_policy_gives_the_rows_of_its_table() -> None:
    """Its function returns the columns of the typed table, in their order and with their types, as Kusto requires."""
    policy = kusto.update_policy()
    ((table, _),) = re.findall(r"\.alter table (\w+) policy (update)", kusto.texts()["2-ingestion.kql"])
    assert policy["Query"] == "ScheduledEventsRead()"
    assert policy["Source"] in kusto.commands(".create-or-alter function")["ScheduledEventsRead"]
    assert found().results["ScheduledEventsRead"] == found().entities[table]["columns"]


def test_the_tests_read_the_files_as_kusto_does() -> None:
    """Tables, functions and views are those that the language service knows, with the same columns."""
    tables = {name: [list(column) for column in columns.items()] for name, columns in kusto.tables().items()}
    known = found().entities
    assert {name: one["columns"] for name, one in known.items() if one["kind"] == "table"} == tables
    assert [name for name, one in known.items() if one["kind"] == "view"] == list(kusto.views())
    assert {name for name, one in known.items() if one["kind"] == "function"} == set(calls())


def test_the_mapping_names_columns_and_members_that_exist() -> None:
    """Each column of the raw table is filled once; each path is a member of a record, all of it, or a property."""
    assert [one["column"] for one in kusto.mapping()] == list(kusto.tables()[kusto.update_policy()["Source"]])
    for one in kusto.mapping():
        (path,) = one["Properties"].values()
        _, *names = path.split(".")
        assert names == [kusto.ENQUEUED] or not names or member(tuple(names)), path


def test_every_path_is_a_member_of_a_record() -> None:
    """Every member that is extracted by name exists in the schema, and its conversion fits its type."""
    paths = found().paths
    assert {path["root"] for path in paths} == set(ROOTS)
    assert len({(path["root"], *path["path"]) for path in paths}) > 40
    for path in paths:
        assert fault(path["root"], tuple(path["path"]), path["converted"]) is None, path


def test_wrong_paths_are_found() -> None:
    """A member that no record has, one below a text, one without a conversion, and a conversion that does not fit."""
    assert fault("Data", ("summary", "gone_at"), "todatetime") is None
    assert fault("Record", ("data", "event", "EventType"), "tostring") is None
    for root, path, conversion in (
        ("Data", ("acount", "gone_at"), "todatetime"),
        ("Data", ("summary", "gone"), "todatetime"),
        ("Record", ("data", "message", "text"), "tostring"),
        ("Record", ("data", "event", "EventTyp"), "tostring"),
        ("Record", ("data", "vm", "vmss"), "tostring"),
        ("Data", ("summary", "gone_at"), None),
        ("Data", ("summary", "gone_at"), "toreal"),
        ("Data", ("summary", "notice_seconds"), "tolong"),
    ):
        assert fault(root, path, conversion) is not None, path


def fault(root: str, path: tuple[str, ...], conversion: str | None) -> str | None:
    """Return the fault of extracting this member from a column and converting it; None if there is none."""
    kinds = member((*ROOTS[root], *path))
    if not kinds:
        return "no record has it"
    if conversion not in FITTING:
        return "it stays dynamic"
    return None if kinds - {"null"} <= FITTING[conversion] else f"it is {kinds}"


def member(path: tuple[str, ...]) -> set[str]:
    """Return the types that a member of a record may have, `date-time` for a time; empty if the schema lacks it."""
    if path[:2] == ("data", "event") and len(path) == 3:
        return {AZURE.get(path[2], "string")} if path[2] in FIELDS else set()
    if path[:3] == ROOTS["Tags"] and len(path) == 4:
        return types(SCHEMA["$defs"]["vm"]["properties"]["tags"]["additionalProperties"])
    here = resolved(SCHEMA)
    for name in path:
        here = resolved(here.get("properties", {}).get(name, {}))
    return types(here)


def resolved(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part of the schema, or the part it refers to."""
    reference = part.get("$ref")
    return part if reference is None else SCHEMA["$defs"][reference.removeprefix("#/$defs/")]


def types(part: Mapping[str, Any]) -> set[str]:
    """Return the types of a part of the schema."""
    if "anyOf" in part:
        return {kind for one in part["anyOf"] for kind in types(one)}
    words = part.get("enum", [part["const"]] if "const" in part else None)
    if words is not None:
        return {"null" if word is None else "string" for word in words}
    given = part.get("type", [])
    kinds = {given} if isinstance(given, str) else set(given)
    return (kinds - {"string"}) | {"date-time"} if part.get("format") == "date-time" else kinds
