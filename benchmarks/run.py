"""Speed and memory of the agent, in one go: `python -m benchmarks.run`. About five minutes.

Exit code 1 when a figure misses what was aimed at. A busy machine misses more; its load is printed.
"""

from __future__ import annotations

import os
import sys

from benchmarks import gate, idle, many, reaction
from benchmarks.usage import load_average


def main() -> int:
    print(f"load before: {load_average()} on {os.cpu_count()} cores, Python {sys.version.split()[0]}\n")
    fine = []
    for part in (reaction, gate, idle, many):
        fine.append(part.report())
        print(flush=True)
    print(f"load after: {load_average()} (the benchmarks' own included)")
    return int(not all(fine))


if __name__ == "__main__":
    sys.exit(main())
