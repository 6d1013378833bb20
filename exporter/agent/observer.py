"""Measures interruptions of this VM. A thread wakes ten times a second while an event is near, else four times.

- A stall of at least 0.3 s (0.45 s at four times a second) is always observed; one of at least 0.2 s is observed only
  if it includes the end of a sleep.
- A step of the wall clock of at least 0.2 s is always observed, at the next wake-up or `Observer.take`.

Slewing, the gradual correction of a clock, isn't a step. Linux slews both clocks alike (clock_gettime(2)). Windows
slews only the wall clock, so the rate that the system reports is subtracted (`exporter/windows/system.py`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from exporter.core.interruption import THRESHOLD_SECONDS
from exporter.core.state import Instant, Interruption, InterruptionKind
from exporter.log.protocol import Logger
from exporter.windows import system

TICK_SECONDS: Final = 0.1
QUIET_TICK_SECONDS: Final = 0.25
"""Sleep while no event of this VM is near."""
FOLLOWED_PPM: Final = 1000
"""Twice the fastest slew that an NTP client can set in a kernel (500 ppm). Slewing never adds up to a step; steps below
the threshold do if they come close together."""
_NANO: Final = 1_000_000_000
_THRESHOLD: Final = round(THRESHOLD_SECONDS * _NANO)
_GOOD_SPREAD: Final = _NANO // 1000
_USABLE_SPREAD: Final = _NANO // 20
_READINGS: Final = 5
KEPT: Final = 1000
STOP_SECONDS: Final = 2.0
PAUSE_AFTER_ERROR: Final = 1.0


class ClockPair(Struct, frozen=True):
    """Both clocks at one moment, in nanoseconds. The wall clock was read at most `spread` after the monotonic one."""

    mono: int
    real: int
    spread: int = 0

    @property
    def instant(self) -> Instant:
        """The pair as an `Instant` of the core."""
        return Instant(datetime.fromtimestamp(self.real / _NANO, UTC), self.mono / _NANO)


def read_clocks(mono: Callable[[], int] = time.monotonic_ns, real: Callable[[], int] = time.time_ns) -> ClockPair:
    """Read both clocks close together, so that their difference is usable.

    Returns the reading with the smallest spread of up to `_READINGS`: if the process is stopped between two reads, the
    difference would otherwise show a step that did not happen.
    """
    best: ClockPair | None = None
    for _ in range(_READINGS):
        before, wall, after = mono(), real(), mono()
        if best is None or after - before < best.spread:
            best = ClockPair(before, wall, after - before)
        if best.spread <= _GOOD_SPREAD:
            break
    assert best is not None  # noqa: S101  # the loop runs at least once
    return best


def own_rate() -> float:
    """Return the rate of a wall clock that is slewed like the monotonic clock, or by `FOLLOWED_PPM` at most."""
    return 0.0


class Detector:
    """Derives stalls and clock steps from readings in their order. Pure: readings may come at any time.

    `rate` returns how much faster or slower the system now runs the wall clock than the monotonic one, in seconds per
    second. `detect` calls it; between two calls, the larger of the two rates counts, in both directions. `tick` is the
    length of the current sleep in nanoseconds: a stall is the time beyond it.
    """

    def __init__(self, first: ClockPair, rate: Callable[[], float] = own_rate) -> None:
        self.tick = round(TICK_SECONDS * _NANO)
        self._last = first.mono
        self._followed = first.mono
        self._offset = first.real - first.mono
        self._rate = rate
        self._largest_rate = rate()

    def quiet(self, mono: int, real: int, after: int) -> bool:
        """Return whether a tick certainly shows no interruption; if False, call `detect`.

        All are nanoseconds: `mono` was read before `real`, and `after` is the monotonic clock after it. Nearly every
        tick ends here. At ten calls a second, memory access is the main cost, hence plain numbers.
        """
        if (
            mono - self._last < self.tick + _THRESHOLD
            and mono - self._followed < _NANO
            and after - mono < _GOOD_SPREAD
            and -_THRESHOLD < real - mono - self._offset < _THRESHOLD
        ):
            self._last = mono
            return True
        return False

    def detect(self, now: ClockPair) -> list[Interruption]:
        """Return the interruptions since the previous reading. `now` may be read before a tick."""
        signals = [(InterruptionKind.STALL, self._late(now)), (InterruptionKind.CLOCK_STEP, self._step(now))]
        return [Interruption(kind, nanoseconds / _NANO, now.instant) for kind, nanoseconds in signals if nanoseconds]

    def _late(self, now: ClockPair) -> int:
        late = now.mono - self._last - self.tick
        self._last = now.mono
        return late if late >= _THRESHOLD else 0

    def _step(self, now: ClockPair) -> int:
        rate = self._rate()
        self._largest_rate = max(self._largest_rate, rate)
        if now.spread > _USABLE_SPREAD:
            return 0
        difference = now.real - now.mono - self._offset
        unseen, self._followed = max(0, now.mono - self._followed), now.mono
        slewed = _within(difference, round(unseen * self._largest_rate))
        self._largest_rate = rate
        step = difference - slewed
        # After a long stall, a difference that slewing can explain isn't a step either.
        if abs(step) >= _THRESHOLD + _followed(unseen - 2 * _NANO):
            self._offset += difference
            return step
        self._offset += slewed + _within(step, _followed(unseen))
        return 0


def _followed(nanoseconds: int) -> int:
    return max(0, nanoseconds) * FOLLOWED_PPM // 1_000_000


def _within(number: int, bound: int) -> int:
    return max(-bound, min(bound, number))


def system_rate(
    platform: str = sys.platform, reader: Callable[[], Callable[[], float]] = system.slew_reader
) -> Callable[[], float]:
    """Return the `rate` of `Detector` for this system. It raises OSError if the system reports none."""
    if platform != "win32":
        return own_rate
    try:
        return reader()
    except (ImportError, AttributeError, OSError) as error:
        problem = OSError(f"{type(error).__name__}: {error}")

    def unknown() -> float:
        raise problem

    return unknown


class Observer:
    """Measures interruptions on a separate thread and keeps the last `KEPT` until `take`. Never raises."""

    def __init__(
        self,
        log: Logger,
        sleep: Callable[[float], object] | None = None,
        mono: Callable[[], int] = time.monotonic_ns,
        real: Callable[[], int] = time.time_ns,
        *,
        rate: Callable[[], float] | None = None,
    ) -> None:
        """Prepare the thread. `rate` is as in `Detector`, by default `system_rate()`, and may raise OSError."""
        self._log = log
        self._near = True
        self._woken = threading.Event()
        self._sleep = sleep or self._woken.wait
        self._mono = mono
        self._real = real
        self._read_rate = rate or system_rate()
        self._interruptions: deque[Interruption] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._detector: Detector | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def expect(self, near: bool) -> None:
        """Set whether the document may contain an event of this VM from now on."""
        was, self._near = self._near, near
        if near and not was:
            self._woken.set()

    def take(self) -> tuple[Interruption, ...]:
        """Return the interruptions since the last call, oldest first, up to this moment.

        One that has just ended doesn't wait for the next tick: before that, the caller may read a document without the
        event that caused it.
        """
        try:
            self._detect()
        except Exception as error:  # as in `_run`
            self._log_failure(error)
        with self._lock:
            taken = tuple(self._interruptions)
            self._interruptions.clear()
        return taken

    def stop(self) -> None:
        """End the thread, within `STOP_SECONDS`. `take` still returns the interruptions before."""
        self._stopping = True
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    def _detect(self) -> None:
        with self._lock:
            if self._detector is not None and not self._stopping:
                self._interruptions.extend(self._detector.detect(read_clocks(self._mono, self._real)))

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._tick()
            except Exception as error:  # an observer that fails must not end the agent: log it and restart
                with self._lock:
                    self._detector = None  # the pause without ticks isn't an interruption
                self._log_failure(error)
                self._sleep(PAUSE_AFTER_ERROR)

    def _tick(self) -> None:
        sleep, mono, real = self._sleep, self._mono, self._real
        with self._lock:
            self._detector = detector = Detector(read_clocks(mono, real), self._rate)
        while not self._stopping:
            self._woken.clear()
            seconds = TICK_SECONDS if self._near else QUIET_TICK_SECONDS
            detector.tick = round(seconds * _NANO)
            sleep(seconds)
            with self._lock:
                if detector.quiet(mono(), real(), mono()):
                    continue
            self._detect()

    def _rate(self) -> float:
        """Return the rate of the system's clock; if it is unknown, the largest possible one.

        Then no step is reported that did not happen, and a reported one can be up to half a second too short.
        """
        try:
            return self._read_rate()
        except OSError as error:
            detail = f"the rate of the clock is unknown, so small clock steps are not detected: {error}"
            self._log.failing("observer", "observer.failed", reason="clock-rate", detail=detail[:300])
            return system.FASTEST

    def _log_failure(self, error: Exception) -> None:
        self._log.failing("observer", "observer.failed", reason=type(error).__name__, detail=str(error)[:300])
