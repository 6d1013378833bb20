"""Marks of events for dashboards that are not ours: what they ask for, and how they get into one."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.dashboards_world import ROOT, World, filled, load
from tests.support.documentation import blocks
from tests.support.peers import need

FILE: Final = "snippets/annotations"


def _mark(name: str) -> dict[str, Any]:
    (mark,) = [mark for mark in load(FILE)["annotations"]["list"] if mark["name"] == name]
    return dict(mark)


def _regions(lived: World, mark: dict[str, Any], job: str) -> list[tuple[str, float, float]]:
    """What Grafana draws: a text, and from when to when in seconds before the end. It joins samples that are not
    further apart than the step of the query."""
    step = int(mark["step"].removesuffix("s"))
    expression = (
        re.sub(r"(:\w+)(\{|\))", rf'\1{{job="{job}",\2', mark["expr"], count=1).replace(",{", ",").replace(",)", "})")
    )
    drawn: list[tuple[str, float, float]] = []
    for series in lived.over(filled(expression, job, 21600), 21600, step):
        text = re.sub(r"\{\{(\w+)\}\}", "{\\1}", mark["textFormat"]).format(**series["metric"])
        times = [float(at) - lived.end for at, value in series["values"] if float(value) > 0]
        first = last = times[0]
        for at in [*times[1:], float("inf")]:
            if at - last > step:
                drawn.append((text, first, last))
                first = at
            last = at
    return drawn


@pytest.mark.peer("prometheus")
def test_an_event_is_a_region_from_its_start_to_its_end(lived: World) -> None:
    """With type and VM as its text; one region for each event, also where several VMs have one at a time."""
    regions = _regions(lived, _mark("Azure: under way"), "fleet")
    assert {text for text, _, _ in regions} == {f"Freeze of set-4_{number}" for number in range(401, 500, 2)}
    for _, start, stop in regions:
        assert start == pytest.approx(-600, abs=301)
        assert stop >= -60


@pytest.mark.peer("prometheus")
def test_an_end_has_its_outcome(lived: World) -> None:
    """Six in six hours, each a mark of at most the five minutes that a recorded sample stands for."""
    regions = _regions(lived, _mark("Azure: over"), "fleet")
    assert len(regions) == 6
    assert {text.split()[-1] for text, _, _ in regions} == {"completed"}
    assert all(stop - start <= 300 for _, start, stop in regions)


@pytest.mark.peer("prometheus")
def test_what_is_scheduled_is_drawn_only_when_somebody_asks(lived: World) -> None:
    """It is there and off."""
    mark = _mark("Azure: scheduled")
    assert mark["enable"] is False
    assert any(text.startswith("Reboot of set-3_") for text, _, _ in _regions(lived, mark, "fleet"))


@pytest.mark.linux("a shell")
@pytest.mark.peer("jq")
def test_jq_puts_the_marks_into_a_dashboard(tmp_path: Path) -> None:
    """The page's command adds them to those that the dashboard has, and changes nothing else."""
    need("jq")
    (command,) = [block.text for block in blocks(ROOT / "dashboards" / "README.md") if "jq " in block.text]
    mine = load("vm")
    (tmp_path / "mine.json").write_text(json.dumps(mine), encoding="utf-8")
    (tmp_path / "dashboards").symlink_to(ROOT / "dashboards")
    subprocess.run(["sh", "-e", "-c", command], cwd=tmp_path, check=True)
    marked = json.loads((tmp_path / "marked.json").read_text(encoding="utf-8"))
    mine["annotations"]["list"] += load(FILE)["annotations"]["list"]
    assert marked == mine
