"""Speed and memory of the agent, in one go: `python -m benchmarks.run`. About four minutes.

Exit code 1 when a figure misses what was aimed at. A busy machine misses more; its load is printed.
"""

from __future__ import annotations

import os
import sys

from benchmarks import idle, many, reaction


def main() -> int:
    print(f"load before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores, Python {sys.version.split()[0]}\n")
    fine = []
    for part in (reaction, idle, many):
        fine.append(part.report())
        print(flush=True)
    print(f"load after: {os.getloadavg()[0]:.2f} (the benchmarks' own included)")
    return int(not all(fine))


if __name__ == "__main__":
    sys.exit(main())
