"""A fresh Debian in a folder, and commands in it, with their own /proc and mount namespace, which end with them.

So no mount remains after any failure. Its network is this machine's.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.machine import CACHE, make_debian

PATHS: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LONGEST: Final = 600.0
"""Maximum seconds of a command."""


class CommandError(Exception):
    """A command failed; the text has its output."""


class Root:
    """A Debian in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, inside: str) -> Path:
        """Return a path of the root, as this machine sees it."""
        return self.folder / inside.lstrip("/")

    def lexists(self, inside: str) -> bool:
        """Return whether the path exists, even as a dangling link."""
        return os.path.lexists(self.path(inside))

    def command(self, *command: str, environ: Mapping[str, str] | None = None) -> list[str]:
        """Return the command line that runs a command in the root, with only these variables and PATH."""
        variables = {"PATH": PATHS, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **(environ or {})}
        named = [f"{name}={value}" for name, value in variables.items()]
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", f"--root={self.folder}"]
        return [*namespaces, "/usr/bin/env", "-i", *named, *command]

    def ended(self, *command: str) -> tuple[int, str]:
        """Run a command to its end. Return its exit code and both its outputs."""
        done = subprocess.run(
            self.command(*command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        return done.returncode, done.stdout

    def run(self, *command: str) -> str:
        """Run a command that must succeed. Return both its outputs. Raises `CommandError`."""
        code, said = self.ended(*command)
        if code:
            raise CommandError(f"{shlex.join(command)} ended with {code}:\n{said}")
        return said

    @contextmanager
    def running(self, *command: str, environ: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run a process in the root, with all that it starts; kill it at the end if it is still running."""
        with log.open("wb") as output:
            process = subprocess.Popen(self.command(*command, environ=environ), stdout=output, stderr=output)
            try:
                yield process
            finally:
                process.kill()
                process.wait(30)

    def files(self) -> set[str]:
        """Return the paths of all files, folders, and links in it."""
        return {
            f"/{Path(folder, name).relative_to(self.folder)}"
            for folder, folders, files in os.walk(self.folder)
            for name in (*folders, *files)
        }


@contextmanager
def fresh_root() -> Iterator[Root]:
    """Yield a minimal Debian, made by debootstrap once and then copied; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="packages-") as folder:
        root = Path(folder) / "root"
        with tarfile.open(_base(), "r") as archive:
            archive.extractall(root, numeric_owner=True, filter="fully_trusted")  # noqa: S202  # made by us, below
        yield Root(root)


def _base() -> Path:
    """Return the archive of the minimal Debian."""
    base = CACHE / "debian-bookworm-minbase.tar"
    if base.exists():
        return base
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="debootstrap-") as folder:
        make_debian(Path(folder, "root"))
        with tarfile.open(f"{folder}/base.tar", "w") as archive:
            for entry in sorted(Path(folder, "root").iterdir()):
                archive.add(entry, entry.name)
        os.replace(f"{folder}/base.tar", base)
    return base
