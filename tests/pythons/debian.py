"""A later release of Debian, in a root made by debootstrap: its Python, its libraries, its peers, and the checkout in
it.

Commands run in separate mount and process namespaces, so that no process or mount outlives them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.machine import ROOT, make_debian

INSIDE: Final = "/srv/checkout"
NETWORK: Final = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""Files with a host's network, its package index, and its trusted authorities."""
KEPT: Final = ("PIP_", "SSL_CERT_", "REQUESTS_CA_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PROPERTIES_")
"""Prefixes of the variables that a root gets."""

ENTER: Final = """\
set -e
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmp "$1/tmp"
root=$1
shift
exec chroot "$root" "$@"
"""


@dataclass(frozen=True, slots=True)
class Place:
    """The system of a CPython: this one, or a root (then `python` is a path within).

    `checkout` is the project's folder there; `environ` are additional variables for commands.
    """

    python: str
    source: str
    root: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def checkout(self) -> str:
        """The project's folder there."""
        return INSIDE if self.root else str(ROOT)

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs `arguments` there, in the checkout."""
        if self.root is None:
            return list(arguments)
        recorded = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **self.environ}
        recorded |= {name: value for name, value in os.environ.items() if name.upper().startswith(KEPT)}
        inside = [
            "env",
            "-i",
            f"--chdir={INSIDE}",
            *(f"{name}={value}" for name, value in recorded.items()),
            *arguments,
        ]
        return [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            ENTER,
            "sh",
            str(self.root),
            *inside,
        ]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end there; the result has its output."""
        command = self.command(*arguments)
        return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, cwd=ROOT)


def make(release: str, version: str, folder: Path) -> Place:
    """Return the root of a release with python3.X of `version`, in `folder`; its checkout is the current one.

    Raises `Missing`.
    """
    root = folder / release
    place = Place(f"/usr/bin/python{version}", f"of Debian {release} in {root}", root)
    packages = (f"python{version}", f"python{version}-venv", "ca-certificates", "binutils", "make", "git")
    made = root / "made"
    if not made.exists() or made.read_text(encoding="utf-8") != " ".join(packages):
        shutil.rmtree(root, ignore_errors=True)
        make_debian(root, *packages, SUITE=release)
    for name in NETWORK:
        if Path(name).is_file():
            (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
            (root / name[1:]).unlink(missing_ok=True)
            shutil.copy(name, root / name[1:])
    _copy_checkout(root)
    if not made.exists():
        done = place.run(".ci/peers")
        if done.returncode:
            print(f"       {release} has not all peers: {done.stderr.strip().splitlines()[-1]}", flush=True)
        made.write_text(" ".join(packages), encoding="utf-8")
    return place


def _copy_checkout(root: Path) -> None:
    """Copy the files that git knows or would add, in their current form, and git's data; the root's own environments
    stay."""
    target = root / INSIDE[1:]
    target.mkdir(parents=True, exist_ok=True)
    for entry in target.iterdir():
        if entry.name not in (".venv", "build"):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name, follow_symlinks=False)
    if (ROOT / ".git").is_dir():
        shutil.copytree(ROOT / ".git", target / ".git")
