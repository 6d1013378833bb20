"""The guest's disk: Debian bookworm with systemd and a kernel, and without Python, made once and kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.machine import CACHE, Missing, make_debian, must

PACKAGES: Final = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "udev",
    "kmod",
    "iproute2",
    "procps",
    "curl",
    "ca-certificates",
    "linux-image-cloud-amd64",
)
SIZE: Final = "3G"
"""Size of the file system; the file has holes and occupies its content, about 600 MB."""
TOOLS: Final = {"qemu-system-x86_64": "qemu-system-x86", "mke2fs": "e2fsprogs"}
"""Programs, and the Debian packages that contain them."""

CONTROL: Final = r"""#!/bin/bash
# Runs the commands of the second serial line, one in base64 on each line; returns the exit code, and the output in
# base64.
exec 3<>/dev/ttyS1
stty -F /dev/ttyS1 raw -echo
echo "ready" >&3
while IFS= read -r line <&3; do
    command=$(base64 -d <<<"$line")
    printed=$(bash -c "$command" </dev/null 2>&1 3>&- | base64 -w0; exit "${PIPESTATUS[0]}")
    echo "$? $printed" >&3
done
"""
CONTROL_UNIT: Final = """[Unit]
Description=Commands by the second serial line
[Service]
ExecStart=/usr/local/lib/control
[Install]
WantedBy=multi-user.target
"""
NETWORK: Final = """[Match]
Type=ether
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
"""
"""The network of QEMU's user mode: 10.0.2.2 is the loopback address of the machine that QEMU runs on."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The boot files of a guest: its disk, kernel, and first file system."""

    image: Path
    kernel: Path
    initrd: Path


def base() -> Disk:
    """Return the disk before the installation: made by debootstrap (2 minutes), then kept."""
    folder = CACHE / f"systemd-{_fingerprint()}"
    disk = Disk(folder / "disk", folder / "vmlinuz", folder / "initrd")
    if disk.image.is_file():
        return disk
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=CACHE) as name:
        made, root = Path(name) / "made", Path(name) / "root"
        made.mkdir()
        make_debian(root, *PACKAGES)
        _furnish(root)
        if pythons := [str(path) for path in root.rglob("python3*") if path.is_file() and os.access(path, os.X_OK)]:
            raise Missing(f"there is a Python in the guest: {pythons[0]}")
        shutil.copy(next((root / "boot").glob("vmlinuz-*")), made / "vmlinuz")
        shutil.copy(next((root / "boot").glob("initrd.img-*")), made / "initrd")
        must("mke2fs", "-q", "-t", "ext4", "-d", str(root), str(made / "disk"), SIZE)
        made.rename(folder)
    return disk


def copy_of(disk: Disk, folder: Path) -> Disk:
    """Return a copy of the disk to write on."""
    must("cp", "--sparse=always", str(disk.image), str(folder / "disk"))
    return Disk(folder / "disk", disk.kernel, disk.initrd)


def of_files(files: Sequence[Path], image: Path) -> None:
    """Make a second disk with these files in its top folder."""
    with tempfile.TemporaryDirectory() as name:
        for file in files:
            shutil.copy(file, name)
        mebibytes = sum(file.stat().st_size for file in files) // 2**20 + 16
        must("mke2fs", "-q", "-t", "ext4", "-d", name, str(image), f"{mebibytes}M")


def _furnish(root: Path) -> None:
    """Make it a machine: commands on a serial line, a network, and a journal that survives a boot."""
    (control := root / "usr/local/lib/control").write_text(CONTROL)
    control.chmod(0o755)
    (root / "etc/systemd/system/control.service").write_text(CONTROL_UNIT)
    (root / "etc/systemd/network").mkdir(parents=True, exist_ok=True)
    (root / "etc/systemd/network/ether.network").write_text(NETWORK)
    (root / "etc/hostname").write_text("guest\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost guest\n")
    (root / "etc/fstab").write_text("/dev/vda / ext4 rw 0 1\n")
    (root / "var/log/journal").mkdir(parents=True, exist_ok=True)
    (root / "mnt/files").mkdir()
    must("chroot", str(root), "systemctl", "--quiet", "enable", "control", "systemd-networkd")
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)


def _fingerprint() -> str:
    """Return a hash of the disk's inputs: another one is made when they change."""
    return hashlib.sha256(repr((PACKAGES, CONTROL, CONTROL_UNIT, NETWORK, SIZE)).encode()).hexdigest()[:8]
