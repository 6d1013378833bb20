"""How completely the time between two good documents was observed, by both clocks and by `DocumentIncarnation`, and the
outages in between."""

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
"""Two equal documents at most this far apart show that nothing changed in between. After a longer gap, whatever counts
the time that an event was observed begins anew."""
RESET_SECONDS: Final = 10.0
RESET_DOCUMENTS: Final = 3
"""After `DocumentIncarnation` went down nothing is approved for this many seconds or this many documents, whichever
comes first: another server behind the same address, or a restarted one, may show events that are over."""
ANOMALIES: Final[Mapping[str, str]] = {
    "incarnation-restarted": "DocumentIncarnation went down: the service was disabled in between, or moved",
    "incarnation-skipped": "DocumentIncarnation went up by more than one: a change was not observed",
    "changed-without-incarnation": "The document changed, but DocumentIncarnation did not",
    "incarnation-without-change": "DocumentIncarnation changed, but the document did not",
    "slow-first-answer": "The first response was slow: Azure was enabling the service for this VM",
    "idle-deactivation-near": "No successful poll for 20 hours: Azure disables the service after 24 without a request",
}
"""Anomalies of the source, as published, and what the record of each says."""
UNRECORDED_ANOMALIES: Final = frozenset({"incarnation-skipped", "incarnation-without-change"})
"""Those that are counted and not recorded: a change within one poll interval, or while the agent did not run."""


class Continuity(Struct, frozen=True):
    """How the new document follows on the last good one."""

    now: Instant
    observed_seconds: float
    gap: float | None
    """Seconds since the last good document, by the clock that shows more; None when there was none."""
    recorded_gap_seconds: float | None
    """The same as it is recorded: by `Instant.since`, so None also where the clock was set back over a restart."""
    unseen: tuple[str, ...]
    """Why the time in between was not observed completely, in the published words; empty where it was."""
    steady: bool
    """By both clocks the last good document is recent."""
    anew: bool = False
    """The gap is too long to count what was observed before it."""

    @property
    def seen_before(self) -> Seen:
        """How well the time just before the document was observed."""
        if "restart" in self.unseen:
            return Seen.AGENT_START
        return Seen.GAP if self.unseen else Seen.UNBROKEN


class DocumentStep(Struct, frozen=True):
    """The result of one good document."""

    state: State
    continuity: Continuity
    transitions: tuple[Transition, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    changed: bool = False
    anomaly: str = ""
    """One of `ANOMALIES`, or empty."""
    counted: tuple[Transition, ...] = ()
    """The transitions of events of this VM. `apply_scope` sets it, and leaves in `transitions` those to publish."""


def continuity_of(state: State, document: Document, now: Instant, poll_interval: float) -> Continuity:
    """How a document that was read `now` follows on the state's; `poll_interval` is in seconds."""
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
    anew = gap > AGREEING_SECONDS or (mono is None and wall < 0)  # set back over a restart: its length is not known
    return Continuity(now, observed_seconds, gap, now.since(last), tuple(unseen), steady, anew)


def reset_after(state: State, document: Document, continuity: Continuity) -> Reset | None:
    """The reset after this document: a new one if `DocumentIncarnation` went down, the old one while it is too recent
    to act on any document, else None."""
    lower = state.document is not None and document.incarnation < state.document.incarnation
    if lower or (state.reset is not None and continuity.anew):
        return Reset(continuity.observed_seconds)
    if state.reset is None:
        return None
    older = replace(state.reset, documents=state.reset.documents + 1)
    passed = continuity.observed_seconds - older.observed_seconds
    return None if older.documents >= RESET_DOCUMENTS or passed >= RESET_SECONDS else older


def is_unchanged(one: Document, other: Document) -> bool:
    """Whether nothing changed: the same number and the same events."""
    return one is other or (one.incarnation == other.incarnation and _has_same_events(one, other))


def _has_same_events(one: Document, other: Document) -> bool:
    """The same events, whatever their order: the documentation gives it no meaning, so a new one is no change."""
    if one.rejected != other.rejected or len(one.events) != len(other.events):
        return False
    return one.events == other.events or {e.key: e for e in one.events} == {e.key: e for e in other.events}


def anomaly_of(state: State, document: Document) -> str:
    """What is not normal about `DocumentIncarnation`, one of `ANOMALIES`; empty where nothing is."""
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
    """Why the time before the document was not observed: `restart` or `gap`; empty where it was."""
    return tuple(word for word in continuity.unseen if word in ("restart", "gap"))


# -- outages: recorded after 10 s, and Azure may switch the service off

UNAVAILABLE_SECONDS: Final = 10.0
SWITCH_OFF_NEAR_SECONDS: Final = 20 * 3600.0
"""Azure switches the service off for the VM after 24 hours without a request [Enabling and disabling]."""
NOTED_SECONDS: Final = 10.0


def outage_after(outage: Outage | None, began: Instant, ended: Instant, reason: str) -> Outage:
    """The outage after a poll has failed, which took from `began` to `ended`."""
    if outage is None:
        outage = Outage(began, reason, began)
    elif outage.last_failure.mono is None:  # of an earlier process
        absent = absent_until(outage, began)
        outage = replace(outage, last_failure=began, absent=absent, first_failure_in_process=began)
    return replace(outage, last_failure=ended, silent=outage.silent + ended.minus(outage.last_failure))


def is_outage_noted(before: Outage | None, after: Outage) -> bool:
    """Whether `before`, the outage that `after` continues, need not be written anew yet: a restart is to know until
    when the source was silent, to within `NOTED_SECONDS`."""
    if before is None or before.first_failure_in_process != after.first_failure_in_process:
        return False
    return before.silent // NOTED_SECONDS == after.silent // NOTED_SECONDS


def absent_until(outage: Outage, now: Instant) -> float | None:
    """For how many seconds of the outage no agent polled, by a poll `now`; None where it is not known."""
    if outage.last_failure.mono is not None:
        return outage.absent
    away = now.since(outage.last_failure)
    return None if away is None or outage.absent is None else outage.absent + away


def seconds_until_outage_recorded(state: State, mono: float) -> float:
    """Seconds until an outage that this process observes has to be recorded; infinity when there is none."""
    outage = state.outage
    if outage is None or outage.recorded or outage.known_since.mono is None:
        return float("inf")
    return outage.known_since.mono + UNAVAILABLE_SECONDS - mono
