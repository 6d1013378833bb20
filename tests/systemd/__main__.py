"""The installed deb under a real systemd, in a virtual machine: `python -m tests.systemd [--deb FILE]`.

Boots a Debian with systemd and without Python, installs the package there with apt-get, and checks the unit and the
agent against their documentation: in the shipped sandbox, system call filter, and watchdog, over an upgrade and a
second boot. Each verdict is one line, which begins with ok or BAD. Exit code 0: all are ok; 1: at least one is BAD; 2:
a requirement is missing. Needs root on Debian; installs QEMU and debootstrap with apt-get if they are missing. Takes
about 10 minutes with KVM and 25 without, and 4 more the first time, to make the disk.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.machine import ROOT, Missing, need
from tests.systemd import disk, proofs
from tests.systemd.environment import NAME, GuestEnvironment, free_port
from tests.systemd.guest import Guest, GuestError

DROP_INS: Final = ("event-hubs.conf", "network.conf")


def built() -> Path:
    """Build the package of this checkout in dist/; an existing one may be of older sources. Raises Missing."""
    print("== make -C deploy deb", file=sys.stderr, flush=True)
    if subprocess.run(["make", "-C", "deploy", "deb"], cwd=ROOT, check=False).returncode:
        raise Missing("make -C deploy deb failed")
    found = sorted((ROOT / "dist").glob(f"{NAME}_*_amd64.deb"))
    if len(found) != 1:
        raise Missing(f"expected one {NAME}_…_amd64.deb in dist/, found {len(found)}")
    return found[0]


def as_next_version(deb: Path, folder: Path) -> Path:
    """Build the same package with a later version, for the upgrade."""
    content, target = folder / "content", folder / "new.deb"
    for command in (["dpkg-deb", "-R", str(deb), str(content)], ["dpkg-deb", "-f", str(deb), "Version"]):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    control = content / "DEBIAN" / "control"
    text = control.read_text(encoding="utf-8")
    control.write_text(text.replace(f"Version: {done.stdout.strip()}", f"Version: {done.stdout.strip()}+next"))
    subprocess.run(["dpkg-deb", "-Znone", "-b", str(content), str(target)], check=True, capture_output=True)
    return target


def run(deb: Path, folder: Path, accelerator: str, only: Sequence[str]) -> bool:
    """Run every proof, in two boots of one disk; return whether all verdicts were ok. `only` are names; empty means
    all."""
    began = time.monotonic()
    booted = disk.copy_of(disk.base(), folder)
    (old := folder / "old.deb").write_bytes(deb.read_bytes())
    files = [old, as_next_version(deb, folder), *(ROOT / "deploy" / "systemd" / name for name in DROP_INS)]
    disk.of_files(files, folder / "files")
    with GuestEnvironment(free_port()) as environment:
        for boot in (proofs.BEFORE, proofs.AFTER):
            with Guest(booted, folder / "files", folder, environment.port, accelerator) as environment.guest:
                print(f"== booted after {time.monotonic() - began:.0f} s", flush=True)
                for proof in boot:
                    if only and proof.__name__ not in ("installed", *only):
                        continue
                    print(f"== {proof.__name__.replace('_', ' ')} ({time.monotonic() - began:.0f} s)", flush=True)
                    proof(environment)
                print(f"== shut down in {environment.guest.shut_down():.1f} s", flush=True)
    return environment.good


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.systemd", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--deb", type=Path, help="The package. Default: what `make -C deploy deb` makes.")
    parser.add_argument("--only", metavar="PROOF", action="append", help="Run only this proof after the installation.")
    parser.add_argument("--kvm", action="store_true", help="Use KVM. Default: emulate, which works everywhere.")
    args = parser.parse_args()
    accelerator = "kvm" if args.kvm else "tcg,thread=multi"
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the machine ends with it
    try:
        need(disk.TOOLS)
        with tempfile.TemporaryDirectory(prefix="systemd-") as name:
            good = run(args.deb or built(), Path(name), accelerator, args.only or ())
    except Missing as error:
        print(error, file=sys.stderr)
        return 2
    except GuestError as error:
        print(f"BAD {error}")
        return 1
    print(f"== {'as it must be' if good else 'NOT as it must be'}, in {time.monotonic() - began:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
