"""How the source answers: what a failed poll means for the state, the log and the next poll."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from exporter.agent.ports import Metrics, Turn
from exporter.core.document import DocumentError
from exporter.core.records import DOCUMENT_REJECTED
from exporter.core.snapshot import SourceStatus
from exporter.core.state import Instant, Outage, State
from exporter.errors import SOURCE_BACKOFF, Failure, SourceFailure
from exporter.log.protocol import Logger

UNAVAILABLE_SECONDS: Final = 10.0
SWITCH_OFF_NEAR_SECONDS: Final = 20 * 3600.0
"""No request for 24 hours switches the service off for the VM [Enabling and disabling]."""
MALFORMED: Final = "malformed"

Speak = Callable[[Turn], bool]
"""Whether a record may be written in this turn yet."""


class SourceHealth:
    """Tells an outage once when it is 10 s old, and its end once."""

    def __init__(self, metrics: Metrics, log: Logger) -> None:
        self._metrics = metrics
        self.status = SourceStatus()
        self._log = log
        self._malformed = 0

    def delay(self, failure: Failure | DocumentError) -> float:
        """Seconds to leave the source alone: as the failure says, else as after any bad answer.

        Also where the poll interval is longer: after a bad answer the next poll comes within 2 s.
        """
        if isinstance(failure, DocumentError):
            self._malformed += 1
            return SOURCE_BACKOFF.after(self._malformed)
        return failure.delay() if isinstance(failure, SourceFailure) else SOURCE_BACKOFF.after(1)

    def failed(self, turn: Turn, failure: Failure | DocumentError, began: Instant, speak: Speak) -> None:
        """A poll that began then has failed."""
        reason = reason_of(failure)
        now, since = turn.now, self.status.failing or turn.now
        self.status = replace(
            self.status,
            up=False,
            last_poll=now.wall,
            failure=reason,
            failing_since=since.wall,
            failing_since_mono=since.mono,
        )
        self._log.failing("source", "poll.failed", reason=reason, detail=failure.detail)
        outage = turn.state.outage
        if outage is None:
            turn.become(replace(turn.state, outage=Outage(began, reason)))
        elif outage.felt.mono is None:
            turn.become(replace(turn.state, outage=replace(outage, here=began)))
        if isinstance(failure, DocumentError) and turn.state.document_rejected != failure.reason and speak(turn):
            say = f"An answer of the metadata service is no document: {failure.detail}"
            more = {"reason": failure.reason, "error": failure.detail}
            turn.record(turn.writer.about_vm(turn.state, DOCUMENT_REJECTED, "WARN", say, more))
            turn.become(replace(turn.state, document_rejected=failure.reason))
        self.tell(turn, speak)

    def tell(self, turn: Turn, speak: Speak) -> None:
        """Says once that the source fails, after it has for 10 s of this process."""
        outage = turn.state.outage
        if outage is None or outage.felt.mono is None:
            return
        lasted = turn.now.minus(outage.felt)
        if lasted >= SWITCH_OFF_NEAR_SECONDS and not outage.warned and speak(turn):
            turn.record(turn.writer.anomaly(turn.state, "switch-off-near"))
            turn.announce(lambda: self._metrics.anomaly("switch-off-near"))
            outage = replace(outage, warned=True)
            turn.become(replace(turn.state, outage=outage))
        if outage.told or lasted < UNAVAILABLE_SECONDS or not speak(turn):
            return
        turn.record(turn.writer.unavailable(turn.state, outage, self.status.failure or outage.reason, lasted))
        turn.become(replace(turn.state, outage=replace(outage, told=True)))

    def untold_for(self, state: State, mono: float) -> float | None:
        """Seconds until there is an outage to tell, of which this process knows; None when there is none."""
        outage = state.outage
        if outage is None or outage.told or outage.felt.mono is None:
            return None
        return outage.felt.mono + UNAVAILABLE_SECONDS - mono

    def succeeded(self, turn: Turn) -> None:
        """A poll was answered with a whole document."""
        self._malformed = 0
        now = turn.now
        self.status = replace(
            self.status,
            up=True,
            last_poll=now.wall,
            last_success=now.wall,
            last_success_mono=now.mono,
            failure="",
            failing_since=None,
        )
        self._log.recovered("source", "poll.recovered", quiet=UNAVAILABLE_SECONDS)
        outage = turn.state.outage
        if outage is None:
            return
        turn.become(replace(turn.state, outage=None))
        if not outage.told:
            return
        turn.record(turn.writer.recovered(turn.state, outage, outage.lasted(now)))


def reason_of(failure: Failure | DocumentError) -> str:
    """The word that counts a failed poll."""
    return failure.reason if isinstance(failure, Failure) else MALFORMED
