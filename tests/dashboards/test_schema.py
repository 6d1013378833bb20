"""The dashboards match Grafana's types of the oldest supported version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from dashboards import LEAST, SCHEMA
from tests.support.dashboards_environment import ROOT, load
from tests.support.node import FOLDER, run_node

pytestmark = [pytest.mark.linux("the Node of the tests"), pytest.mark.peer("node")]

FILES: Final = ("vm", "fleet", "snippets/annotations")


def _unknown(boards: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(run_node(FOLDER / "grafana.mjs", given=json.dumps(boards)))
    return found


def test_the_types_are_of_the_oldest_supported_grafana() -> None:
    """The locked types have the version that code and README name."""
    packages = json.loads((FOLDER / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert packages["node_modules/@grafana/schema"]["version"].startswith(f"{LEAST}.")
    assert f"Grafana {LEAST}" in Path(ROOT / "dashboards" / "README.md").read_text(encoding="utf-8")
    assert load("vm")["schemaVersion"] == SCHEMA


def test_every_field_is_known_to_the_oldest_grafana() -> None:
    """It knows every field of dashboards, panels, queries, variables, links, and annotations."""
    boards = {name.replace("/", "-"): load(name) for name in FILES}
    assert _unknown(boards) == {name: [] for name in boards}


LATER: Final[dict[str, tuple[tuple[str | int, ...], Any]]] = {
    "link": (("links", 0, "placement"), "inControlsMenu"),
    "variable": (("templating", "list", 1, "allowCustomValue"), True),
    "stat": (("panels", 1, "options", "percentChangeColorMode"), "standard"),
    "word": (("panels", 1, "options", "colorMode"), "rainbow"),
    "panel": (("panels", 1, "subtitle"), "new"),
    "field": (("panels", 1, "fieldConfig", "defaults", "fieldMinMax"), 1),
    "query": (("panels", 1, "targets", 0, "fromExploreMetrics"), True),
    "annotation": (("annotations", "list", 0, "mappings"), {}),
    "override": (("panels", 9, "fieldConfig", "overrides", 0, "properties", 0), {"id": "custom.wrapText", "value": 1}),
}


def test_a_later_field_is_found() -> None:
    """At any level, and also a later value of a known field."""
    boards = {}
    for name, (path, value) in LATER.items():
        board: Any = load("fleet")
        part = board
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = value
        boards[name] = board
    assert {name: len(found) for name, found in _unknown(boards).items()} == dict.fromkeys(LATER, 1)
