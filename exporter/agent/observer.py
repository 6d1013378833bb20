"""Measures interruptions of this VM: one thread ticks ten times a second, another blocks until the clock is set.

Linux reports a set clock through a timer that is cancelled by it (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET), to a
thread that costs nothing until then. Without such a timer a step is found at the next tick, a tenth of a second later.

A clock that is corrected little by little makes no step. On Linux both clocks are slewed alike (clock_gettime(2)); on
Windows the wall clock alone, so what the system says of its rate is explained by it (`exporter/windows/clock.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from msgspec import Struct

from exporter.core.interruption import THRESHOLD_SECONDS
from exporter.core.state import Instant, Interruption, InterruptionKind
from exporter.log.protocol import Logger
from exporter.windows import clock as windows_clock

TICK_SECONDS: Final = 0.1
FOLLOWED_PPM: Final = 1000
"""Twice the fastest slew that an NTP client can set in a kernel (500 ppm): slewing never adds up to a step, while steps
below the threshold do if they come close together."""
_NANO: Final = 1_000_000_000
_TICK: Final = round(TICK_SECONDS * _NANO)
_THRESHOLD: Final = round(THRESHOLD_SECONDS * _NANO)
_GOOD_SPREAD: Final = _NANO // 1000
_USABLE_SPREAD: Final = _NANO // 20
_READINGS: Final = 5
KEPT: Final = 1000
STOP_SECONDS: Final = 2.0
PAUSE_AFTER_ERROR: Final = 1.0

# Of Linux's headers; the same on every architecture that has them.
_CLOCK_REALTIME: Final = 0
_TFD_CLOEXEC: Final = 0o2000000
_TFD_TIMER_ABSTIME: Final = 1
_TFD_TIMER_CANCEL_ON_SET: Final = 2
_FAR: Final = 2**33  # the year 2242


class Reading(Struct, frozen=True):
    """Both clocks at one moment, in nanoseconds. The wall clock was read at most `spread` after the monotonic one."""

    mono: int
    real: int
    spread: int = 0

    @property
    def instant(self) -> Instant:
        """The same as an `Instant` of the core."""
        return Instant(datetime.fromtimestamp(self.real / _NANO, UTC), self.mono / _NANO)


def read_clocks(mono: Callable[[], int] = time.monotonic_ns, real: Callable[[], int] = time.time_ns) -> Reading:
    """Both clocks, read so close together that their difference means something.

    The reading with the smallest spread of a few is taken: a process that is stopped between two reads would otherwise
    measure a step that did not happen.
    """
    best: Reading | None = None
    for _ in range(_READINGS):
        before, wall, after = mono(), real(), mono()
        if best is None or after - before < best.spread:
            best = Reading(before, wall, after - before)
        if best.spread <= _GOOD_SPREAD:
            break
    assert best is not None  # noqa: S101  # the loop runs at least once
    return best


def own_rate() -> float:
    """The rate of a wall clock that is slewed only as the monotonic clock is, or by `FOLLOWED_PPM` at most."""
    return 0.0


class Detector:
    """Derives the two signals from readings, in their order. Pure: readings may come at any time.

    `rate` says by how much the system lets the wall clock run faster or slower than the monotonic one now, in seconds
    per second. It is asked at every `detect`; in between the larger of two answers counts, in both directions.
    """

    def __init__(self, first: Reading, rate: Callable[[], float] = own_rate) -> None:
        self._last = first.mono
        self._followed = first.mono
        self._offset = first.real - first.mono
        self._rate = rate
        self._largest_rate = rate()

    def quiet(self, mono: int, real: int, after: int) -> bool:
        """Whether a tick certainly shows no interruption; if not, call `detect`. All are nanoseconds: `mono` was read
        before `real`, `after` is the monotonic clock after it.

        Nearly every tick ends here. At ten calls a second touching memory is the cost: hence plain numbers.
        """
        if (
            mono - self._last < _TICK + _THRESHOLD
            and mono - self._followed < _NANO
            and after - mono < _GOOD_SPREAD
            and -_THRESHOLD < real - mono - self._offset < _THRESHOLD
        ):
            self._last = mono
            return True
        return False

    def detect(self, now: Reading) -> list[Interruption]:
        """The interruptions between the readings before and this one, which may come before a tick."""
        signals = [(InterruptionKind.STALL, self._late(now)), (InterruptionKind.CLOCK_STEP, self._step(now))]
        return [Interruption(kind, nanoseconds / _NANO, now.instant) for kind, nanoseconds in signals if nanoseconds]

    def _late(self, now: Reading) -> int:
        late = now.mono - self._last - _TICK
        self._last = now.mono
        return late if late >= _THRESHOLD else 0

    def _step(self, now: Reading) -> int:
        rate = self._rate()
        self._largest_rate = max(self._largest_rate, rate)
        if now.spread > _USABLE_SPREAD:
            return 0
        difference = now.real - now.mono - self._offset
        unseen, self._followed = max(0, now.mono - self._followed), now.mono
        slewed = _within(difference, round(unseen * self._largest_rate))
        self._largest_rate = rate
        step = difference - slewed
        # After a long stall, a difference that slewing can explain is no step either.
        if abs(step) >= _THRESHOLD + _followed(unseen - 2 * _NANO):
            self._offset += difference
            return step
        self._offset += slewed + _within(step, _followed(unseen))
        return 0


def _followed(nanoseconds: int) -> int:
    return max(0, nanoseconds) * FOLLOWED_PPM // 1_000_000


def _within(number: int, bound: int) -> int:
    return max(-bound, min(bound, number))


class Alarm(Protocol):
    """Reports that the wall clock was set."""

    def wait(self) -> bool:
        """Block until the clock was set (True) or `release` was called (False). Raises OSError."""

    def release(self) -> None:
        """End `wait`, from another thread."""

    def close(self) -> None:
        """Close the system's timer."""


