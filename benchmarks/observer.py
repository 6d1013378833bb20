"""What watching for interruptions costs, measured: `python -m benchmarks.observer [SECONDS]`.

Starts the observer as in an agent without an event and does nothing else, so that the process's own CPU time is the
observer's. Fails when it is more than a thousandth of a core.
"""

from __future__ import annotations

import sys
import threading
import time

from exporter.agent.observer import Observer
from exporter.log.protocol import NullLogger

SECONDS = 20.0
ALLOWED = 0.001


class Aloud(NullLogger):
    """A log that speaks at once: a benchmark of an observer that has failed would be worth nothing."""

    def failing(self, key: str, event: str, **fields: object) -> None:
        raise SystemExit(f"{key} {event} {fields}")


def switches() -> int:
    """How often this process has waited; Windows does not count it."""
    if sys.platform == "win32":
        return 0
    import resource  # noqa: PLC0415  # not of Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    observer = Observer(Aloud())
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
    print(f"{woken / wall:.1f} wake-ups a second; seen meanwhile: {seen or 'nothing'}")
    return int(cpu / wall > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
