"""Speed and memory of the agent in one run of about five minutes: `python -m benchmarks.run`.

The exit code is 1 if a value misses its target. A busy machine misses more of them, so the load is printed.
"""

from __future__ import annotations

import os
import sys

from benchmarks import gate, idle, large_document, reaction
from benchmarks.usage import load_average


def main() -> int:
    print(f"load before: {load_average()} on {os.cpu_count()} cores, Python {sys.version.split()[0]}\n")
    fine = []
    for part in (reaction, gate, idle, large_document):
        fine.append(part.report())
        print(flush=True)
    print(f"load after: {load_average()} (includes the benchmarks)")
    return int(not all(fine))


if __name__ == "__main__":
    sys.exit(main())
