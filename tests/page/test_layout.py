"""The layout of the landing page in a real browser: narrow and wide, light and dark, whatever Azure sends."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from html import escape, unescape
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from exporter.core.document import folded
from exporter.core.snapshot import EventFilesStatus, Gate, GateReason, Status
from exporter.core.state import InterruptionTotals
from exporter.page.status import status_value
from exporter.page.view import render_page
from tests.support import statuses
from tests.support.peers import need
from tests.support.statuses import FREEZE, NOON, EventScenario

WIDTHS: Final = (400, 1200)
SCHEMES: Final = {"dark": 0, "light": 1}
"""As Blink counts them."""
DASHBOARD: Final = "https://grafana.example/d/vm?var-instance={resource_group}/{vm_name}"
MEASURE: Final = (Path(__file__).parent / "measure.js").read_text(encoding="utf-8")


def _long_names() -> EventScenario:
    """Return a scenario of fifty events with the longest possible names, one of them Started."""
    scenario = EventScenario()
    scenario.read()
    types = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")
    events = [
        {
            **FREEZE,
            "EventId": f"{place:02}" + "W" * 98,
            "EventType": types[place % len(types)],
            "Resources": ["W" * 64] * 8,
            "Description": "W" * 700,
        }
        for place in range(50)
    ]
    scenario.read(*events)
    scenario.read(statuses.started(events[0]), *events[1:])
    return scenario


def _observed() -> EventScenario:
    """Return a scenario with a reboot, and a freeze that lasts longer than announced."""
    scenario = statuses.started_scenario()
    key = folded(FREEZE["EventId"])
    observed = replace(scenario.state.tracked[key], interruptions=InterruptionTotals(3, 9.25, 8.9))
    scenario.state = replace(scenario.state, tracked={**scenario.state.tracked, key: observed})
    return scenario


def _full(scenario: EventScenario) -> Status:
    return scenario.status(destinations=statuses.outputs(scenario.now))


def _named_at_length(scenario: EventScenario) -> Status:
    name = "W" * 64
    vm = replace(statuses.VM, name=name, resource_group="W" * 90, vmss_name=name, node=name)
    return replace(scenario.status(vm=vm), event_files=EventFilesStatus("/" + "w" * 250, "can't be written"))


PAGES: Final[dict[str, Callable[[], tuple[EventScenario, Status]]]] = {
    "none": lambda: (scenario := statuses.empty_scenario(), _full(scenario)),
    "two events": lambda: (scenario := statuses.scheduled_scenario(), _full(scenario)),
    "interrupted": lambda: (scenario := _observed(), _full(scenario)),
    "closed": lambda: (scenario := statuses.closed_scenario(), _full(scenario)),
    "unknown": lambda: (scenario := statuses.scheduled_scenario(), statuses.failing_status(scenario)),
    "fifty events with long names": lambda: (scenario := _long_names(), _named_at_length(scenario)),
}


def _page(name: str) -> bytes:
    scenario, status = PAGES[name]()
    gate = Gate(GateReason.STARTED, "Reboot", NOON)
    return render_page(status_value(status, scenario.instant, "1.2.3", gate=gate, dashboard_url=DASHBOARD))


def _frames(pages: dict[str, bytes]) -> str:
    """Return a page that measures every page in a frame of every width."""
    frames = "".join(
        f'<iframe name="{escape(name)}|{width}" srcdoc="{escape(page.decode())}" width="{width}" height="900"></iframe>'
        for name, page in pages.items()
        for width in WIDTHS
    )
    style = "<style>iframe { border: 0; color-scheme: light dark; }</style>"
    return f"<!doctype html><meta charset=utf-8>{style}{frames}<script>{MEASURE}</script>"


def _measured(scheme: str, folder: Path) -> Iterator[tuple[str, int, dict[str, Any]]]:
    page = folder / "frames.html"
    page.write_text(_frames({name: _page(name) for name in PAGES}), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    options += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
    options += [f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"]
    command = [need("chromium"), *options, "--dump-dom", page.as_uri()]
    document = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.search(r"<title>(.*?)</title>", document, re.DOTALL)
    assert found, "the pages were not measured"
    for frame, measured in json.loads(unescape(found[1])).items():
        name, _, width = frame.partition("|")
        yield name, int(width), measured


@pytest.mark.peer("chromium")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_page_fits_and_is_legible(scheme: str, tmp_path: Path) -> None:
    """At 400 and 1200 px: no horizontal scrolling, no overlapping text, and a contrast of 4.5 to 1 (WCAG 2.2)."""
    seen = set()
    for name, width, measured in _measured(scheme, tmp_path):
        seen.add((name, width))
        where = f"{name}, {width} px, {scheme}"
        assert measured["scheme"] == scheme
        assert measured["texts"] > 20, where
        assert measured["width"] == width, where
        assert measured["scrollWidth"] <= width, where
        assert measured["outside"] == [], where
        assert measured["overlapping"] == [], where
        assert measured["faint"] == [], where
    assert seen == {(name, width) for name in PAGES for width in WIDTHS}
