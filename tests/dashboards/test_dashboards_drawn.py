"""The dashboards as drawn by Grafana's pipeline and components, in Node and in a browser.

The tests need npm packages and Chromium, so they run only with DASHBOARDS_DRAWN=1, after `make grafana`. With
DASHBOARDS_PICTURES=FOLDER they also write pictures.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from tests.support.dashboards_drawn import Answers, bundled, draw, drawn_text, panel_contents
from tests.support.dashboards_environment import ROOT, DashboardsEnvironment, load, panels
from tests.support.dashboards_scenarios import LIVES

pytestmark = [
    pytest.mark.skipif(os.environ.get("DASHBOARDS_DRAWN") != "1", reason="needs many npm packages: make test-all"),
    pytest.mark.peer("chromium"),
]

FLEETS: Final = ("fleet", "quiet", "stale", "warming", "started")
GREEN, ORANGE, RED, PURPLE, BLUE = "#73BF69", "#FF9830", "#F2495C", "#B877D9", "#5794F2"
"""Grafana's palette in the dark theme."""


@dataclass(frozen=True, slots=True)
class Show:
    """Everything that Grafana needs to show the scenarios, and the output of its pipeline."""

    bundles: Path
    answers: dict[str, dict[str, Answers]]
    contents: dict[str, dict[str, dict[str, Any]]]

    def panel(self, dashboard: str, scenario: str, title: str) -> Any:
        """Return the content of the panel with this title in a scenario."""
        (number,) = (panel["id"] for panel in panels(load(dashboard)) if panel["title"] == title)
        return self.contents[dashboard][scenario][str(number)]

    def table(self, dashboard: str, scenario: str, title: str) -> list[dict[str, str]]:
        """Return the rows of a table, by heading."""
        contents = self.panel(dashboard, scenario, title)
        return [dict(zip(contents["columns"], row, strict=True)) for row in contents["rows"]]