class ClockAlarm:
    """An `Alarm` by timerfd. Creating one raises OSError, AttributeError or ImportError where the system has none."""

    _timer: int
    _set: Callable[[int, int], int]

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError(errno.ENOSYS, "no timerfd here")
        self._timer, self._set = _make_timer()
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, self._timer)
            self._arm()
            undo.pop_all()

    def _arm(self) -> None:
        # ECANCELED: the clock was set since the timer was last armed. It is armed nevertheless.
        number = self._set(_TFD_TIMER_ABSTIME | _TFD_TIMER_CANCEL_ON_SET, _FAR)
        if number not in (0, errno.ECANCELED):
            raise OSError(number, "timerfd_settime")

    def wait(self) -> bool:
        """See `Alarm`."""
        try:
            os.read(self._timer, 8)
        except OSError as error:
            if error.errno != errno.ECANCELED:
                raise
        else:
            return False
        # Armed again before the clocks are read: that reading has a step in between, and a later one ends `wait` again.
        self._arm()
        return True

    def release(self) -> None:
        """End `wait`, from another thread."""
        self._set(_TFD_TIMER_ABSTIME, 1)

    def close(self) -> None:
        """See `Alarm`."""
        os.close(self._timer)


def _make_timer() -> tuple[int, Callable[[int, int], int]]:
    """A timer's descriptor, and a function that sets it: from flags and expiry (POSIX seconds) to errno or 0. Raises
    OSError."""
    import ctypes  # noqa: PLC0415  # without ctypes the ticks still work

    class Spec(ctypes.Structure):
        """struct itimerspec: the interval, then the first expiry, each in seconds and nanoseconds."""

        _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]

    if ctypes.sizeof(ctypes.c_long) * 8 < 64:  # noqa: PLR2004  # bits
        raise OSError(errno.ENOSYS, "a clock that ends in 2038")
    libc = ctypes.CDLL(None, use_errno=True)
    timer: int = libc.timerfd_create(_CLOCK_REALTIME, _TFD_CLOEXEC)
    if timer < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")

    def set_timer(flags: int, second: int) -> int:
        spec = Spec(0, 0, second, 0)
        return ctypes.get_errno() if libc.timerfd_settime(timer, flags, ctypes.byref(spec), None) else 0

    return timer, set_timer


