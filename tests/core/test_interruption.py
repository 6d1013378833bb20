"""The two signals on simulated clocks, and the attribution of interruptions to events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.agent.observer import QUIET_TICK_SECONDS, TICK_SECONDS, ClockPair, Detector, own_rate, read_clocks
from exporter.core.interruption import THRESHOLD_SECONDS, attribute, with_interruption
from exporter.core.records import Vm
from exporter.core.state import Instant, Interruption, InterruptionKind, State
from tests.support.core_documents import NOON, Watcher, event, started

SECOND = 1_000_000_000
EPOCH = 1_763_726_400 * SECOND
STEP, STALL = InterruptionKind.CLOCK_STEP, InterruptionKind.STALL
VM = Vm(name="vm-0")


class InterruptionScenario:
    """A VM, what happens to it, and what its detector reports. Times in seconds; `late` and `slew` are normal noise."""

    def __init__(
        self,
        slew_ppm: float = 0.0,
        late: float = 0.0,
        *,
        quick: bool = True,
        rate: Callable[[], float] | None = None,
        tick: float = TICK_SECONDS,
    ) -> None:
        self.mono = 50 * SECOND
        self.offset = EPOCH
        self.behind = 0
        self.slew_ppm, self.late, self.quick = slew_ppm, late, quick
        self.detector = Detector(self.reading, rate or own_rate)
        self.detector.tick = round(tick * SECOND)
        self.tick_seconds = tick
        self.found: list[Interruption] = []

    @property
    def reading(self) -> ClockPair:
        return ClockPair(self.mono, self.mono + self.offset)

    def runs(self, seconds: float) -> None:
        """Run normally: ticks, each a little late, on a clock that is being slewed."""
        until = self.mono + round(seconds * SECOND)
        while self.mono < until:
            self._passes(self.tick_seconds + self.late)
            self.tick()

    def _passes(self, seconds: float) -> None:
        self.mono += round(seconds * SECOND)
        self.offset += round(seconds * self.slew_ppm * 1000)

    def tick(self) -> None:
        if not self.quick or not self.detector.quiet(self.mono, self.mono + self.offset, self.mono + 400):
            self.look()

    def look(self) -> None:
        self.found += self.detector.detect(self.reading)

    def stalls(self, seconds: float) -> None:
        """Run the clocks but not the process."""
        self._passes(seconds)
        self.tick()

    def pauses(self, seconds: float) -> None:
        """Stop the VM with all its clocks."""
        self.behind += round(seconds * SECOND)

    def corrects(self, part: float = 1.0) -> None:
        """Correct the time of day, fully or in part; waiters for that are woken."""
        by = round(self.behind * part)
        self.behind -= by
        self.sets(by / SECOND)

    def sets(self, seconds: float) -> None:
        self.offset += round(seconds * SECOND)
        self.look()

    @property
    def recorded(self) -> list[tuple[InterruptionKind, float]]:
        return [(one.kind, round(one.seconds, 2)) for one in self.found]

    @property
    def total(self) -> float:
        return sum(one.seconds for one in self.found)


Do = Literal["runs", "stalls", "pauses", "corrects", "sets"]
Deeds = list[tuple[Do, float]]


def lived(deeds: Deeds, **noise: Any) -> InterruptionScenario:
    scenario = InterruptionScenario(**noise)
    scenario.runs(1)
    for deed, amount in deeds:
        getattr(scenario, deed)(amount)
    scenario.runs(1)
    return scenario


CASES: list[tuple[str, Deeds, list[tuple[InterruptionKind, float]]]] = [
    ("nothing", [("runs", 60)], []),
    ("the host does not run us", [("stalls", 3.1)], [(STALL, 3.0)]),
    ("just too short a stall", [("stalls", TICK_SECONDS + 0.199)], []),
    ("just long enough a stall", [("stalls", TICK_SECONDS + 0.2)], [(STALL, 0.2)]),
    ("a pause, corrected at once", [("pauses", 5), ("corrects", 1)], [(STEP, 5.0)]),
    ("a pause, corrected two seconds later", [("pauses", 5), ("runs", 2), ("corrects", 1)], [(STEP, 5.0)]),
    ("a pause, corrected a minute later", [("pauses", 5), ("runs", 60), ("corrects", 1)], [(STEP, 5.0)]),
    ("a pause, never corrected", [("pauses", 5), ("runs", 60)], []),
    (
        "a pause, corrected in two steps",
        [("pauses", 5), ("corrects", 0.6), ("runs", 3), ("corrects", 1)],
        [(STEP, 3.0), (STEP, 2.0)],
    ),
    (
        "a pause, corrected in a small step and a large one",
        [("pauses", 5), ("corrects", 0.02), ("runs", 1), ("corrects", 1)],
        [(STEP, 5.0)],
    ),
    ("small steps that come close together", [("sets", 0.15), ("runs", 1), ("sets", 0.15)], [(STEP, 0.3)]),
    ("small steps with a day between", [("sets", 0.15), ("runs", 600), ("sets", 0.15)], []),
    ("just too small a step", [("sets", 0.199)], []),
    ("just large enough a step", [("sets", 0.2)], [(STEP, 0.2)]),
    (
        "a pause whose clocks ran for a part of it",
        [("pauses", 3), ("stalls", 2.1), ("corrects", 1)],
        [(STALL, 2.0), (STEP, 3.0)],
    ),
    (
        "a stall, then a pause before anyone looked",
        [("pauses", 4), ("corrects", 1), ("stalls", 1.1)],
        [(STEP, 4.0), (STALL, 1.0)],
    ),
    ("two pauses, corrected as one", [("pauses", 2), ("runs", 1), ("pauses", 3), ("corrects", 1)], [(STEP, 5.0)]),
    (
        "two pauses, each corrected",
        [("pauses", 2), ("corrects", 1), ("runs", 1), ("pauses", 3), ("corrects", 1)],
        [(STEP, 2.0), (STEP, 3.0)],
    ),
    ("an administrator goes back", [("sets", -3600)], [(STEP, -3600.0)]),
    ("an administrator goes forward", [("sets", 3600)], [(STEP, 3600.0)]),
    ("a leap second", [("sets", -1)], [(STEP, -1.0)]),
]


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "thorough"])
@pytest.mark.parametrize(("deeds", "recorded"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_interruption_is_reported_once(
    deeds: Deeds, recorded: list[tuple[InterruptionKind, float]], quick: bool
) -> None:
    """A pause is a step, a host that doesn't run the VM is a stall, and no second counts as both."""
    assert lived(deeds, quick=quick).recorded == recorded


