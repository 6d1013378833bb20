"""Run each target for a number of seconds, and print what it tried and found: `python -m tests.fuzz --seconds N`.

An input that causes a failure is written to the folder of `--findings`; move it to `tests/testdata/fuzz/TARGET`, where
an ordinary test repeats it permanently. Exit code 1 if there was one.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.fuzz.seeds import TARGETS, seeds

EXECUTED: Final = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
COVERED: Final = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")


def fuzz(target: str, seconds: int, findings: Path) -> bool:
    """Run one target; return True if it found nothing."""
    found = findings / target
    found.mkdir(parents=True, exist_ok=True)
    before = set(found.iterdir())
    with tempfile.TemporaryDirectory(prefix="azse-fuzz-") as corpus:
        for number, seed in enumerate(seeds(target)):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)
        options = [f"-max_total_time={seconds}", "-print_final_stats=1", "-timeout=10", "-rss_limit_mb=1024"]
        options += ["-max_len=8192", "-verbosity=1", f"-artifact_prefix={found}/", corpus]
        run = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.one", target, *options],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    tried, covered = EXECUTED.search(run.stderr), COVERED.findall(run.stderr)
    new = sorted(path.name for path in set(found.iterdir()) - before)
    edges = f"{covered[-1][0]} edges, corpus of {covered[-1][2]}" if covered else "no coverage reported"
    shown = f"{target:<14} {int(tried[1]) if tried else 0:>9} inputs in {seconds} s, {edges}: "
    print(shown + (f"FOUND {', '.join(new)}" if new else "nothing found"), flush=True)
    if run.returncode and not new:
        print(run.stderr[-3000:])
    elif new:
        print("\n".join(line for line in (run.stdout + run.stderr).splitlines()[-40:] if "libFuzzer" not in line))
    return run.returncode == 0 and not new


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--target", action="append", choices=tuple(TARGETS), help="only this one; may be repeated")
    parser.add_argument("--findings", type=Path, default=Path(tempfile.gettempdir()) / "azse-fuzz-findings")
    args = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: pip install atheris (CPython 3.11 to 3.13 on Linux)", file=sys.stderr)
        return 1
    fine = [fuzz(target, args.seconds, args.findings) for target in args.target or TARGETS]
    return int(not all(fine))


if __name__ == "__main__":
    sys.exit(main())
