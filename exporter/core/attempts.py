"""Attempts to send an approval: when one is due, and how its result changes the event's `Approval`."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec.structs import replace

from exporter.core.memory import with_tracked
from exporter.core.state import Approval, Instant, State, TrackedEvent
from exporter.errors import Backoff

FRESH_SECONDS: Final = 5.0
POST_BACKOFF: Final = Backoff(5.0, 60.0)
"""Wait in seconds after the n-th POST that Azure didn't accept: 5, 10, 20, 40, 60, 60, …"""


def attempt_due(tracked: TrackedEvent, now: Instant, process_start: Instant) -> bool:
    """Return whether an approvable event may be POSTed now: the backoff and Azure's `Retry-After` have passed.

    Within one process the monotonic clock decides. Across a restart only the wall clock remains, which may have been
    set in between, so the wait starts again with the process.
    """
    last = tracked.approval.last_attempt
    if last is None:
        return True
    since = now.minus(last) if last.mono is not None else now.minus(process_start)
    return since >= max(POST_BACKOFF.after(tracked.approval.attempts), tracked.approval.retry_after_seconds)


def begin_attempt(before: Approval, now: Instant, rule: str) -> Approval:
    """Return the approval that is committed before a POST.

    An attempt still in flight belongs to an earlier process, so it counts as unanswered.
    """
    return replace(
        before,
        attempts=before.attempts + 1,
        last_attempt=now,
        rule=rule,
        in_flight=True,
        unanswered=before.unanswered or before.in_flight,
    )


def mark_accepted(before: Approval, at: datetime) -> Approval:
    """Return the approval after Azure accepted the POST (HTTP 200) at the given time."""
    return replace(before, accepted_at=at, in_flight=False, unanswered=False, last_failure="")


def mark_failed(before: Approval, reason: str, status: int | None, retry_after_seconds: float = 0.0) -> Approval:
    """Return the approval after a POST with another HTTP status, or without a response (`status` is None).

    `retry_after_seconds` is Azure's `Retry-After`. A POST with a 4xx response was not accepted. After any other failure
    Azure may have accepted it.
    """
    refused = status is not None and 400 <= status < 500  # noqa: PLR2004  # client errors
    return replace(
        before,
        in_flight=False,
        unanswered=before.unanswered or not refused,
        last_failure=reason,
        failures={**before.failures, reason: before.failures.get(reason, 0) + 1},
        retry_after_seconds=retry_after_seconds,
    )


def cancel_attempt(state: State, unsent: TrackedEvent) -> State:
    """Return the state without an attempt that was marked but not sent.

    `unsent` is the tracked event before the mark.
    """
    if (tracked := state.tracked_or_closed(unsent.key)) is not None:
        approval = replace(unsent.approval, in_flight=False, unanswered=tracked.approval.unanswered)
        return with_tracked(state, replace(tracked, approval=approval))
    if unsent.key not in state.sent:
        return state
    others = {name: approval for name, approval in state.sent.items() if name != unsent.key}
    kept = {unsent.key: unsent.approval} if unsent.approval.attempts else {}
    return replace(state, sent={**others, **kept})
