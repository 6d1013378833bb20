"""Gives each interruption that was noticed to the event that it belongs to, or to none, and says so."""

from __future__ import annotations

from collections import deque
from typing import Final

from exporter.agent.ports import Metrics, Senses, Turn
from exporter.core.interruption import WINDOW_BEFORE_POLLS, attribute, felt
from exporter.core.state import Interruption, Kind, Step, Tracked

PENDING: Final = 100
TOLD_AN_HOUR: Final = 20
"""Records of interruptions, of events and of none each. A starved machine stalls several times a second, for days:
that belongs in the histogram, which counts them all, and in the events' accounts."""
_HOUR: Final = 3600.0


class Attribution:
    """Holds what was noticed until it is told. An interruption that fits no event waits two polls: its event may show
    only then."""

    def __init__(self, poll_interval: float, metrics: Metrics, senses: Senses) -> None:
        self._poll_interval = poll_interval
        self._patience = WINDOW_BEFORE_POLLS * poll_interval + 1.0
        self._metrics = metrics
        self._senses = senses
        self._pending: deque[Interruption] = deque(maxlen=PENDING)
        self._told: dict[bool, deque[float]] = {True: deque(maxlen=TOLD_AN_HOUR), False: deque(maxlen=TOLD_AN_HOUR)}

    def before(self, turn: Turn) -> None:
        """Before a document is looked at: what an event that it ends has cost belongs in that event's account."""
        self._pending.extend(self._senses.interruptions())
        self._give(turn)

    def after(self, turn: Turn, step: Step) -> None:
        """After it: the event may have started with this document, or in the gap before it."""
        gaps = [found.gap or 0.0 for found in step.transitions if found.kind is Kind.STARTED]
        self._give(turn, max(gaps, default=0.0), self._patience)

    def last(self, turn: Turn) -> None:
        """Before the agent stops: whoever waits now waits in vain."""
        self._pending.extend(self._senses.interruptions())
        self._give(turn, patience=-1.0)

    def _give(self, turn: Turn, blind: float = 0.0, patience: float = float("inf")) -> None:
        waiting = list(self._pending)
        self._pending.clear()
        for found in waiting:
            tracked = attribute(turn.state, turn.writer.vm, found, self._poll_interval, blind)
            waited = (turn.now.mono or 0.0) - (found.at.mono or 0.0)
            if tracked is None and found.seconds > 0 and waited <= patience:
                self._pending.append(found)
                continue
            if tracked is not None:
                tracked = felt(tracked, found)
                turn.history(tracked)
            self._tell(turn, found, tracked)

    def _tell(self, turn: Turn, found: Interruption, tracked: Tracked | None) -> None:
        event_id = tracked.event.event_id if tracked else ""
        late = tracked is not None and tracked.closed_at is not None  # no account will tell it
        if late or self._may_tell(tracked is not None, turn.now.mono or 0.0):
            turn.record(turn.writer.interruption(turn.state, found.kind.value, found.seconds, found.at.wall, tracked))
        turn.announce(
            lambda: self._metrics.interruption(found.kind.value, tracked is not None, found.seconds, event_id)
        )

    def _may_tell(self, attributed: bool, mono: float) -> bool:
        told = self._told[attributed]
        if len(told) == TOLD_AN_HOUR and mono - told[0] < _HOUR:
            return False
        told.append(mono)
        return True
