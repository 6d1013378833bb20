"""Continuity of polling between two valid documents, by both clocks and `DocumentIncarnation`; outages in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from exporter.core.document import Document
from exporter.core.state import Instant, Outage, Rejection, Reset, Seen, State, Transition

UNBROKEN_SECONDS: Final = 5.0
UNBROKEN_POLLS: Final = 3
AGREEING_SECONDS: Final = 60.0
"""Longest time between two equal documents from which to conclude that nothing changed in between. After a longer gap,
all measures of how long an event was observed start again."""
RESET_SECONDS: Final = 10.0
RESET_DOCUMENTS: Final = 3
"""Number of documents, or `RESET_SECONDS`, whichever comes first, without approvals after `DocumentIncarnation` went
down: another server behind the same address, or a restarted one, may show events that have ended."""
ANOMALIES: Final[Mapping[str, str]] = {
    "incarnation-restarted": "DocumentIncarnation went down: the service was disabled in between, or moved",
    "incarnation-skipped": "DocumentIncarnation went up by more than one: a change was not observed",
    "changed-without-incarnation": "The document changed, but DocumentIncarnation did not",
    "incarnation-without-change": "DocumentIncarnation changed, but the document did not",
    "slow-first-answer": "The first response was slow: Azure was enabling the service for this VM",
    "idle-deactivation-near": "No successful poll for 20 hours: Azure disables the service after 24 without a request",
}
"""Published anomalies of the metadata service, and the message of each one's record."""
UNRECORDED_ANOMALIES: Final = frozenset({"incarnation-skipped", "incarnation-without-change"})
"""Anomalies that are counted but not recorded: a change within one poll interval or while the agent was not running."""


class Continuity(Struct, frozen=True):
    """How a new document follows the last valid one."""

    now: Instant
    observed_seconds: float
    gap: float | None
    """Seconds since the last valid document, by the clock that shows more; None if there was none."""
    recorded_gap_seconds: float | None
    """The same for records, by `Instant.since`: also None if the clock was set back across a restart."""
    unseen: tuple[str, ...]
    """Published reasons why the time in between was not observed completely; empty if it was."""
    steady: bool
    """Whether the last valid document is recent by both clocks."""
    anew: bool = False
    """Whether the gap is too long to count what was observed before it."""

    @property
    def seen_before(self) -> Seen:
        """How well the time just before the document was observed."""
        if "restart" in self.unseen:
            return Seen.AGENT_START
        return Seen.GAP if self.unseen else Seen.UNBROKEN


