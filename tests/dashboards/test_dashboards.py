"""The dashboards as files: made from code, importable anywhere, complete in every panel, and fed by what exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dashboards.queries import CHOICES, TAGS
from tests.support.dashboards_families import labels_of, metric_names
from tests.support.dashboards_world import ROOT, load, panels

NAMES: Final = ("vm", "fleet")
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
RECORDED: Final = {
    rule["record"]
    for group in yaml.safe_load((ROOT / "alerts" / "rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "record" in rule
}
TARGET_LABELS: Final = {"job", "instance", *TAGS}
"""What a series may have beside the labels of its family: its target's, and on vm_info the tags that are configured."""
RECORDED_LABELS: Final = {
    *TARGET_LABELS,
    *CHOICES.values(),
    *("vm_name", "event_id", "event_type", "event_status", "started_by", "outcome", "sight"),
}


def _queries(document: dict[str, Any]) -> Iterator[str]:
    for panel in panels(document):
        yield from (target["expr"] for target in panel["targets"])
    yield from (annotation["expr"] for annotation in document["annotations"]["list"])
    yield from (
        variable["query"]["query"] for variable in document["templating"]["list"] if variable["type"] == "query"
    )


def _selections(query: str) -> Iterator[tuple[str, str]]:
    """Every metric that a query names, with its selector."""
    yield from re.findall(r"((?:\w+:)?azure_scheduled_events_\w+(?::\w+)?)(?:\{([^}]*)\})?", query)


# The SDK calls its own builders of the classic model deprecated; the classic model is what all of Grafana imports.
@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_the_committed_file_is_what_the_code_makes(name: str) -> None:
    """Nobody edits the JSON by hand: building it again gives the same bytes."""
    from dashboards.build import BOARDS, rendered

    made = rendered(BOARDS[f"{name}.json"])
    assert made == (ROOT / "dashboards" / f"{name}.json").read_text(encoding="utf-8"), "make generate"


@pytest.mark.parametrize("name", NAMES)
def test_it_imports_by_hand_by_file_and_by_the_api(name: str) -> None:
    """No id, the classic model, no __inputs, and one data source variable that everything refers to."""
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
def test_what_vms_are_chosen_by(name: str) -> None:
    """Each takes several values, is narrowed by those before it and asked for again when the time range changes; "All",
    where a board begins, is also a VM that has no such label."""
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
def test_every_panel_says_what_it_is(name: str) -> None:
    """Title, description, unit, thresholds and a text for no data; and no two panels share a title or an id."""
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
    """Every line of panels fills the 24 columns, and no cell is taken twice."""
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
def test_every_query_is_about_the_chosen_vms_and_about_what_exists(name: str) -> None:
    """Each metric is in the catalogue or recorded by the rules, each label is one that it has."""
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
def test_counters_are_only_asked_for_their_growth(name: str) -> None:
    """A counter's own value says nothing; its window is Grafana's, never a number of ours."""
    for query in _queries(load(name)):
        for counter in re.findall(r"azure_scheduled_events_\w+_total\{[^}]*\}", query):
            assert re.search(r"(rate|increase)\(" + re.escape(counter) + r"\[\$__(rate_interval|range)\]", query), query


def test_the_dashboards_lead_to_each_other() -> None:
    """Each has a link to the other one that keeps the time range and all that the other one is chosen by, too."""
    for name, other in (("vm", "fleet"), ("fleet", "vm")):
        (link,) = load(name)["links"]
        path, carried = link["url"].split("?")
        assert path == f"/d/azure-scheduled-events-{other}"
        shared = {variable["name"] for variable in load("fleet")["templating"]["list"]}
        assert shared <= {variable["name"] for variable in load("vm")["templating"]["list"]}
        assert {part.removeprefix("${").removesuffix(":queryparam}") for part in carried.split("&")} == shared
        assert link["keepTime"] is True


def test_a_vm_in_a_table_leads_to_its_dashboard() -> None:
    """The link takes instance and job from fields that its table really has, under the names that they have there, and
    carries the rest of what is chosen."""
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
    assert linked == 3


def test_the_dashboards_are_small_enough_to_read() -> None:
    """A file of the code stays readable; the generated ones stay well under what Grafana's API takes."""
    for path in Path(ROOT / "dashboards").glob("*.json"):
        assert path.stat().st_size < 200_000, path.name