def system_rate(
    platform: str = sys.platform, reader: Callable[[], Callable[[], float]] = windows_clock.slew_reader
) -> Callable[[], float]:
    """What says how fast this system's wall clock is slewed, as in `Detector`. It raises OSError where nothing does."""
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
    """Measures interruptions in threads of its own and keeps the last thousand until `take`. Never raises."""

    def __init__(
        self,
        log: Logger,
        alarm: Callable[[], Alarm] = ClockAlarm,
        sleep: Callable[[float], None] = time.sleep,
        mono: Callable[[], int] = time.monotonic_ns,
        real: Callable[[], int] = time.time_ns,
        *,
        rate: Callable[[], float] | None = None,
    ) -> None:
        """`rate` is as in `Detector`, by default the system's own, and may raise OSError."""
        self._log = log
        self._sleep = sleep
        self._mono = mono
        self._real = real
        self._read_rate = rate or system_rate()
        self._interruptions: deque[Interruption] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._detector: Detector | None = None
        self._stopping = False
        self._make_alarm = alarm
        self._alarm: Alarm | None = None
        self._threads = [threading.Thread(target=self._tick, name="observer", daemon=True)]

    def start(self) -> None:
        """Start the threads."""
        with contextlib.suppress(ImportError, AttributeError, OSError):
            self._alarm = self._make_alarm()
            self._threads.append(
                threading.Thread(target=self._wait_for_set_clock, args=(self._alarm,), name="clock", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    def take(self) -> tuple[Interruption, ...]:
        """The interruptions up to now since the last call, oldest first: one that has just ended is not left to the
        next tick, before which the caller may read a document without the event that it belongs to."""
        try:
            self._detect()
        except Exception as error:  # as in `_tick`
            self._broke(error)
        taken: list[Interruption] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._interruptions.popleft())
        return tuple(taken)

    def stop(self) -> None:
        """End the threads, within a tick. Interruptions can still be taken."""
        self._stopping = True
        if self._alarm is not None:
            self._alarm.release()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(STOP_SECONDS)
        if self._alarm is not None and not any(thread.is_alive() for thread in self._threads):
            self._alarm.close()

    def _detect(self) -> None:
        with self._lock:
            if self._detector is not None and not self._stopping:
                self._interruptions.extend(self._detector.detect(read_clocks(self._mono, self._real)))

    def _tick(self) -> None:
        while not self._stopping:
            try:
                self._tick_on()
            except Exception as error:  # an observer that fails must not end the agent: logged, and restarted
                with self._lock:
                    self._detector = None  # until then nothing ticks, which is no interruption
                self._broke(error)
                self._sleep(PAUSE_AFTER_ERROR)

    def _tick_on(self) -> None:
        sleep, mono, real = self._sleep, self._mono, self._real
        with self._lock:
            self._detector = Detector(read_clocks(mono, real), self._rate)
        quiet = self._detector.quiet
        while not self._stopping:
            sleep(TICK_SECONDS)
            with self._lock:
                if quiet(mono(), real(), mono()):
                    continue
            self._detect()

    def _rate(self) -> float:
        """Where the system does not say how fast its clock runs, the most that it may: no step is made up, and one
        that is found is up to half a second too short."""
        try:
            return self._read_rate()
        except OSError as error:
            detail = f"the rate of the clock is unknown, small steps are not seen: {error}"
            self._log.failing("observer", "observer.failed", reason="clock-rate", detail=detail[:300])
            return windows_clock.FASTEST

    def _wait_for_set_clock(self, alarm: Alarm) -> None:
        """An alarm that fails is given up: the ticks also find a set clock."""
        try:
            while alarm.wait() and not self._stopping:
                self._detect()
        except Exception as error:  # as in `_tick`
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        self._log.failing("observer", "observer.failed", reason=type(error).__name__, detail=str(error)[:300])
