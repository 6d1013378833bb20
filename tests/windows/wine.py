"""Wine's prefixes: each is a Windows with a separate server, in which a Windows Python runs the checkout on drive C:.

Requirements of Wine 8: standard streams are pipes (CPython's `fstat` of an inherited file or of /dev/null fails), and
programs are on drive C:, not on Z:, where /proc and /dev of Linux cause errors.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.support.machine import Missing, need

PATHS: Final = (os.environ.get("PATH", os.defpath), "/usr/lib/wine", "/opt/wine-stable/bin")

CHECKOUT: Final = "checkout"
PYTHON: Final = "python"
"""Directories of drive C:."""
BOOT_SECONDS: Final = 180.0
REGISTRY: Final = "*.reg"
KEPT: Final = ("HOME", "PATH", "LANG", "USER", "PROPERTIES_TIMES", "HYPOTHESIS_PROFILE")


def need_wine() -> str:
    """Return the path of wine64; as root on Debian, apt installs it. Raises Missing."""
    need({"wine64": "wine64"}, os.pathsep.join(PATHS))
    found = _find("wine64")
    assert found is not None
    return found


def _find(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join(PATHS))


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a Wine process with all its children: without a server they never end, and neither does a reader."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Prefix:
    """One Windows: its directory, and how to run programs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._wine = need_wine()

    def make(self) -> None:
        """Boot it for the first time (15 s, 0.7 GB), as Windows 10."""
        done = self.folder / "made"
        if done.is_file():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for command in (["wineboot", "-i"], ["winecfg", "-v", "win10"]):
            self._said([self._wine, *command])
        self.wait()
        done.touch()

    def copy(self, folder: Path) -> Prefix:
        """Return a copy of the same files, with its own registry: instant, and without disk space."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder, symlinks=True, copy_function=os.link)
        for file in folder.glob(REGISTRY):  # Wine writes to a file with several links
            file.unlink()
            shutil.copyfile(self.folder / file.name, file)
        return Prefix(folder)

    def furnish(self, python: Path, checkout: Path) -> None:
        """Show it a Python as C:\\python and a checkout as C:\\checkout."""
        for name, path in ((PYTHON, python), (CHECKOUT, checkout)):
            link = self._drive(name)
            link.unlink(missing_ok=True)
            link.symlink_to(path)

    def _drive(self, name: str) -> Path:
        return self.folder / "drive_c" / name

    @contextlib.contextmanager
    def python(self, *arguments: str, where: str = CHECKOUT) -> Iterator[subprocess.Popen[str]]:
        """Run a Windows Python with these arguments, in a directory of drive C:; both its streams are one pipe.

        It's killed with all its children at the end of the block.
        """
        folder = self._drive(where)
        with subprocess.Popen(
            [self._wine, f"C:\\{PYTHON}\\python.exe", *arguments],
            cwd=folder,
            env=self._environ() | {"PWD": str(folder)},  # Wine uses it to choose among several paths
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        ) as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                yield process
            finally:
                kill(process)
                self.end()

    def run(self, *arguments: str, where: str = CHECKOUT) -> tuple[int, str]:
        """Run a program, and return its exit code and output."""
        with self.python(*arguments, where=where) as process:
            assert process.stdout is not None
            said = process.stdout.read()
            return process.wait(), said

    def end(self) -> None:
        """Kill everything in it."""
        self._server("-k")

    def wait(self) -> None:
        """Wait until everything in it has ended, and the registry is written."""
        self._server("-w")

    def _server(self, flag: str) -> None:
        server = _find("wineserver64") or _find("wineserver") or str(Path(self._wine).with_name("wineserver64"))
        subprocess.run([server, flag], env=self._environ(), check=False, capture_output=True, timeout=BOOT_SECONDS)

    def _said(self, command: Sequence[str]) -> str:
        done = subprocess.run(
            command,
            env=self._environ(),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=BOOT_SECONDS,
        )
        if done.returncode:
            raise Missing(f"{' '.join(command)} in {self.folder}: {done.stdout.strip()[-2000:]}")
        return done.stdout

    def _environ(self) -> dict[str, str]:
        """Return a small part of this system's environment: Wine passes all of it to Windows."""
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        quiet = {"WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree=;mshtml="}
        return {**kept, **quiet, "WINEPREFIX": str(self.folder)}
