"""CPU cost of the interruption observer: `python -m benchmarks.observer [SECONDS]`.

The process starts the observer as in an agent without events and does nothing else, so its CPU time is the observer's.
It fails if the observer uses more than a thousandth of a core.
"""

from __future__ import annotations

import sys
import threading
import time

from exporter.agent.observer import Observer
from exporter.log.protocol import NullLogger

SECONDS = 20.0
ALLOWED = 0.001


class FailingLogger(NullLogger):
    """A log that ends the process if the observer fails, because the measurement would be meaningless."""

    def failing(self, key: str, event: str, **fields: object) -> None:
        raise SystemExit(f"{key} {event} {fields}")


def switches() -> int:
    """Return the number of voluntary context switches; 0 on Windows, which doesn't count them."""
    if sys.platform == "win32":
        return 0
    import resource  # noqa: PLC0415  # not available on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    observer = Observer(FailingLogger())
    observer.start()
    observer.expect(near=False)
    names = ", ".join(sorted(thread.name for thread in threading.enumerate()))
    time.sleep(1.0)
    woken, cpu, wall = switches(), time.process_time(), time.monotonic()
    time.sleep(seconds)
    cpu, wall, woken = time.process_time() - cpu, time.monotonic() - wall, switches() - woken
    observer.stop()
    seen = ", ".join(f"{found.kind} {found.seconds:.3f} s" for found in observer.take())
    print(f"threads: {names}; {cpu * 1e3:.1f} ms of CPU in {wall:.1f} s, {cpu / wall:.3%} of a core")
    print(f"{woken / wall:.1f} wake-ups a second; interruptions: {seen or 'none'}")
    return int(cpu / wall > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
