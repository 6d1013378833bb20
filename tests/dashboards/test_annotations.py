"""Add the annotations to another dashboard."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.dashboards_environment import ROOT, load
from tests.support.documentation import blocks
from tests.support.peers import need

MARKS: Final = "snippets/annotations"


@pytest.mark.linux("a shell")
@pytest.mark.peer("jq")
def test_jq_puts_the_marks_into_a_dashboard(tmp_path: Path) -> None:
    """The command of the page adds them to the annotations of a dashboard, and changes nothing else."""
    need("jq")
    (command,) = [block.text for block in blocks(ROOT / "dashboards" / "README.md") if "jq " in block.text]
    mine = load("vm")
    (tmp_path / "mine.json").write_text(json.dumps(mine), encoding="utf-8")
    (tmp_path / "dashboards").symlink_to(ROOT / "dashboards")
    subprocess.run(["sh", "-e", "-c", command], cwd=tmp_path, check=True)
    marked = json.loads((tmp_path / "marked.json").read_text(encoding="utf-8"))
    mine["annotations"]["list"] += load(MARKS)["annotations"]["list"]
    assert marked == mine