def test_next_tick_reports_a_step_once() -> None:
    scenario = InterruptionScenario()
    scenario.runs(1)
    scenario.offset += 5 * SECOND
    scenario.runs(1)
    assert scenario.recorded == [(STEP, 5.0)]


def test_step_and_stall_in_one_check_are_both_reported() -> None:
    """Their sum is the time that really passed."""
    scenario = InterruptionScenario()
    scenario.mono += round(2.1 * SECOND)
    scenario.offset += 3 * SECOND
    scenario.tick()
    assert scenario.recorded == [(STALL, 2.0), (STEP, 3.0)]


@dataclass(frozen=True)
class Deed:
    """A stall of `seconds` after a tick, or a pause; a pause is corrected after some time, in equal steps."""

    stall: float
    pause: float
    waits: float
    steps: int


ticks = st.sampled_from([TICK_SECONDS, QUIET_TICK_SECONDS])
deeds = st.builds(
    Deed,
    stall=st.one_of(st.just(0.0), st.floats(0.21, 60)),
    pause=st.one_of(st.just(0.0), st.floats(1.0, 60)),
    waits=st.floats(0, 5),
    steps=st.integers(1, 4),
)


@given(
    played=st.lists(deeds, max_size=4),
    slew=st.floats(-500, 500),
    late=st.floats(0, 0.19),
    quick=st.booleans(),
    tick=ticks,
)
@example(played=[Deed(5, 5, 0, 1)], slew=500, late=0.19, quick=True, tick=TICK_SECONDS)
def test_reported_total_equals_the_actual_total(
    played: list[Deed], slew: float, late: float, quick: bool, tick: float
) -> None:
    """In any order, with slewing and lateness: no second is missing or counted twice."""
    scenario = InterruptionScenario(slew, late, quick=quick, tick=tick)
    scenario.runs(2)
    done = 0.0
    for deed in played:
        if deed.stall:
            scenario.stalls(tick + deed.stall)
            done += deed.stall
        scenario.pauses(deed.pause)
        done += deed.pause
        scenario.runs(deed.waits)
        for left in range(deed.steps, 0, -1):
            scenario.corrects(1 / left)
            scenario.runs(0.3)
    assert scenario.total == pytest.approx(done, abs=0.001 + 0.02 * len(played))
    assert all(one.seconds >= THRESHOLD_SECONDS for one in scenario.found)


