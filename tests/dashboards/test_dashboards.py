"""The dashboard files: generated from code, importable, complete in every panel, with queries of existing metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dashboards.queries import CHOICES, TAGS
from tests.support.dashboards_environment import ROOT, load, panels
from tests.support.dashboards_families import labels_of, metric_names

NAMES: Final = ("vm", "fleet")
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
RECORDED: Final = {
    rule["record"]
    for group in yaml.safe_load((ROOT / "alerts" / "rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "record" in rule
}
TARGET_LABELS: Final = {"job", "instance", *TAGS}
"""Labels of a series in addition to those of its family: those of its target, and on vm_info the configured tags."""
RECORDED_LABELS: Final = {
    *TARGET_LABELS,
    *CHOICES.values(),
    *("vm_name", "event_id", "event_type", "event_status", "started_by", "rule", "outcome", "data_state"),
}


def _queries(document: dict[str, Any]) -> Iterator[str]:
    for panel in panels(document):
        yield from (target["expr"] for target in panel["targets"])
    yield from (annotation["expr"] for annotation in document["annotations"]["list"])
    yield from (
        variable["query"]["query"] for variable in document["templating"]["list"] if variable["type"] == "query"
    )


def _selections(query: str) -> Iterator[tuple[str, str]]:
    """Yield every metric of a query, with its selector."""
    yield from re.findall(r"((?:\w+:)?azure_scheduled_events_\w+(?::\w+)?)(?:\{([^}]*)\})?", query)


# The SDK calls its own builders of the classic model deprecated; the classic model is what all of Grafana imports.
@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_the_committed_file_is_current(name: str) -> None:
    """Building the JSON again returns the same bytes."""
    from dashboards.build import BOARDS, rendered

    made = rendered(BOARDS[f"{name}.json"])
    assert made == (ROOT / "dashboards" / f"{name}.json").read_text(encoding="utf-8"), "make generate"


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_can_be_imported_by_hand_by_file_and_by_the_api(name: str) -> None:
    """No id, the classic model, no __inputs, and one data source variable, which everything uses."""
    document = load(name)
    assert document["id"] is None
    assert document["schemaVersion"] == 39
    assert document["uid"] == f"azure-scheduled-events-{name}"
    assert "__inputs" not in document
    sources = [variable for variable in document["templating"]["list"] if variable["type"] == "datasource"]
    assert [(source["name"], source["query"]) for source in sources] == [("datasource", "prometheus")]
    for part in [*panels(document), *document["annotations"]["list"]]:
        assert part["datasource"] == SOURCE
    for target in (target for panel in panels(document) for target in panel["targets"]):
        assert target["datasource"] == SOURCE


@pytest.mark.parametrize("name", NAMES)
def test_variables_narrow_each_other(name: str) -> None:
    """Each accepts several values, is narrowed by those before it, and is updated when the time range changes; "All",
    the default, includes VMs without the label."""
    variables = {variable["name"]: variable for variable in load(name)["templating"]["list"]}
    chosen = ["subscription", "location", "scale_set", "tag_owner", "tag_environment"]
    assert list(variables) == ["datasource", "job", *chosen, *(["instance"] if name == "vm" else [])]
    del variables["datasource"]
    before: list[str] = []
    for variable in variables.values():
        assert (variable["multi"], variable["refresh"]) == (True, 2)
        assert variable["label"] == variable["name"].replace("_", " ")
        for earlier in before:
            assert f'=~"${earlier}"' in variable["query"]["query"]
        before.append(variable["name"])
    instance = variables.pop("instance", {"includeAll": False})
    assert instance["includeAll"] is False
    assert "allValue" not in instance
    for variable in variables.values():
        assert variable["includeAll"] is True
        assert variable["current"]["value"] == ["$__all"]
        assert variable["allValue"] == (".+" if variable["name"] == "job" else ".*")


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_is_described(name: str) -> None:
    """Title, description, unit, thresholds, and a no-data text; no two panels share a title or an id."""
    drawn = panels(load(name))
    assert len({panel["title"] for panel in drawn}) == len({panel["id"] for panel in drawn}) == len(drawn)
    for panel in drawn:
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"], panel
        assert panel["description"].endswith("."), panel["title"]
        assert defaults["unit"], panel["title"]
        assert defaults["noValue"], panel["title"]
        assert defaults["thresholds"]["steps"], panel["title"]
        assert panel["targets"], panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_the_grid_is_full_and_nothing_overlaps(name: str) -> None:
    """Every row of panels fills the 24 columns, and no cell is used twice."""
    taken: dict[tuple[int, int], str] = {}
    for panel in load(name)["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        for cell in (
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        ):
            assert cell not in taken, f"{panel['title']} lies on {taken[cell]}"
            taken[cell] = panel["title"]
    assert len(taken) == 24 * (1 + max(y for _, y in taken))


@pytest.mark.parametrize("name", NAMES)
def test_every_query_selects_vms_and_existing_metrics(name: str) -> None:
    """Each metric is in the catalogue or recorded by the rules, and has the labels of its selector."""
    for query in _queries(load(name)):
        for metric, selector in _selections(query):
            recorded = ":" in metric
            assert metric in (RECORDED if recorded else metric_names()), metric
            labels = set(re.findall(r"(\w+)\s*=?[=~!]", selector))
            assert labels <= (RECORDED_LABELS if recorded else labels_of(metric) | TARGET_LABELS), (metric, labels)
            if "label_values" not in query:
                assert 'job=~"$job"' in selector, query
                assert ('instance=~"$instance"' in selector) is (name == "vm"), query


@pytest.mark.parametrize("name", NAMES)
def test_queries_use_only_the_increase_of_counters(name: str) -> None:
    """The value of a counter is meaningless; the window is Grafana's, not a fixed one."""
    for query in _queries(load(name)):
        for counter in re.findall(r"azure_scheduled_events_\w+_total\{[^}]*\}", query):
            assert re.search(r"(rate|increase)\(" + re.escape(counter) + r"\[\$__(rate_interval|range)\]", query), query