class DocumentStep(Struct, frozen=True):
    """The result of one valid document."""

    state: State
    continuity: Continuity
    transitions: tuple[Transition, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    changed: bool = False
    anomaly: str = ""
    """One of `ANOMALIES`, or empty."""
    counted: tuple[Transition, ...] = ()
    """Transitions of this VM's events. `apply_scope` sets it, and leaves in `transitions` those to publish."""


def continuity_of(state: State, document: Document, now: Instant, poll_interval: float) -> Continuity:
    """Return how a document read at `now` follows the state's document; `poll_interval` is in seconds."""
    limit = max(UNBROKEN_SECONDS, UNBROKEN_POLLS * poll_interval)
    last = state.last_good
    if last is None or state.document is None:
        return Continuity(now, state.observed_seconds, None, None, ("restart",), False)
    wall = (now.wall - last.wall).total_seconds()
    unseen: list[str] = []
    mono = now.mono - last.mono if now.mono is not None and last.mono is not None else None
    steady = mono is not None and mono <= limit and abs(wall) <= limit
    if mono is None:
        unseen.append("restart")
    elif not steady:
        unseen.append("gap")
    step = document.incarnation - state.document.incarnation
    if step < 0:
        unseen.append("incarnation-restarted")
    elif step > 1:
        unseen.append("incarnation-skipped")
    elif step == 0:
        unseen.append("incarnation-unchanged")
    gap, passed = max(wall, mono or 0.0, 0.0), 0.0
    if mono is not None and (steady or (gap <= AGREEING_SECONDS and is_unchanged(document, state.document))):
        passed = max(0.0, min(mono, wall))
    observed_seconds = state.observed_seconds + passed
    anew = gap > AGREEING_SECONDS or (mono is None and wall < 0)  # set back across a restart: unknown length
    return Continuity(now, observed_seconds, gap, now.since(last), tuple(unseen), steady, anew)


def reset_after(state: State, document: Document, continuity: Continuity) -> Reset | None:
    """Return the reset that applies after this document; None if there is none.

    A decrease of `DocumentIncarnation` begins a new reset. An old one stays while it is too recent to act on any
    document.
    """
    lower = state.document is not None and document.incarnation < state.document.incarnation
    if lower or (state.reset is not None and continuity.anew):
        return Reset(continuity.observed_seconds)
    if state.reset is None:
        return None
    older = replace(state.reset, documents=state.reset.documents + 1)
    passed = continuity.observed_seconds - older.observed_seconds
    return None if older.documents >= RESET_DOCUMENTS or passed >= RESET_SECONDS else older


def is_unchanged(one: Document, other: Document) -> bool:
    """Return whether two documents have the same `DocumentIncarnation` and the same events."""
    return one is other or (one.incarnation == other.incarnation and _has_same_events(one, other))


def _has_same_events(one: Document, other: Document) -> bool:
    """Return whether the events are the same in any order: the documentation gives their order no meaning."""
    if one.rejected != other.rejected or len(one.events) != len(other.events):
        return False
    return one.events == other.events or {e.key: e for e in one.events} == {e.key: e for e in other.events}


def anomaly_of(state: State, document: Document) -> str:
    """Return which of `ANOMALIES` a change of `DocumentIncarnation` is; empty for a normal one."""
    if state.document is None:
        return ""
    step = document.incarnation - state.document.incarnation
    unchanged = _has_same_events(document, state.document)
    if step < 0:
        return "incarnation-restarted"
    if step == 0:
        return "" if unchanged else "changed-without-incarnation"
    if step > 1:
        return "incarnation-skipped"
    return "incarnation-without-change" if unchanged else ""


def gap_reasons(continuity: Continuity) -> tuple[str, ...]:
    """Return why the time before the document was not observed: `restart` or `gap`; empty if it was observed."""
    return tuple(word for word in continuity.unseen if word in ("restart", "gap"))


# -- outages: recorded after 10 s; Azure may disable the service

UNAVAILABLE_SECONDS: Final = 10.0
DEACTIVATION_NEAR_SECONDS: Final = 20 * 3600.0
"""Azure disables the service for the VM after 24 hours without a request [Enabling and disabling]."""
NOTED_SECONDS: Final = 10.0


def outage_after(outage: Outage | None, began: Instant, ended: Instant, reason: str) -> Outage:
    """Return the outage after a failed poll that lasted from `began` to `ended`."""
    if outage is None:
        outage = Outage(began, reason, began)
    elif outage.last_failure.mono is None:  # of an earlier process
        outage = replace(outage, last_failure=began, absent=absent_until(outage, began), first_failure_in_process=began)
    return replace(outage, last_failure=ended, silent=outage.silent + ended.minus(outage.last_failure))


def is_outage_noted(before: Outage | None, after: Outage) -> bool:
    """Return whether `after`, which continues the outage `before`, need not be written to disk yet.

    After a restart, the end of the failed polls must be known to within `NOTED_SECONDS`.
    """
    if before is None or before.first_failure_in_process != after.first_failure_in_process:
        return False
    return before.silent // NOTED_SECONDS == after.silent // NOTED_SECONDS


def absent_until(outage: Outage, now: Instant) -> float | None:
    """Return for how many seconds of the outage no agent polled before a poll at `now`; None if unknown."""
    if outage.last_failure.mono is not None:
        return outage.absent
    away = now.since(outage.last_failure)
    return None if away is None or outage.absent is None else outage.absent + away


def seconds_until_outage_recorded(state: State, mono: float) -> float:
    """Return the seconds until an outage observed by this process must be recorded; infinity if there is none."""
    outage = state.outage
    if outage is None or outage.recorded or outage.known_since.mono is None:
        return float("inf")
    return outage.known_since.mono + UNAVAILABLE_SECONDS - mono
