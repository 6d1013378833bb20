"""The interruption observer in a real virtual machine that is paused: `python -m tests.vm [--kernel FILE]`.

Boots a distribution's kernel with this Python and the package under QEMU's software emulation, which needs no rights,
stops and continues it as a host does during memory-preserving maintenance, sets its clock as a time service does
afterwards, and compares the observer's reports inside with the actions outside. Takes under a minute. Exit code 0: they
match; 1: they don't; 2: a requirement is missing. As root it installs QEMU with apt-get if it is missing.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.support.machine import Missing, need, unpacked
from tests.vm import initrd
from tests.vm.control import MachineError
from tests.vm.machine import QEMU, Machine

KERNELS: Final = ("linux-image-cloud-amd64", "linux-image-virtual", "linux-image-amd64")
"""Kernel packages of Debian and Ubuntu with serial lines and an initial RAM disk without any module."""
GUEST: Final = Path(__file__).parent / "guest.py"
NEAR: Final = 0.25
"""Permitted error in seconds: the time of the serial line and QEMU's own stop, on a busy machine."""
LONGEST_TURN: Final = 2.0
"""Seconds: twice the loop's wait."""

Said = dict[str, Any]


Deed = Callable[[Machine], tuple[list[float], list[float]]]
"""An action on the machine; returns what the observer must report: the steps and the stalls, in seconds."""


def _nothing(_machine: Machine) -> tuple[list[float], list[float]]:
    time.sleep(3.0)
    return [], []


def _paused(seconds: float, wait: float) -> Deed:
    def do(machine: Machine) -> tuple[list[float], list[float]]:
        lasted = machine.pause(seconds)
        time.sleep(wait)
        machine.set_clock()
        return [lasted], []

    return do


def _in_two_steps(machine: Machine) -> tuple[list[float], list[float]]:
    lasted = machine.pause(3.0)
    machine.set_clock(-2.0)
    time.sleep(1.0)
    machine.set_clock()
    return [lasted - 2.0, 2.0], []


def _starved(machine: Machine) -> tuple[list[float], list[float]]:
    lasted = machine.starve(3.0)
    time.sleep(0.5)
    machine.set_clock()
    return [], [lasted]


def _administrator(machine: Machine) -> tuple[list[float], list[float]]:
    machine.set_clock(-3600.0)
    time.sleep(2.5)
    machine.set_clock()
    return [-3600.0, 3600.0], []


CASES: Final[tuple[tuple[str, Deed], ...]] = (
    ("nothing for 3 s", _nothing),
    ("paused for 5 s, corrected 2 s later", _paused(5.0, 2.0)),
    ("paused for 1 s, corrected at once", _paused(1.0, 0.0)),
    ("paused for 3 s, corrected in two steps", _in_two_steps),
    ("not run by the host for 3 s", _starved),
    ("set back by an hour, and forward again", _administrator),
)


def run(machine: Machine) -> bool:
    """Run every case and print a line for each. Return True if all match."""
    machine.set_clock()
    machine.heard(1.5)
    verdicts: list[bool] = []
    said: list[Said] = []
    for name, do in CASES:
        steps, stalls = do(machine)
        said = machine.heard(1.5)
        observed_steps, observed_stalls = _observed(said, "clock_step"), _observed(said, "stall")
        verdicts.append(_same(observed_steps, steps) and _same(observed_stalls, stalls) and not _named(said, "trouble"))
        recorded = (
            f"steps {_list(observed_steps)} of {_list(steps)} s, stalls {_list(observed_stalls)} of {_list(stalls)} s"
        )
        _print(verdicts[-1], f"{name}: {recorded}")
        for one in _named(said, "trouble"):
            print(f"       {one}")
    return all((*verdicts, _even(said)))


def _print(good: bool, sentence: str) -> None:
    print(f"{'ok    ' if good else 'FAILED'} {sentence}", flush=True)


def _named(said: list[Said], word: str) -> list[Said]:
    return [one for one in said if one["guest"] == word]


def _observed(said: list[Said], kind: str) -> list[float]:
    return [one["seconds"] for one in _named(said, "interruption") if one["kind"] == kind]


def _same(observed: list[float], done: list[float]) -> bool:
    return len(observed) == len(done) and all(
        abs(one - other) <= NEAR for one, other in zip(observed, done, strict=True)
    )


def _list(seconds: list[float]) -> str:
    return "[" + ", ".join(f"{one:.3f}" for one in seconds) + "]"


def _even(said: list[Said]) -> bool:
    """Check that a loop that waits, parallel to the observer, ran once a second while the clock was set back and
    forward."""
    turns = [one["mono"] for one in _named(said, "turn")]
    widest = max((later - earlier for earlier, later in itertools.pairwise(turns)), default=float("inf"))
    _print(widest < LONGEST_TURN, f"the longest wait of a loop of 1 s around those steps was {widest:.2f} s")
    return widest < LONGEST_TURN


# -- requirements


def download_kernel(folder: Path) -> Path:
    """Unpack the kernel of the newest package that apt knows, without installing it. Raises Missing."""
    for package in KERNELS:
        said = subprocess.run(["apt-cache", "depends", package], capture_output=True, text=True, check=False).stdout
        named = [line.split()[-1] for line in said.splitlines() if line.strip().startswith("Depends: linux-image-")]
        if not named:
            continue
        for found in (unpacked(named[0], folder / "kernel") / "boot").glob("vmlinuz-*"):
            return found
    raise Missing("no kernel: give one with --kernel, or make apt know one of " + ", ".join(KERNELS))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vm", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kernel", type=Path, help="An x86-64 kernel to boot. Default: downloaded with apt-get.")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vm-") as name:
        folder = Path(name)
        try:
            need({QEMU: "qemu-system-x86"})
            kernel = args.kernel or download_kernel(folder)
            size = initrd.make(folder / "initrd", GUEST)
            print(
                f"{kernel.name}, a disk of {size / 2**20:.0f} MiB, made in {time.monotonic() - began:.1f} s", flush=True
            )
            with Machine(kernel, folder / "initrd", folder) as machine:
                print(f"booted {time.monotonic() - began:.1f} s after the beginning", flush=True)
                fine = run(machine)
                machine.send_line("end")
        except Missing as missing:
            print(missing, file=sys.stderr)
            return 2
        except MachineError as error:
            print(error, file=sys.stderr)
            return 1
    print(f"{'as it must be' if fine else 'NOT as it must be'}, in {time.monotonic() - began:.0f} s")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
