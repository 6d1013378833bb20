"""Who may import whom, read from the source: the rooms of the house and the arrows between them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

import exporter

ROOT: Final = Path(exporter.__file__).parent

CORE: Final[Mapping[str, frozenset[str]]] = {
    "folding": frozenset(),
    "events_json": frozenset(),
    "events_time": frozenset(),
    "events": frozenset({"events_json", "events_time", "folding"}),
    "lifecycle_state": frozenset({"events"}),
    "lifecycle_sight": frozenset({"events", "lifecycle_state"}),
    "lifecycle_memory": frozenset({"lifecycle_state"}),
    "lifecycle_changes": frozenset({"events", "folding", "lifecycle_state"}),
    "lifecycle": frozenset({"events", "lifecycle_changes", "lifecycle_memory", "lifecycle_state"})
    | {"lifecycle_sight"},
    "lifecycle_told": frozenset({"lifecycle_changes", "lifecycle_state", "lifecycle_sight"}),
    "approval_policy": frozenset({"events"}),
    "approval_attempts": frozenset({"lifecycle"}),
    "approval_rules": frozenset({"approval_policy", "events", "folding", "lifecycle"}),
    "approval": frozenset({"approval_policy", "approval_rules", "events", "lifecycle"}),
    "records": frozenset({"events_json", "lifecycle"}),
    "records_words": frozenset({"approval", "events", "lifecycle", "records"}),
    "records_account": frozenset({"events", "lifecycle", "records"}),
    "records_writer": frozenset({"approval", "events_json", "lifecycle", "records"})
    | {"records_account", "records_words"},
    "codec": frozenset({"events", "lifecycle"}),
}
"""The pure core: what each of its modules imports from the package, and nothing of the shell."""
PURE: Final = frozenset(
    {"__future__", "collections", "dataclasses", "datetime", "enum", "functools", "hashlib", "json", "math", "re"}
    | {"string", "types", "typing", "urllib", "uuid"}
)
"""The standard library that the core may use: no clock, no I/O, no logging, no threads, no randomness."""
EFFECTS: Final = {"now", "utcnow", "today", "time", "monotonic", "open", "print", "input", "uuid1", "uuid4", "random"}

BACKENDS: Final[Mapping[str, frozenset[str]]] = {
    "azure": frozenset({"sinks.eventhubs", "tail", "demo"}),
    "aiohttp": frozenset({"sinks.eventhubs"}),
    "opentelemetry": frozenset({"sinks.otlp"}),
    "requests": frozenset({"sinks.otlp", "probe_otlp"}),
    "google": frozenset({"sinks.otlp"}),
    "prometheus_client": frozenset({"sinks.prometheus", "sinks.catalogue", "sinks.tallies"}),
    "httpx": frozenset({"metadata", "demo"}),
    "httpcore": frozenset({"metadata"}),
    "h11": frozenset({"web"}),
    "yaml": frozenset({"web"}),
    "bcrypt": frozenset({"web"}),
    "sqlite3": frozenset({"outbox", "tail", "probe"}),
}
"""Each library has its room: the module, or the family of modules whose names begin so."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES: Final[Mapping[str, Path]] = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
TREES: Final[Mapping[str, ast.Module]] = {
    name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()
}


def family(module: str) -> str:
    """`web`, `webtls` and `web_x` are one family, as are `page_html` and `page`."""
    return "web" if module.startswith("web") else module.split("_", maxsplit=1)[0]


def imports(module: str, *, lazy: bool = True) -> Iterator[str]:
    """Every module that this one imports; without `lazy` only those that importing it imports."""
    nodes: list[ast.AST] = list(TREES[module].body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            yield from (
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}"[9:] in FILES else str(node.module)
                for alias in node.names
            )
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            nodes += node.orelse
        elif lazy or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)


