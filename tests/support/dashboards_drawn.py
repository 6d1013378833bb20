"""Pictures of the dashboards: Grafana's components in a headless browser, with the responses of Prometheus."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

from tests.support.node import node_binary
from tests.support.peers import need

GRAFANA: Final = Path(__file__).parents[1] / "grafana"
QUIET: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
)
CELL, ROW, GAP = 57, 34, 8
"""The values of page.tsx: pixels of a column, of a row, and between panels."""

WIDTH: Final = 1400
"""Pixels of the window. Grafana has margins of 16 pixels."""

Mode = Literal["light", "dark"]
Answers = dict[str, list[dict[str, Any]]]


def bundled(folder: Path) -> Path:
    """Build the bundles in `folder` with the npm packages of tests/grafana (`npm ci`), and return it."""
    subprocess.run([node_binary(), "build.mjs", str(folder)], cwd=GRAFANA, check=True, timeout=120)
    return folder


def panel_contents(
    bundles: Path, dashboard: Path, answers: dict[str, Answers], folder: Path
) -> dict[str, dict[str, Any]]:
    """Return the content of each panel by scenario and panel id, as Grafana's pipeline formats it."""
    file = folder / f"{dashboard.stem}.answers.json"
    file.write_text(json.dumps(answers), encoding="utf-8")
    command = [node_binary(), str(bundles / "content.cjs"), str(dashboard), str(file)]
    done = subprocess.run(command, text=True, capture_output=True, check=True, timeout=120)
    contents: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return contents


def draw(bundles: Path, document: dict[str, Any], answers: Answers, mode: Mode, picture: Path) -> None:
    """Write a PNG of the whole dashboard."""
    _browse(_page(bundles, document, answers, mode, picture), document, f"--screenshot={picture}")


def drawn_text(bundles: Path, document: dict[str, Any], answers: Answers, mode: Mode, folder: Path) -> str:
    """Return the page that Grafana's components have drawn, as HTML."""
    page = _page(bundles, document, answers, mode, folder / "drawn.png")
    return _browse(page, document, "--dump-dom")


def _page(bundles: Path, document: dict[str, Any], answers: Answers, mode: Mode, picture: Path) -> Path:
    spans = [(query["from"], query["to"]) for queries in answers.values() for query in queries]
    span = [min(start for start, _ in spans) * 1000, max(stop for _, stop in spans) * 1000]
    variables = {"DASHBOARD": document, "ANSWERS": answers, "MODE": mode, "SPAN": span}
    script = ";".join(f"var {name}={json.dumps(value)}" for name, value in variables.items()).replace("</", "<\\/")
    page = picture.with_suffix(".html")
    page.write_text(
        f"<!doctype html><meta charset=utf-8><link rel=stylesheet href={bundles / 'page.css'}>"
        f"<div id=root></div><script>{script}</script><script src={bundles / 'page.js'}></script>",
        encoding="utf-8",
    )
    return page


def _browse(page: Path, document: dict[str, Any], out: str) -> str:
    with tempfile.TemporaryDirectory() as profile:
        size = f"--window-size={WIDTH},{_height(document['panels'])}"
        options = [f"--user-data-dir={profile}", size, "--virtual-time-budget=8000", out]
        command = [need("chromium"), *QUIET, *options, page.as_uri()]
        zone = {**os.environ, "TZ": "UTC"}
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=zone).stdout


def _height(panels: Iterable[dict[str, Any]]) -> int:
    return max(int(panel["gridPos"]["y"] + panel["gridPos"]["h"]) for panel in panels) * ROW + 2 * GAP
