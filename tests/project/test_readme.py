"""The README: short, its two commands first, and each of them does what it says."""

from __future__ import annotations

import re
import subprocess
from typing import Final

import pytest

from tests.support.documentation import ROOT, blocks, name_of, prose

pytestmark = pytest.mark.linux("judges a page of the checkout, and runs its commands")

README: Final = ROOT / "README.md"
LINES: Final = 100
"""Two screens."""
SCREEN: Final = 36
"""The first of them."""


def test_the_readme_fits_on_two_screens() -> None:
    """Whatever is longer belongs into docs/."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= LINES


def test_the_two_commands_come_first() -> None:
    """Nothing is to be done before `make demo` and `make test` but to clone the repository."""
    first = next(block for block in blocks(README) if block.language == "sh")
    assert [line.split("#")[0].split() for line in first.text.splitlines()] == [["make", "demo"], ["make", "test"]]
    before = README.read_text(encoding="utf-8").split("```")[0]
    assert not re.search(r"`[a-z-]+ [^`]*`", before)


def test_the_first_screen_answers_the_first_questions() -> None:
    """What it is, that it sends nothing by default, how it is installed, what it costs, and where a fleet reads on."""
    screen = "\n".join(README.read_text(encoding="utf-8").splitlines()[:SCREEN])
    for answer in ("approves events only under", "**It sends nothing by default.**", "**Install**", "% of a core"):
        assert answer in screen
    assert "[3,000 VMs](docs/fleet.md)" in screen


def test_what_the_demo_prints_is_wrapped_as_it_prints_it() -> None:
    """At 100 columns, as every output for people."""
    printed = next(block for block in blocks(README) if block.language == "text")
    assert [line for line in printed.text.splitlines() if len(line) > 100] == []


def made(target: str) -> str:
    """What `make TARGET` would run."""
    command = ["make", "--dry-run", "--always-make", "-C", str(ROOT), target]
    return subprocess.run(command, text=True, capture_output=True, check=True, timeout=60).stdout


def test_the_two_commands_do_what_the_readme_says() -> None:
    """`make demo` sets itself up and runs the demo (tests/system/test_demo.py runs it to its end); `make test` runs the
    linters, the types and all tests."""
    demo = made("demo")
    assert ".ci/venv" in demo
    assert "-m exporter demo" in demo
    test = made("test")
    assert all(tool in test for tool in ("ruff check", "ruff format --check", "mypy", ".ci/peers", "-m pytest"))
    assert "--ignore" not in test


def test_the_readme_leads_to_every_page_of_the_docs() -> None:
    """A reader who begins at the README finds each page."""
    text = prose(README)
    missing = {name_of(page) for page in (ROOT / "docs").rglob("*.md") if f"({name_of(page)}" not in text}
    assert missing == set()