def ours(module: str, *, lazy: bool = True) -> set[str]:
    """What it imports from the package, without the package's name."""
    found = {name.partition(".")[2] for name in imports(module, lazy=lazy) if name.split(".")[0] == "exporter"}
    return found & set(FILES) - {""}


def theirs(module: str, *, lazy: bool = True) -> set[str]:
    """The top names of what it imports from elsewhere."""
    return {name.split(".")[0] for name in imports(module, lazy=lazy)} - {"exporter"}


def closure(start: str, *, lazy: bool) -> set[str]:
    """Everything that comes with a module."""
    found, waiting = set[str](), [start]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        parents = {module.rpartition(".")[0]} & set(FILES) - {""}
        waiting += ours(module, lazy=lazy) | parents
    return found


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_nothing_of_the_shell(module: str) -> None:
    """Arrows go edge, shell, core, and never back."""
    assert ours(module) <= CORE[module]


@pytest.mark.parametrize("module", CORE)
def test_the_core_is_pure(module: str) -> None:
    """No clock, no I/O, no logging, no threads: neither by what it imports nor by what it calls."""
    assert theirs(module) <= PURE
    called = {
        getattr(node.func, "attr", getattr(node.func, "id", ""))
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.Call)
    }
    assert called & EFFECTS == set()


@pytest.mark.parametrize("library", BACKENDS)
def test_each_library_has_its_room(library: str) -> None:
    """Nobody else imports it, so that a change of it is a change of one place."""
    guests = {module for module in FILES if library in theirs(module)}
    strangers = {module for module in guests if not module.startswith(tuple(BACKENDS[library]))}
    strangers = {module for module in strangers if not module.startswith("simulator")}
    assert strangers == set()


SINKS: Final = [module for module in FILES if module.startswith("sinks.")]


@pytest.mark.parametrize("module", SINKS)
def test_an_output_imports_no_other_output(module: str) -> None:
    """Each destination stands alone: one that is not configured is not imported."""
    own = {"otlp": "otlp", "eventhubs": "eventhubs"}.get(module.split(".")[1].split("_", maxsplit=1)[0], "prometheus")
    others = {name for name in ours(module) if name.startswith("sinks.")}
    named = {name for name in others if name.split(".")[1].split("_")[0] in {"otlp", "eventhubs", "prometheus"} - {own}}
    assert named == set()


def test_run_never_imports_the_simulator() -> None:
    """Neither at once nor when something is configured."""
    assert {name for name in closure("app", lazy=True) if name.startswith("simulator")} == set()
    assert {name for name in closure("cli", lazy=False) if name.startswith("simulator")} == set()


def test_run_imports_no_destination_before_it_is_configured() -> None:
    """What importing the composition root brings is without the backends' libraries."""
    libraries = set[str]()
    for module in closure("app", lazy=False) | closure("cli", lazy=False):
        libraries |= theirs(module, lazy=False)
    assert libraries & {"azure", "aiohttp", "opentelemetry", "requests", "google"} == set()


LINE: Final = frozenset({"agent", "approver", "keeper", "health", "delivery", "turn", "status", "attribution"})
SHELL: Final = ("metadata", "outbox", "web", "sinks", "simulator", "app", "cli", "config", "httpx", "sqlite3")


@pytest.mark.parametrize("module", sorted(LINE & set(FILES)))
def test_the_line_knows_its_surroundings_by_their_shape_alone(module: str) -> None:
    """Client, outputs and, but for the delivery which empties it, the outbox are protocols to them."""
    strangers = {name for name in ours(module) | theirs(module) if family(name).split(".")[0] in SHELL}
    assert strangers <= ({"outbox"} if module == "delivery" else set())


def test_no_module_takes_a_name_of_the_standard_library() -> None:
    """A reader, and `python -m`, would find the wrong one. The simulator's `platform` is Azure's."""
    taken = {module for module in FILES if module.split(".")[-1] in sys.stdlib_module_names}
    assert taken - {"__main__", "simulator.platform"} == set()
