"""Make the guest's whole disk: this Python with the requirements of its standard library, the package, and a first
process."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[2] / "exporter"
LEFT_OUT: Final = frozenset(
    {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "__pycache__"}
    | {"site-packages", "dist-packages"}
)
INIT: Final = """#!{python} -IB
import runpy, sys
sys.path.insert(0, "/app")
runpy.run_path("/app/guest.py", run_name="__main__")
"""


def make(target: Path, guest: Path) -> int:
    """Write an uncompressed cpio archive, as Linux unpacks it at boot; return its size in bytes."""
    python = Path(sys.executable).resolve()
    with target.open("wb") as file:
        archive = _Archive(file.write)
        for path in _python(python):
            archive.file(path, path.read_bytes(), path.stat().st_mode & 0o111 != 0)
        for path in sorted(PACKAGE.rglob("*.py")):
            archive.file(Path("/app/exporter") / path.relative_to(PACKAGE), path.read_bytes())
        archive.file(Path("/app/guest.py"), guest.read_bytes())
        archive.file(Path("/init"), INIT.format(python=python).encode(), executable=True)
        archive.end()
    return target.stat().st_size


def _python(python: Path) -> Iterator[Path]:
    """Return the interpreter, its standard library, and every shared library that one of them is linked with."""
    library = Path(sysconfig.get_path("stdlib")).resolve()
    modules = [path for path in sorted(library.rglob("*")) if path.is_file() and not _left_out(path, library)]
    extensions = [path for path in modules if path.suffix == ".so" and "lib-dynload" in path.parts]
    yield python
    yield from modules
    yield from sorted({needed for path in (python, *extensions) for needed in _linked(path)} - {python})


def _left_out(path: Path, library: Path) -> bool:
    parts = path.relative_to(library).parts
    return not LEFT_OUT.isdisjoint(parts) or parts[0].startswith("config-") or path.suffix == ".a"


def _linked(path: Path) -> set[Path]:
    """Return the libraries that ldd lists, at the paths where the loader searches them."""
    said = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
    return {Path(found) for found in re.findall(r"(/\S+) \(0x", said)}


class _Archive:
    """The "newc" format of cpio: a header of hexadecimal numbers, the name, the content, each padded to 4 bytes."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._folders: set[Path] = {Path("/")}
        self._number = 0

    def file(self, path: Path, content: bytes, executable: bool = False) -> None:
        self._folder(path.parent)
        self._entry(path, stat.S_IFREG | (0o755 if executable else 0o644), content)

    def _folder(self, path: Path) -> None:
        if path in self._folders:
            return
        self._folder(path.parent)
        self._folders.add(path)
        self._entry(path, stat.S_IFDIR | 0o755, b"")

    def _entry(self, path: Path, mode: int, content: bytes) -> None:
        self._number += 1
        name = str(path).lstrip("/").encode() + b"\0"
        numbers = (self._number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        header = b"070701" + b"".join(b"%08X" % number for number in numbers) + name
        self._write(header + bytes(-len(header) % 4))
        self._write(content + bytes(-len(content) % 4))

    def end(self) -> None:
        self._entry(Path("TRAILER!!!"), 0, b"")