@given(slew=st.floats(-500, 500), waits=st.lists(st.floats(0.0, 1.0), max_size=300), tick=ticks)
def test_noise_is_never_an_interruption(slew: float, waits: list[float], tick: float) -> None:
    """An NTP slew of 500 ppm and ticks late by less than the threshold, for any time."""
    scenario = InterruptionScenario(slew, tick=tick)
    for wait in (part * (tick + 0.199) for part in waits):
        scenario.mono += round(wait * SECOND)
        scenario.offset += round(wait * slew * 1000)
        scenario.tick()
    assert scenario.recorded == []


@pytest.mark.parametrize("slew", [500, -500])
def test_slew_does_not_accumulate(slew: int) -> None:
    """Twenty minutes of slewing move the clock by 0.6 s, which isn't a step; a stall in between is only a stall."""
    scenario = InterruptionScenario(slew)
    scenario.runs(1200)
    assert scenario.recorded == []
    scenario.stalls(600.1)
    assert scenario.recorded == [(STALL, 600.0)]


# -- a system that slews only its wall clock and reports the rate: Windows

HALF = 500_000
"""ppm: W32Time runs the clock at most 50 % fast or 50 % slow."""


class Windows(InterruptionScenario):
    """A system that reports its slew rate; the last rate also counts for the time before it."""

    def __init__(self, slew_ppm: float = 0.0, late: float = 0.0, *, quick: bool = True) -> None:
        self.slew_ppm = slew_ppm
        super().__init__(slew_ppm, late, quick=quick, rate=lambda: abs(self.slew_ppm) / 1e6)


@given(
    parts=st.lists(st.tuples(st.floats(-HALF, HALF), st.floats(1.5, 30)), max_size=8),
    late=st.floats(0, 0.19),
    quick=st.booleans(),
)
@example(parts=[(HALF, 5), (0, 2), (-HALF, 5)], late=0.0, quick=True)
@example(parts=[(HALF, 1.5), (0, 1.5)], late=0.19, quick=True)
def test_known_slew_is_never_a_step(parts: list[tuple[float, float]], late: float, quick: bool) -> None:
    """If the rate changes between two checks, the larger of both rates explains the difference."""
    scenario = Windows(late=late, quick=quick)
    for slew, seconds in parts:
        scenario.slew_ppm = slew
        scenario.runs(seconds)
    assert scenario.recorded == []


def test_unknown_slew_is_reported_as_many_steps() -> None:
    """Why the rate is needed: 30 s of a clock that is 50 % fast look like 15 s of steps."""
    scenario = InterruptionScenario(HALF)
    scenario.runs(30)
    assert scenario.total == pytest.approx(15, abs=0.3)


