"""The README's generated parts are current, and what it names exists."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

from exporter.cli import main
from exporter.config.load import settings_table
from exporter.core.policy import Reason
from exporter.core.records import KINDS
from exporter.sinks.prometheus.catalogue import metrics_table

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def replayed() -> str:
    """What `replay` prints of the documented live migration, as the README shows it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["replay", "live-migration", "--vm-name", "WestNO_0"]) == 0
    return f"```text\n{out.getvalue().rstrip()}\n```"


PARTS = {"settings": settings_table, "metrics": metrics_table, "replay": replayed}


def between(text: str, part: str) -> re.Match[str]:
    found = re.search(rf"(<!-- {part}[^>]*-->\n)(.*?)(<!-- /{part} -->)", text, re.DOTALL)
    assert found, f"the README has no place for {part}"
    return found


@pytest.mark.parametrize("part", PARTS)
def test_a_generated_part_of_the_readme_is_current(part: str) -> None:
    """The README shows what the definitions say now (`make readme` writes it)."""
    made = PARTS[part]().rstrip() + "\n"
    text = README.read_text(encoding="utf-8")
    if os.environ.get("UPDATE_README"):
        found = between(text, part)
        text = text[: found.start(2)] + made + text[found.end(2) :]
        README.write_text(text, encoding="utf-8")
    assert between(text, part)[2] == made


def test_every_reason_and_kind_is_explained() -> None:
    """The README names every hold reason and every kind of record."""
    text = README.read_text(encoding="utf-8")
    for reason in Reason:
        assert not reason or f"`{reason.value}`" in text
    for kind in KINDS:
        assert f"`{kind}`" in text or f"`.{kind.partition('.')[2]}`" in text


def test_every_link_into_the_repository_leads_somewhere() -> None:
    """Relative links and pictures of the README exist, and so do its own sections."""
    text = README.read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("http"):
            continue
        if target.startswith("#"):
            assert target[1:] in headings, target
        else:
            assert (ROOT / target.partition("#")[0]).exists(), target
