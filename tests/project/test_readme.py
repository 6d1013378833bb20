"""The README: short, with the two commands first, and each of them works as described."""

from __future__ import annotations

import re
import subprocess
from typing import Final

import pytest

from tests.support.documentation import ROOT, blocks, name_of, prose

pytestmark = pytest.mark.linux("checks a page of the checkout, and runs its commands")

README: Final = ROOT / "README.md"
LINES: Final = 100
"""Two screens."""
SCREEN: Final = 36
"""The first of them."""


def test_the_readme_fits_on_two_screens() -> None:
    """Longer texts belong in docs/."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= LINES


def test_the_two_commands_come_first() -> None:
    """Cloning the repository is the only step before `make demo` and `make test`."""
    first = next(block for block in blocks(README) if block.language == "sh")
    assert [line.split("#")[0].split() for line in first.text.splitlines()] == [["make", "demo"], ["make", "test"]]
    before = README.read_text(encoding="utf-8").split("```")[0]
    assert not re.search(r"`[a-z-]+ [^`]*`", before)


def test_the_first_screen_answers_the_first_questions() -> None:
    """What it is, that it sends nothing by default, its cost, its maturity, and where to install one VM or a fleet."""
    screen = " ".join(" ".join(README.read_text(encoding="utf-8").splitlines()[:SCREEN]).split())
    for answer in (
        "approves events early",
        "**It sends nothing by default**",
        "% of a core",
        "Beta:",
        "[Install](#install)",
    ):
        assert answer in screen
    assert "[run a fleet](docs/fleet.md)" in screen


def test_nothing_is_released_yet_comes_before_the_installation_table() -> None:
    """With the command that works today."""
    install = README.read_text(encoding="utf-8").partition("## Install")[2]
    before = install.partition("| Platform |")[0]
    assert "**Nothing is released yet.**" in before
    assert "make -C deploy deb" in before


def test_output_of_the_demo_fits_its_width() -> None:
    """100 columns, as all human-readable output."""
    printed = next(block for block in blocks(README) if block.language == "text")
    assert [line for line in printed.text.splitlines() if len(line) > 100] == []


def made(target: str) -> str:
    """Return the commands that `make TARGET` would run."""
    command = ["make", "--dry-run", "--always-make", "-C", str(ROOT), target]
    return subprocess.run(command, text=True, capture_output=True, check=True, timeout=60).stdout


def test_both_commands_run_what_the_readme_states() -> None:
    """`make demo` sets up its environment and runs the demo (tests/system/test_demo.py runs all of it).

    `make test` runs the linters, the type checks, and all tests.
    """
    demo = made("demo")
    assert ".ci/venv" in demo
    assert "-m exporter demo" in demo
    test = made("test")
    assert all(tool in test for tool in ("ruff check", "ruff format --check", "mypy", ".ci/peers", "-m pytest"))
    assert "--ignore" not in test


def test_the_readme_leads_to_every_page_of_the_docs() -> None:
    """Each page can be found from the README."""
    text = prose(README)
    missing = {name_of(page) for page in (ROOT / "docs").rglob("*.md") if f"({name_of(page)}" not in text}
    assert missing == set()
