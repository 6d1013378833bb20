"""What fires in each story, through the real rules and a real Alertmanager: what must fire, and what docs/alerts.md
shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pytest

from benchmarks.stories import PAGE, PART, Router, firings, problems, table, timeline
from tests.support.alerts_claims import untrue
from tests.support.alerts_scenarios import STORIES, Story
from tests.support.documentation import generated_part


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with Router(tmp_path_factory.mktemp("alertmanager")) as started:
        yield started


@pytest.mark.peer("alertmanager")
@pytest.mark.parametrize("story", STORIES, ids=lambda story: str(story.title))
def test_a_story_raises_the_alerts_that_the_page_shows(story: Story, router: Router) -> None:
    """The alerts that must fire do, no text is untrue, and the page is current (`make bench WHAT=stories`)."""
    found = firings(timeline(story), router)
    assert not (wrong := problems(story, found)), "\n".join(wrong)
    shown = generated_part(PAGE, PART)[2]
    assert shown.partition(f"### {story.title}\n")[2].partition("\n### ")[0] == table(story, found).partition("\n")[2]


def test_the_page_shows_each_story() -> None:
    """The sections of the page are the stories, in their order."""
    titles = re.findall(r"^### (.*)$", generated_part(PAGE, PART)[2], re.MULTILINE)
    assert titles == [story.title for story in STORIES]


WAVE: Final = {"alertname": "AzureScheduledEventsMaintenanceWave", "scope": "scale set", "vmss_name": "web"}
REBOOTS: Final = {**WAVE, "event_type": "Reboot", "tag_owner": "shop"}
OF_DB1: Final = {"instance": "db1:10169", "event_id": "R1", "reason": "status-400"}


@pytest.mark.parametrize(
    ("title", "labels", "minute", "text", "wrong"),
    [
        ("Two waves", REBOOTS, 1, "5 VMs: web_0, web_1, web_2, web_3, web_4.", ""),
        ("Two waves", REBOOTS, 1, "6 VMs: web_0, web_1, web_2, web_3, web_4.", "'6 VMs', but it is ['5']"),
        ("Two waves", REBOOTS, 1, "5 VMs: web_0, web_1 and 2 more.", "2 names and 2 more, but it is 5 VMs"),
        ("Two waves", REBOOTS, 1, "web_0, web_1, web_2, web_3, web_5.", "web_5, which no such event names"),
        ("Agent stops", OF_DB1, 6, "a Reboot, NotBefore 1970-01-01 00:35:00 +0000 UTC", ""),
        ("Agent stops", OF_DB1, 6, "at 1970-01-01 00:35:00 +0000 UTC", "1970-01-01 00:35:00 +0000 UTC, which no claim"),
        ("Agent stops", OF_DB1, 6, "It can start in 8m 0s.", "'can start in 8m 0s', but it is ['9m 0s']"),
        ("Agent stops", OF_DB1, 6, "See api_0.", "api_0, but it is about db1"),
        ("Approval refused", OF_DB1, 2, "4 approval requests failed", "'4 approval requests', but it is ['3']"),
    ],
)
def test_an_untrue_text_is_found(title: str, labels: dict[str, str], minute: int, text: str, wrong: str) -> None:
    """Counts, names, and times in a text are compared with the story."""
    story = next(story for story in STORIES if story.title.startswith(title))
    found = list(untrue(story, story.samples(), {"alertname": "", **labels}, minute, text))
    assert len(found) == bool(wrong)
    assert "".join(found).startswith(wrong)
