"""The demo and the fast tests on arm64: `python -m tests.arm64 [--workers N] [TESTS…]`.

They run in a Debian bookworm for arm64, and QEMU runs its programs one by one (user emulation: this machine's kernel,
that architecture's C library, Python, SQLite, and OpenSSL, and its wheels by deploy/constraints.txt). The Debian is
made once and kept in `~/.cache` (1 GB); the checkout is seen through a layer in memory, so that it isn't changed. As
root on a Debian it installs debootstrap and QEMU with apt-get. Needs Linux 6.7 or newer. Tests that an emulated
processor can't run are marked `not_emulated`, with the reason. Exit code 0: all passed; 1: a test failed; 2: a
requirement is missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Final

from tests.arm64.inside import NOT_MADE
from tests.arm64.root import VENV, alone, entered, make
from tests.support.machine import ROOT, Missing, step

LOGS: Final = ROOT / "build" / "arm64"
INSTALL: Final = (
    "pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index --editable ."
)
SIGNAL: Final = (
    "import platform, sqlite3, ssl, sys; print(platform.machine(), *platform.libc_ver(), 'Python', "
    "sys.version.split()[0], 'SQLite', sqlite3.sqlite_version, ssl.OPENSSL_VERSION)"
)
DEMO: Final = "python -m exporter demo --listen=127.0.0.1:0"
ARRIVED: Final = "Every record arrived in every output, with the same id."
"""The demo's last line."""
PYTEST: Final = ("-p", "no:cacheprovider", "--color=no", "--tb=short", "-o", "faulthandler_timeout=600")
EXAMPLES: Final = "0.1"
"""PROPERTIES_TIMES: amd64 searches for failing examples; here, a few examples show whether the properties hold on
arm64."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.arm64", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=2 * (os.cpu_count() or 1), help="Test processes.")
    parser.add_argument("tests", nargs="*", help="Files and folders of tests, instead of the fast ones.")
    args = parser.parse_args()
    began = time.monotonic()
    try:
        with alone():
            with step("a Debian for arm64 with Python and the locked wheels"):
                root = make()
            good = run(root, "demo", f'{INSTALL} && {DEMO} && python -c "{SIGNAL}"', wanted=ARRIVED)
            good = run(root, "tests", f"{INSTALL} && {tests(args.workers, args.tests)}") and good
    except Missing as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'as it must be' if good else 'NOT as it must be'} on arm64, in {time.monotonic() - began:.0f} s")
    return 0 if good else 1


def tests(workers: int, named: list[str]) -> str:
    """Return the command that runs the named tests, or the Makefile's command for the fast ones."""
    if named:
        return f"python -m pytest --numprocesses {workers} --dist worksteal -m 'not peer' {' '.join(named)}"
    return f"make --no-print-directory -o {VENV}/.test VENV={VENV} WORKERS={workers} test-fast"


def run(root: Path, name: str, script: str, *, wanted: str = "") -> bool:
    """Run a script in the root, in the checkout; print how it ended, and what failed. Return True if it passed.

    Raises Missing if it could not be run.
    """
    began = time.monotonic()
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    environ = {"EMULATED": "QEMU", "PROPERTIES_TIMES": EXAMPLES, "PYTEST_ADDOPTS": " ".join(PYTEST)}
    with (
        log.open("wb") as output,
        entered(root, ("/bin/sh", "-c", script), source=ROOT, environ=environ, output=output) as process,
    ):
        code = process.wait()
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if code == NOT_MADE:
        raise Missing("\n".join(said[-20:]))
    good = code == 0 and (not wanted or wanted in said)
    print(f"{'ok    ' if good else 'FAILED'} {name}: {time.monotonic() - began:.0f} s", flush=True)
    for line in (
        [line for line in said if line.startswith(("FAILED", "ERROR"))] + ([wanted] if good else []) + said[-1:]
    ):
        if line:
            print(f"       {line.strip('= ')}", flush=True)
    if not good:
        print(f"       exit code {code}; the whole output is in {log}", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())
