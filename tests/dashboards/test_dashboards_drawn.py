"""What a person reads: the dashboards through Grafana's own pipeline and components, in Node and in a browser.

Needs npm's packages and Chromium, so it runs where DASHBOARDS_DRAWN=1 says that tests/grafana has them. With
DASHBOARDS_PICTURES=FOLDER the pictures are kept there, for looking at.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from tests.support.dashboards_drawn import Answers, bundled, draw, drawn_text, panel_contents
from tests.support.dashboards_stories import LIVES
from tests.support.dashboards_world import ROOT, World, load, panels

pytestmark = [
    pytest.mark.skipif(os.environ.get("DASHBOARDS_DRAWN") != "1", reason="needs many npm packages: make test-all"),
    pytest.mark.peer("chromium"),
]

FLEETS: Final = ("fleet", "calm", "stale", "warming", "started")
GREEN, ORANGE, RED, PURPLE, BLUE = "#73BF69", "#FF9830", "#F2495C", "#B877D9", "#5794F2"
"""Grafana's palette in the dark theme."""


@dataclass(frozen=True, slots=True)
class Show:
    """Everything that Grafana needs to show the stories, and what its pipeline said about them."""

    bundles: Path
    answers: dict[str, dict[str, Answers]]
    contents: dict[str, dict[str, dict[str, Any]]]

    def panel(self, dashboard: str, story: str, title: str) -> Any:
        """What the panel with this title says in a story."""
        (number,) = (panel["id"] for panel in panels(load(dashboard)) if panel["title"] == title)
        return self.contents[dashboard][story][str(number)]

    def table(self, dashboard: str, story: str, title: str) -> list[dict[str, str]]:
        """The rows of a table, by heading."""
        contents = self.panel(dashboard, story, title)
        return [dict(zip(contents["columns"], row, strict=True)) for row in contents["rows"]]


@pytest.fixture(scope="module")
def show(lived: World, tmp_path_factory: pytest.TempPathFactory) -> Show:
    """All stories, bundled and asked once for every test here."""
    folder = tmp_path_factory.mktemp("drawn")
    bundles = bundled(tmp_path_factory.mktemp("bundles"))
    answers = {
        "vm": {story: lived.answers("vm", story) for story in LIVES},
        "fleet": {story: lived.answers("fleet", story) for story in FLEETS},
    }
    contents = {
        name: panel_contents(bundles, ROOT / "dashboards" / f"{name}.json", answers[name], folder) for name in answers
    }
    return Show(bundles, answers, contents)


@pytest.mark.parametrize(
    ("story", "state", "starts_in", "colour"),
    [
        ("calm", "Nothing scheduled", "Nothing scheduled", GREEN),
        ("scheduled", "Scheduled", "00:", ORANGE),
        ("started", "Started", "Started", RED),
        ("stale", "Unknown", "Unknown", PURPLE),
        ("stale-scheduled", "Unknown; last: scheduled", "00:0", PURPLE),
        ("warming", "Not known yet", "Not known yet", BLUE),
        ("down", "Unknown: no data", "Unknown: no data", PURPLE),
    ],
)
def test_the_first_glance(show: Show, story: str, state: str, starts_in: str, colour: str) -> None:
    """The big words and their colour are those of the story: green is only ever said of a VM that is seen."""
    (shown,) = show.panel("vm", story, "State")
    assert (shown["text"], shown["color"]) == (state, colour)
    (countdown,) = show.panel("vm", story, "Starts in")
    assert countdown["text"].startswith(starts_in)


def test_one_event_is_one_row(show: Show) -> None:
    """Eight queries become one row per event, what is under way first, then what starts soonest."""
    rows = show.table("vm", "scheduled", "Events")
    assert [(row["Type"], row["Status"], row["VMs"], row["Announced"]) for row in rows] == [
        ("Reboot", "Scheduled", "2", "–"),
        ("Freeze", "Scheduled", "1", "5 s"),
    ]
    statuses = [row["Status"] for row in show.table("vm", "wrong", "Events")]
    assert statuses == sorted(statuses, key=["Started", "Scheduled"].index)


@pytest.mark.parametrize(
    ("story", "word"), [("calm", "nothing scheduled"), ("stale", "unknown"), ("warming", "not known yet")]
)
def test_a_table_without_events_says_why(show: Show, story: str, word: str) -> None:
    """One row, with the word that fits, in place of an empty table."""
    (row,) = show.table("vm", story, "Events")
    assert row["Type"] == word


def test_old_events_are_marked_as_old(show: Show) -> None:
    """The last known event of a blind exporter stays on show, with a row that says that nothing is known."""
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
    """Six queries become one row per destination; what is not there is a dash, not a sentence."""
    rows = {row["Destination"]: row for row in show.table("vm", "wrong", "Destinations")}
    assert rows["event_hubs"]["Oldest"] == "–"
    assert rows["otlp"]["Oldest"].endswith("mins")
    assert rows["otlp"]["Rejected"] == "1"


def test_the_fleet_at_a_glance(show: Show) -> None:
    """Numbers with the colours that they deserve, tables merged, a VM without a scale set named as such."""
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


@pytest.mark.parametrize("story", ["stale", "warming"])
def test_a_fleet_that_nobody_sees_is_not_green(show: Show, story: str) -> None:
    """What can't be counted is not 0."""
    for title in ("VMs in maintenance", "VMs scheduled", "Next start in"):
        (shown,) = show.panel("fleet", story, title)
        assert (shown["text"], shown["color"]) == ("Unknown: no exporter has current data", PURPLE)


PICTURES: Final[list[tuple[str, str, Literal["light", "dark"], str]]] = [
    ("vm", "calm", "light", "Nothing scheduled"),
    ("vm", "scheduled", "dark", "Scheduled"),
    ("vm", "started", "light", "Started"),
    ("vm", "stale", "dark", "Unknown"),
    ("fleet", "fleet", "light", "set-3"),
]


@pytest.mark.parametrize("picture", PICTURES, ids="-".join)
def test_grafana_draws_it(show: Show, tmp_path: Path, picture: tuple[str, str, Literal["light", "dark"], str]) -> None:
    """Grafana's components draw every panel without an error, and the words are on the page."""
    dashboard, story, mode, word = picture
    document, answers = load(dashboard), show.answers[dashboard][story]
    page = drawn_text(show.bundles, document, answers, mode, tmp_path)
    assert "<title>drawn</title>" in page
    body = page[: page.index("<script>")]
    assert word in body
    for panel in panels(document):
        assert panel["title"].replace("&", "&amp;") in body


@pytest.mark.skipif("DASHBOARDS_PICTURES" not in os.environ, reason="for looking at: DASHBOARDS_PICTURES=FOLDER")
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_pictures_to_look_at(show: Show, mode: Literal["light", "dark"]) -> None:
    """A picture of every story in this theme."""
    folder = Path(os.environ["DASHBOARDS_PICTURES"])
    folder.mkdir(parents=True, exist_ok=True)
    for dashboard, stories in show.answers.items():
        for story, answers in stories.items():
            picture = folder.resolve() / f"{dashboard}-{story}-{mode}.png"
            draw(show.bundles, load(dashboard), answers, mode, picture)
            assert picture.stat().st_size > 20_000
            picture.with_suffix(".html").unlink()
