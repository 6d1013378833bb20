"""The guest's first process: the observer as the agent runs it, in a machine that can be paused.

It prints the observed interruptions on the console, one JSON object a line, and executes the commands of the second
serial line: `clock NS` sets the time of day as the host's time service would (a pause is invisible until then), `end`
switches off.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time

from exporter.agent.observer import Observer
from exporter.log.protocol import NullLogger

POWER_OFF = 0x4321FEDC
SYSTEM_FILES = (("proc", "/proc"), ("devtmpfs", "/dev"))


def say(word: str, **more: object) -> None:
    now = {"mono": round(time.monotonic(), 3), "boot": round(time.clock_gettime(time.CLOCK_BOOTTIME), 3)}
    print(json.dumps({"guest": word, **more, **now}), flush=True)


class Log(NullLogger):
    """Print a failure like every other report; it fails the run."""

    def failing(self, key: str, event: str, **fields: object) -> None:
        say("trouble", key=key, event=event, **fields)


def watch(observer: Observer) -> None:
    """Print the observations, and once a second that time passes: a clock step must neither shorten nor prolong a
    wait."""
    waiting = threading.Event()
    turns = 0
    while True:
        for found in observer.take():
            wall = found.at.wall.isoformat()
            noticed = round(found.at.mono or 0.0, 6)
            say("interruption", kind=found.kind.value, seconds=round(found.seconds, 6), at=noticed, wall=wall)
        turns += 1
        if turns % 20 == 0:
            say("turn", cpu=round(time.process_time(), 4))
        waiting.wait(0.05)


def obey(line: str) -> None:
    word, _, number = line.strip().partition(" ")
    if word == "clock":
        time.clock_settime_ns(time.CLOCK_REALTIME, int(number))
        say("clock", set=round(time.monotonic(), 6))
    elif word == "end":
        os.sync()
        ctypes.CDLL(None).reboot(POWER_OFF)


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, folder in SYSTEM_FILES:
        os.makedirs(folder, exist_ok=True)
        libc.mount(kind.encode(), folder.encode(), kind.encode(), 0, None)
    observer = Observer(Log())
    observer.start()
    threading.Thread(target=watch, args=(observer,), daemon=True).start()
    with open("/dev/ttyS1", encoding="ascii") as commands:
        say("ready", python=sys.version.split()[0], kernel=os.uname().release)
        for line in commands:
            obey(line)


if __name__ == "__main__":
    main()