@given(waits=st.floats(0, 2), step=st.floats(0.25, 3600), slew=st.floats(1000, HALF), late=st.floats(0, 0.05))
@example(waits=0.35, step=0.3, slew=HALF, late=0.0)
def test_step_in_the_direction_of_the_slew_is_reported_in_full(
    waits: float, step: float, slew: float, late: float
) -> None:
    """A slow clock runs faster and is set forward: the step is reported without the slewed part."""
    for sign in (1, -1):
        scenario = Windows(sign * slew, late)
        scenario.runs(1 + waits)
        scenario.offset += round(sign * step * SECOND)
        scenario.runs(3)
        assert scenario.total == pytest.approx(sign * step, abs=0.05)
        assert len(scenario.found) == 1


@given(waits=st.floats(0, 2), step=st.floats(0.7, 3600), late=st.floats(0, 0.05))
@example(waits=0.35, step=0.7, late=0.0)
def test_step_against_the_slew_is_reported_without_the_possible_slew(waits: float, step: float, late: float) -> None:
    """A clock that is slowed down jumps forward: detected from 0.7 s on, at most half a second short."""
    for sign in (1, -1):
        scenario = Windows(sign * HALF, late)
        scenario.runs(1 + waits)
        scenario.offset -= round(sign * step * SECOND)
        scenario.runs(3)
        assert -0.05 <= abs(scenario.total + sign * step) <= 0.55
        assert all(one.seconds * sign < 0 for one in scenario.found)


def test_small_step_against_a_fast_slew_is_not_reported() -> None:
    """0.3 s back on a clock that is 50 % fast is made up for within a second."""
    scenario = Windows(HALF)
    scenario.runs(1)
    scenario.offset -= round(0.3 * SECOND)
    scenario.runs(5)
    assert scenario.recorded == []