@pytest.fixture(scope="module")
def show(lived: DashboardsEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Show:
    """All scenarios, bundled and queried once for every test here."""
    folder = tmp_path_factory.mktemp("drawn")
    bundles = bundled(tmp_path_factory.mktemp("bundles"))
    answers = {
        "vm": {scenario: lived.answers("vm", scenario) for scenario in LIVES},
        "fleet": {scenario: lived.answers("fleet", scenario) for scenario in FLEETS},
    }
    contents = {
        name: panel_contents(bundles, ROOT / "dashboards" / f"{name}.json", answers[name], folder) for name in answers
    }
    return Show(bundles, answers, contents)


@pytest.mark.parametrize(
    ("scenario", "state", "starts_in", "colour"),
    [
        ("quiet", "Nothing scheduled", "Nothing scheduled", GREEN),
        ("scheduled", "Scheduled", "00:", ORANGE),
        ("started", "Started", "Started", RED),
        ("stale", "Unknown", "Unknown", PURPLE),
        ("stale-scheduled", "Unknown; last: scheduled", "00:0", PURPLE),
        ("warming", "Not known yet", "Not known yet", BLUE),
        ("down", "Unknown: no data", "Unknown: no data", PURPLE),
    ],
)
def test_state_and_countdown_have_text_and_colour(
    show: Show, scenario: str, state: str, starts_in: str, colour: str
) -> None:
    """Texts and colours match the scenario: green appears only if the VM has current data."""
    (shown,) = show.panel("vm", scenario, "State")
    assert (shown["text"], shown["color"]) == (state, colour)
    (countdown,) = show.panel("vm", scenario, "Starts in")
    assert countdown["text"].startswith(starts_in)


def test_one_event_is_one_row(show: Show) -> None:
    """Eight queries become one row per event: started events first, then by time of start."""
    rows = show.table("vm", "scheduled", "Events")
    assert [(row["Type"], row["Status"], row["VMs"], row["Announced"]) for row in rows] == [
        ("Reboot", "Scheduled", "2", "–"),
        ("Freeze", "Scheduled", "1", "5 s"),
    ]
    statuses = [row["Status"] for row in show.table("vm", "wrong", "Events")]
    assert statuses == sorted(statuses, key=["Started", "Scheduled"].index)


@pytest.mark.parametrize(
    ("scenario", "word"), [("quiet", "nothing scheduled"), ("stale", "unknown"), ("warming", "not known yet")]
)
def test_a_table_without_events_shows_the_reason(show: Show, scenario: str, word: str) -> None:
    """One row with the matching text, instead of an empty table."""
    (row,) = show.table("vm", scenario, "Events")
    assert row["Type"] == word


def test_old_events_are_marked_as_old(show: Show) -> None:
    """The last known event of an exporter without current data is still shown, with an additional row "unknown"."""
    assert [row["Type"] for row in show.table("vm", "stale-scheduled", "Events")] == ["Reboot", "unknown"]


def test_the_timeline_has_a_lane_for_the_vm_and_one_for_each_event(show: Show) -> None:
    """A status change is a colour in the lane of its event, not another lane."""
    lanes = show.panel("vm", "started", "Events over time")
    assert [(lane["name"].split()[0], lane["last"]) for lane in lanes] == [
        ("web_2:10169", "Started"),
        ("Freeze", "Started"),
        ("Freeze", "Started"),
    ]


def test_destinations_are_one_row_each(show: Show) -> None:
    """Six queries become one row per destination; a missing value is a dash, not a sentence."""
    rows = {row["Destination"]: row for row in show.table("vm", "wrong", "Destinations")}
    assert rows["event_hubs"]["Oldest"] == "–"
    assert rows["otlp"]["Oldest"].endswith("mins")
    assert rows["otlp"]["Rejected"] == "1"


def test_the_fleet_at_a_glance(show: Show) -> None:
    """Numbers have their colours, tables are merged, and a VM without a scale set is marked."""
    shown = {title: show.panel("fleet", "fleet", title)[0] for title in ("VMs in maintenance", "Stale or down")}
    assert {title: (one["text"], one["color"]) for title, one in shown.items()} == {
        "VMs in maintenance": ("50", RED),
        "Stale or down": ("12", RED),
    }
    rows = show.table("fleet", "fleet", "Scheduled events, by scale set and type")
    assert [(row["Scale set"], row["Type"], row["VMs"], row["Events"]) for row in rows] == [
        ("set-3", "Reboot", "100", "20"),
        ("no scale set", "Terminate", "1", "1"),
    ]
    unseen = show.table("fleet", "fleet", "VMs without current data")
    assert sorted({row["Data"] for row in unseen}) == ["down", "not known yet", "stale"]
    assert len(unseen) == 15


@pytest.mark.parametrize("scenario", ["stale", "warming"])
def test_a_fleet_without_current_data_is_not_green(show: Show, scenario: str) -> None:
    """A missing count isn't 0."""
    for title in ("VMs in maintenance", "VMs scheduled", "Next start in"):
        (shown,) = show.panel("fleet", scenario, title)
        assert (shown["text"], shown["color"]) == ("Unknown: no exporter has current data", PURPLE)


PICTURES: Final[list[tuple[str, str, Literal["light", "dark"], str]]] = [
    ("vm", "quiet", "light", "Nothing scheduled"),
    ("vm", "scheduled", "dark", "Scheduled"),
    ("vm", "started", "light", "Started"),
    ("vm", "stale", "dark", "Unknown"),
    ("fleet", "fleet", "light", "set-3"),
]


@pytest.mark.parametrize("picture", PICTURES, ids="-".join)
def test_grafana_draws_every_panel(
    show: Show, tmp_path: Path, picture: tuple[str, str, Literal["light", "dark"], str]
) -> None:
    """Grafana's components draw every panel without an error, and the texts are on the page."""
    dashboard, scenario, mode, word = picture
    document, answers = load(dashboard), show.answers[dashboard][scenario]
    page = drawn_text(show.bundles, document, answers, mode, tmp_path)
    assert "<title>drawn</title>" in page
    body = page[: page.index("<script>")]
    assert word in body
    for panel in panels(document):
        assert panel["title"].replace("&", "&amp;") in body


@pytest.mark.skipif("DASHBOARDS_PICTURES" not in os.environ, reason="for looking at: DASHBOARDS_PICTURES=FOLDER")
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_pictures_are_written(show: Show, mode: Literal["light", "dark"]) -> None:
    """Write a picture of every scenario in this theme."""
    folder = Path(os.environ["DASHBOARDS_PICTURES"])
    folder.mkdir(parents=True, exist_ok=True)
    for dashboard, scenarios in show.answers.items():
        for scenario, answers in scenarios.items():
            picture = folder.resolve() / f"{dashboard}-{scenario}-{mode}.png"
            draw(show.bundles, load(dashboard), answers, mode, picture)
            assert picture.stat().st_size > 20_000
            picture.with_suffix(".html").unlink()
