"""The dashboards as drawn by Grafana's pipeline and components, in Node and in a browser.

The tests need npm packages and Chromium, so they run only with DASHBOARDS_DRAWN=1, after `make grafana`. With
DASHBOARDS_PICTURES=FOLDER they also write pictures.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.dashboards_drawn import Answers, bundled, draw, drawn_text, panel_contents
from tests.support.dashboards_environment import ROOT, DashboardsEnvironment, load, panels
from tests.support.dashboards_scenarios import LIVES

pytestmark = [
    pytest.mark.skipif(os.environ.get("DASHBOARDS_DRAWN") != "1", reason="needs many npm packages: make test-all"),
    pytest.mark.peer("chromium"),
]

FLEETS: Final = ("fleet", "quiet", "stale", "warming", "started", "wrong", "closed")
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
        ("quiet", "Nothing scheduled", "–", GREEN),
        ("scheduled", "Scheduled", "00:", ORANGE),
        ("started", "Started", "–", RED),
        ("stale", "Unknown", "–", PURPLE),
        ("stale-scheduled", "Unknown; last: scheduled", "00:0", PURPLE),
        ("warming", "Not known yet", "–", BLUE),
        ("down", "Unknown: no data", "–", PURPLE),
    ],
)
def test_state_and_countdown_have_text_and_colour(
    show: Show, scenario: str, state: str, starts_in: str, colour: str
) -> None:
    """Texts and colours match the scenario: green appears only if the VM has current data.

    The countdown has the colour of the state and doesn't repeat its words.
    """
    (shown,) = show.panel("vm", scenario, "State")
    assert (shown["text"], shown["color"]) == (state, colour)
    (countdown,) = show.panel("vm", scenario, "Starts in")
    assert countdown["text"].startswith(starts_in)
    assert starts_in != "–" or countdown["color"] == colour


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


def test_an_event_of_the_range_is_one_row_with_a_link_to_its_time(show: Show) -> None:
    """Five queries become one row per event and VM. The link selects the VM, from an hour before to an hour after."""
    rows = show.table("fleet", "closed", "Events in this range")
    assert [list(row.values())[1:] for row in rows] == [
        ["closed-1", "Reboot", "Platform", "15.0 mins", "–", "–", "–", "canceled"],
        [
            "closed-1",
            "Freeze",
            "Platform",
            "15.0 mins",
            "this VM",
            "short-freeze",
            "4.20 s",
            "completed",
        ],
    ]
    assert [row["Began"][:18] for row in rows] == ["2024-03-06 11:53:2", "2024-03-06 11:50:0"]
    for row, (url,) in zip(rows, show.panel("fleet", "closed", "Events in this range")["links"], strict=True):
        began = datetime.fromisoformat(row["Began"]).replace(tzinfo=UTC).timestamp()
        link = parse_qs(urlsplit(url).query)
        assert (link["var-job"], link["var-instance"]) == (["closed"], ["closed-1:10169"])
        hours = [(float(link[end][0]) / 1000 - began) / 3600 for end in ("from", "to")]
        assert hours == pytest.approx([-1, 1], abs=0.001)
    (none,) = show.table("fleet", "quiet", "Events in this range")
    assert (none["VM"], none["Outcome"]) == ("none", "–")


def test_the_most_urgent_event_is_in_the_first_row(show: Show) -> None:
    """A reboot that is due in ten minutes is before the freezes that have started; nothing is sorted in the browser."""
    rows = show.table("fleet", "fleet", "VMs with an event")
    assert (rows[0]["Type"], rows[0]["Status"]) == ("Reboot", "Scheduled")
    statuses = [(row["Type"], row["Status"]) for row in show.table("fleet", "wrong", "VMs with an event")]
    assert statuses[0] == ("Preempt", "Started")
    assert statuses[-1] == ("Freeze", "Scheduled")


@pytest.mark.parametrize("scenario", ["fleet", "wrong", "closed", "quiet"])
def test_no_text_of_a_table_is_cut(show: Show, tmp_path: Path, scenario: str) -> None:
    """In a window of 1,400 pixels: headings and cells of the fleet board."""
    page = drawn_text(show.bundles, load("fleet"), show.answers["fleet"][scenario], "light", tmp_path)
    found = re.search(r'data-cut="([^"]*)"', page)
    assert found is not None
    cut = sorted(set(json.loads(unescape(found[1]))))
    assert not cut, cut


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