def test_unusable_reading_keeps_the_rate() -> None:
    """The clock was slewed until a check whose readings were too far apart; the next check still uses the rate."""
    rates = iter([0.0, 0.5, 0.0])
    detector = Detector(ClockPair(0, EPOCH), lambda: next(rates))
    slewed = ClockPair(SECOND, EPOCH + round(1.4 * SECOND))
    assert [found.kind for found in detector.detect(replace(slewed, spread=SECOND // 2))] == [STALL]
    assert detector.detect(replace(slewed, mono=round(1.1 * SECOND), real=EPOCH + round(1.5 * SECOND))) == []


# -- clocks that advance 64 times a second, as Windows' did before CPython 3.13

COARSE = 15_625_000


class CoarseClocks:
    """Real time, and two clocks that show it as of their last tick. Each reading takes a microsecond."""

    def __init__(self, phase: int) -> None:
        self.now, self.phase, self.stepped = 50 * SECOND, phase, EPOCH

    def mono(self) -> int:
        self.now += 1000
        return self.now - self.now % COARSE

    def real(self) -> int:
        self.now += 1000
        return self.now - (self.now + self.phase) % COARSE + self.stepped

    def sleep(self, seconds: float, over: float) -> None:
        self.now += round((seconds + over) * SECOND)


def watched(clocks: CoarseClocks, overs: list[float], happens: Callable[[CoarseClocks], None]) -> list[Interruption]:
    """Return the findings of ticks with these sleeps, each longer than requested; half-way something happens."""
    detector, found = Detector(read_clocks(clocks.mono, clocks.real)), []
    for number, over in enumerate(overs):
        clocks.sleep(TICK_SECONDS, over)
        if number == len(overs) // 2:
            happens(clocks)
        if not detector.quiet(clocks.mono(), clocks.real(), clocks.mono()):
            found += detector.detect(read_clocks(clocks.mono, clocks.real))
    return found


oversleeps = st.lists(st.floats(0, 0.031), min_size=40, max_size=200)
phases = st.integers(0, COARSE - 1)


@given(phase=phases, overs=oversleeps)
def test_coarse_clocks_report_no_interruption(phase: int, overs: list[float]) -> None:
    """Both clocks advance by 15.625 ms, not together, and each sleep ends up to two ticks late."""
    assert watched(CoarseClocks(phase), overs, lambda _: None) == []


@given(phase=phases, overs=oversleeps, seconds=st.floats(0.35, 30))
def test_coarse_clocks_measure_to_two_ticks(phase: int, overs: list[float], seconds: float) -> None:
    """A stall and a step are each detected once, with an error of the clock ticks and the late sleep."""

    def stalls(clocks: CoarseClocks) -> None:
        clocks.now += round(seconds * SECOND)

    def steps(clocks: CoarseClocks) -> None:
        clocks.stepped += round(seconds * SECOND)

    for kind, happens in ((STALL, stalls), (STEP, steps)):
        (found,) = watched(CoarseClocks(phase), overs, happens)
        assert found.kind is kind
        assert found.seconds == pytest.approx(seconds, abs=0.065)


# -- reading the clocks


def test_process_stopped_between_the_two_clock_readings_sees_no_step() -> None:
    """Three seconds pass between the readings: the pair is read again."""
    mono = iter([0, 3 * SECOND, 3 * SECOND + 100, 3 * SECOND + 300])
    real = iter([EPOCH + 3 * SECOND, EPOCH + 3 * SECOND + 200])
    assert read_clocks(lambda: next(mono), lambda: next(real)) == ClockPair(
        3 * SECOND + 100, EPOCH + 3 * SECOND + 200, 200
    )


def test_clocks_that_cannot_be_read_together_report_no_step() -> None:
    """On a very slow machine only a stall may be reported; a step waits for the next tick."""
    ticks = iter(range(0, 100 * SECOND, SECOND // 4))

    def now() -> int:
        return next(ticks)

    reading = read_clocks(now, lambda: EPOCH + now())
    assert reading.spread == SECOND // 2
    detector = Detector(ClockPair(0, EPOCH))
    assert detector.detect(replace(reading, mono=SECOND // 10, real=EPOCH + 5 * SECOND)) == []
    (found,) = detector.detect(ClockPair(SECOND // 5, EPOCH + SECOND // 5 + 5 * SECOND))
    assert (found.kind, found.seconds) == (STEP, 5.0)


def test_quick_check_ignores_readings_that_took_long() -> None:
    """A tick that was stopped between its readings is repeated."""
    detector = Detector(ClockPair(0, EPOCH))
    assert detector.quiet(SECOND // 10, EPOCH + SECOND // 10, SECOND // 10 + 500)
    assert not detector.quiet(SECOND // 5, EPOCH + SECOND // 5, SECOND // 2)


def test_interruption_has_the_time_at_which_it_was_noticed() -> None:
    """`at` is both clocks after the interruption."""
    (found,) = Detector(ClockPair(0, EPOCH)).detect(ClockPair(100_000_000, EPOCH + 5 * SECOND + 100_000_000))
    assert found.at.mono == 0.1
    assert found.at.wall.timestamp() == EPOCH / SECOND + 5.1


# -- attribution


def noticed(wall: float, seconds: float = 5.0, kind: InterruptionKind = STALL) -> Interruption:
    """Return an interruption noticed this many seconds after noon."""
    return Interruption(kind, seconds, Instant(NOON + timedelta(seconds=wall), 100.0 + wall))


def stepped(wall: float, seconds: float, mono: float | None) -> Interruption:
    """Return a forward step: the wall clock is later at once, and the monotonic clock has not moved."""
    found = noticed(wall, seconds, STEP)
    late = found.at.wall + timedelta(seconds=seconds)
    return replace(found, at=Instant(late, None if mono is None else found.at.mono))


def played() -> Iterator[State]:
    """Play vm-0's event: Scheduled at noon + 1 s + 60 s, Started 60 s later, removed 60 s later."""
    watcher = Watcher.fresh()
    for document in ([event()], [started()], []):
        watcher.sees(*document, after=60)
        watcher.publishes()
        yield watcher.state


SCHEDULED, STARTED, GONE = played()
STARTED_AT = next(iter(STARTED.tracked.values())).started_at
assert STARTED_AT is not None
START = (STARTED_AT - NOON).total_seconds()
END = START + 60

BOTH: Final = (STALL, STEP)
WINDOW = [
    (SCHEDULED, START - 1, (), "not started"),
    (STARTED, START - 2, BOTH, "two polls before it was seen Started"),
    (STARTED, START - 2.1, (), "before that"),
    (STARTED, START + 3600, BOTH, "while it is Started"),
    (GONE, END + 1, BOTH, "just after it was gone"),
    (GONE, END + 7, BOTH, "began two polls after it was gone"),
    (GONE, END + 7.1, (STEP,), "began later"),
    (GONE, END + 25, (STEP,), "began 20 s after it was gone"),
    (GONE, END + 30, (STEP,), "30 s after it was gone"),
    (GONE, END + 35.1, (), "later than that"),
]


@pytest.mark.parametrize(
    ("state", "wall", "attributed", "_case"), WINDOW, ids=[case[-1].replace(" ", "-") for case in WINDOW]
)
def test_attribution_window_depends_on_the_kind(
    state: State, wall: float, attributed: tuple[InterruptionKind, ...], _case: str
) -> None:
    """From two polls before Started was first seen until two polls after the end; for a step, 30 s after it."""
    found = [kind for kind in BOTH if attribute(state, VM, noticed(wall, 5.0, kind), 1.0) is not None]
    assert found == list(attributed)


def test_step_is_attributed_by_the_uncorrected_clock() -> None:
    """A pause of two minutes whose event ends on the slow clock before it's corrected: still attributed."""
    for wall, mono in ((120.0, 0.0), (120.0, None)):  # None: an earlier process saw the end
        assert attribute(GONE, VM, stepped(END + 1, wall, mono), 1.0) is not None
        assert attribute(GONE, VM, stepped(END + 31, wall, mono), 1.0) is None


def test_polling_gap_extends_the_window_by_at_most_30_s() -> None:
    """An interruption during an outage belongs to the event that the next document shows."""
    assert attribute(STARTED, VM, noticed(START - 20), 1.0) is None
    assert attribute(STARTED, VM, noticed(START - 20), 1.0, unobserved=25) is not None
    assert attribute(STARTED, VM, noticed(START - 31), 1.0, unobserved=600) is None


def test_only_events_of_this_vm_get_interruptions() -> None:
    """Neighbours' events, an unknown VM name, and a backward step have no attribution."""
    assert attribute(STARTED, Vm(name="vm-1"), noticed(START), 1.0) is None
    assert attribute(STARTED, Vm(), noticed(START), 1.0) is None
    assert attribute(STARTED, VM, noticed(START, -5, STEP), 1.0) is None
    assert attribute(STARTED, Vm(name="VM-0"), noticed(START), 1.0) is not None


def test_unended_event_that_started_last_gets_the_interruption() -> None:
    """An ended event yields to one that has not ended; of two that have not, the later start wins."""
    watcher = Watcher.fresh()
    watcher.sees(started("a"))
    watcher.sees(started("a"), started("b"))
    assert _event_of(watcher.state, noticed(4)) == "b"
    watcher.sees(started("a"))
    assert _event_of(watcher.state, noticed(5)) == "a"


def _event_of(state: State, found: Interruption) -> str:
    tracked = attribute(state, VM, found, 1.0)
    return tracked.event.event_id if tracked else ""


def test_interruption_totals_add_up() -> None:
    """Count, total, and longest."""
    (tracked,) = STARTED.tracked.values()
    after = with_interruption(with_interruption(tracked, noticed(0, 3.0)), noticed(0, 1.5)).interruptions
    assert (after.count, after.total, after.longest) == (2, 4.5, 3.0)
