"""What import-linter (`make lint`, `.importlinter`) can't check: purity by calls, and the modules that an import
loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import exporter

pytestmark = pytest.mark.linux("judges the sources, with the same result on every system")

ROOT: Final = Path(exporter.__file__).parent
CORE: Final = sorted((ROOT / "core").glob("*.py"))
PURE: Final = frozenset(
    {"__future__", "collections", "dataclasses", "datetime", "enum", "functools", "hashlib", "json", "math", "re"}
    | {"string", "types", "typing", "urllib", "uuid", "operator", "msgspec", "exporter"}
)
"""Modules that the core may import: none of the standard library that has an effect."""
EFFECTS: Final = frozenset(
    {"now", "utcnow", "today", "time", "monotonic", "open", "print", "input", "uuid1", "uuid4", "random"}
)
HEAVY: Final = (
    "azure",
    "aiohttp",
    "google.protobuf",
    "opentelemetry",
    "requests",
    "jinja2",
    "yaml",
    "bcrypt",
    "exporter.simulator",
    "exporter.commands",
)
"""Modules that `run` imports only once they are configured or used, or never."""


def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imported(path: Path) -> set[str]:
    """Return the top-level names of all that a module imports."""
    found = set[str]()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            found.add(str(node.module).split(".")[0])
    return found


def test_the_core_has_modules() -> None:
    """The tests below have modules to check."""
    assert {"cycle.py", "lifecycle.py", "decision.py"} <= {path.name for path in CORE}


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_the_core_is_pure(path: Path) -> None:
    """No clock, I/O, logging, or threads, neither in imports nor in calls."""
    assert imported(path) <= PURE
    called = {
        getattr(node.func, "attr", getattr(node.func, "id", "")) for node in nodes(path) if isinstance(node, ast.Call)
    }
    assert called & EFFECTS == set()


def test_only_the_persistence_assigns_state() -> None:
    """The other modules of the agent's package pass their results to it."""
    for path in (ROOT / "agent").glob("*.py"):
        targets = [
            target
            for node in nodes(path)
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        ]
        assigned = {target.attr for target in targets if isinstance(target, ast.Attribute)}
        assert "state" not in assigned or path.name == "persistence.py", path


@pytest.mark.parametrize("module", ["exporter.agent.app", "exporter.cli"])
def test_run_imports_no_more_than_it_needs(module: str) -> None:
    """A destination's library is imported with its configuration, the page's with the first page, the simulator
    never."""
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, timeout=60, check=True
    )
    assert process.stdout.strip() == "[]"


ANY_SUPPRESSION: Final = re.compile(r"# (noqa|type: ignore)\b")
SUPPRESSION: Final = re.compile(r"# (noqa: [A-Z0-9, ]*[A-Z0-9]|type: ignore\[[a-z, -]+\])")


def test_every_suppression_names_its_code_and_its_reason() -> None:
    """In the agent, its tests, and its tools, a comment with the reason follows the codes."""
    checkout = ROOT.parent
    files = [path for name in ("exporter", "tests", "benchmarks", "deploy") for path in (checkout / name).rglob("*.py")]
    assert len(files) > 400
    without = []
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if found := ANY_SUPPRESSION.search(line):
                rest = SUPPRESSION.sub("", line[found.start() :])
                if ANY_SUPPRESSION.search(rest) or not re.search(r"# \S", rest):
                    without.append(f"{path.relative_to(checkout)}:{number}")
    assert without == []