def test_the_dashboards_link_to_each_other() -> None:
    """Each link keeps the time range and the variables that both boards have."""
    for name, other in (("vm", "fleet"), ("fleet", "vm")):
        (link,) = load(name)["links"]
        path, carried = link["url"].split("?")
        assert path == f"/d/azure-scheduled-events-{other}"
        shared = {variable["name"] for variable in load("fleet")["templating"]["list"]}
        assert shared <= {variable["name"] for variable in load("vm")["templating"]["list"]}
        assert {part.removeprefix("${").removesuffix(":queryparam}") for part in carried.split("&")} == shared
        assert link["keepTime"] is True


def test_a_vm_in_a_table_links_to_its_dashboard() -> None:
    """The link uses instance and job from fields of its table, and keeps the other variables."""
    linked = 0
    for panel in panels(load("fleet")):
        headings = {
            heading
            for transformation in panel.get("transformations", [])
            for heading in transformation["options"].get("renameByName", {}).values()
        }
        for override in panel["fieldConfig"]["overrides"]:
            for url in (
                link["url"] for part in override["properties"] if part["id"] == "links" for link in part["value"]
            ):
                linked += 1
                assert url.startswith("/d/azure-scheduled-events-vm?")
                assert all(f"${{{name}:queryparam}}" in url for name in CHOICES)
                assert url.count("job") == 1
                assert set(re.findall(r"__data\.fields\.(\w+)", url)) <= headings
    assert linked == 4


def test_the_dashboards_are_small_enough_to_read() -> None:
    """The generated files stay well below the size limit of Grafana's API."""
    for path in Path(ROOT / "dashboards").glob("*.json"):
        assert path.stat().st_size < 200_000, path.name
