"""The suite on other CPythons: `python -m tests.pythons [3.12] [3.13] [3.14] [--from PLACE] [-- PYTEST'S ARGUMENTS]`.

Each version gets a separate environment with the newest permitted dependencies, kept in `build/pythons`; warnings are
errors there, as everywhere. First it checks whether the versions and hashes of deploy/constraints.txt can be installed.
It prints the source of each interpreter (`interpreters.py`). Exit code 0: all passed; 1: a test failed; 2: an
interpreter is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.pythons.debian import Place
from tests.pythons.interpreters import SOURCES, Interpreter, find
from tests.support.machine import ROOT, Missing

VERSIONS: Final = ("3.12", "3.13", "3.14")
BUILD: Final = "build/pythons"
"""In the checkout: an environment for each version, and pytest's output."""
PYTEST: Final = ("-m", "pytest", "--dist", "worksteal", "-p", "no:cacheprovider", "--color=no", "--tb=short", "-q")
CLOSING: Final = re.compile(r"^=*\s*(\d+ \w+(?:, \d+ \w+)*) in [\d.]+s", re.MULTILINE)
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one version: 0, 1, or 2 as the exit code, and a line."""

    code: int
    line: str


def main() -> int:
    own, further = _split(sys.argv[1:])
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", default=[], metavar="VERSION", help=f"Default: {' '.join(VERSIONS)}.")
    parser.add_argument("--from", dest="sources", action="append", choices=tuple(SOURCES), help="Only from there.")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="Test processes.")
    args = parser.parse_args(own)
    for version in args.versions or VERSIONS:
        if version not in VERSIONS:
            parser.error(f"{version}: expected one of {', '.join(VERSIONS)}")
    pytest = ["--numprocesses", str(args.jobs), *further]
    outcomes = [_judge(version, args.sources or tuple(SOURCES), pytest) for version in args.versions or VERSIONS]
    print("\n".join(outcome.line for outcome in outcomes))
    return max(outcome.code for outcome in outcomes)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return this program's own arguments, and pytest's after `--`."""
    if "--" not in words:
        return list(words), []
    place = words.index("--")
    return list(words[:place]), list(words[place + 1 :])


def _judge(version: str, sources: Sequence[str], pytest: Sequence[str]) -> Outcome:
    found = None
    for answer in find(version, sources):
        if isinstance(answer, str):
            print(f"{version}: {answer}", flush=True)
        else:
            found = answer
            print(f"{version}: {answer.described}", flush=True)
    if found is None:
        return Outcome(2, f"{version}: there is no CPython of this version here")
    try:
        python = _environment(version, found)
    except Missing as error:
        return Outcome(1, f"{version}: {error}")
    return _run(version, found, python, pytest)


def _environment(version: str, interpreter: Interpreter) -> str:
    """Return the path of the interpreter in its environment, with the requirements of the tests. Raises `Missing`."""
    place = interpreter.place
    folder = f"{place.checkout}/{BUILD}/{version}"
    python = f"{folder}/bin/python"
    stamp = (place.root or Path("/")) / folder.removeprefix("/") / "made-of"
    project = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "deploy" / "constraints.txt").read_bytes()
    made_of = f"{interpreter.described} {hashlib.sha256(project).hexdigest()}"
    if stamp.is_file() and stamp.read_text() == made_of:
        return python
    _must(place, place.python, "-m", "venv", "--clear", folder)
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
    _must(place, *pip, "--editable", ".[test]")
    _must(
        place,
        *(*pip, "--dry-run", "--ignore-installed", "--require-hashes", "--only-binary", ":all:"),
        *("--requirement", "deploy/constraints.txt"),
    )
    print(f"{version}: the newest dependencies are installed; the locked ones could be, by their hashes", flush=True)
    stamp.write_text(made_of)
    return python


def _must(place: Place, *command: str) -> None:
    done = place.run(*command)
    if done.returncode:
        raise Missing(f"{' '.join(command)}\n{done.stdout}{done.stderr}".rstrip())


def _run(version: str, interpreter: Interpreter, python: str, pytest: Sequence[str]) -> Outcome:
    log = ROOT / BUILD / f"{version}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        command = interpreter.place.command(python, *PYTEST, *pytest)
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, check=False, cwd=ROOT, stdin=subprocess.DEVNULL
        )
    said = log.read_text(encoding="utf-8", errors="replace")
    for line in FAILED.findall(said):
        print(f"{version}: {line}", flush=True)
    closing = CLOSING.findall(said)
    counted = closing[-1] if closing else f"pytest did not come to its end (exit code {done.returncode})"
    seconds = time.monotonic() - began
    line = f"{version}: {counted} in {seconds:.0f} s; {interpreter.described}; skipped why: {log.relative_to(ROOT)}"
    return Outcome(0 if done.returncode == 0 else 1, line)


if __name__ == "__main__":
    sys.exit(main())
