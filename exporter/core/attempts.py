"""When an approval may be sent: on how fresh a document, and how long after the attempt before."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from exporter.core.memory import with_tracked
from exporter.core.state import Approval, Instant, State, Tracked
from exporter.retry import Backoff

FRESH_SECONDS: Final = 5.0
POST_BACKOFF: Final = Backoff(5.0, 60.0)
NEVER_LEFT: Final = frozenset({"connect", "dns", "tls"})
"""Failures of a POST before there was a connection to send it on."""


def retry_delay(attempts: int) -> float:
    """Seconds to wait after the n-th POST that was not answered 200: 5, 10, 20, 40, 60, 60, …"""
    return POST_BACKOFF.after(attempts)


def attempt_due(tracked: Tracked, now: Instant, process_start: Instant) -> bool:
    """Whether an approvable event may be POSTed now: not before its wait is over, nor before Azure asked us to.

    Within one process the monotonic clock decides. Across a restart only the wall clock is left; one that went back
    is worth nothing, and when a POST was sent that its process did not outlive, nobody noted: in both cases the wait
    begins anew with the process.
    """
    last = tracked.approval.last_attempt
    if last is None:
        return True
    wait = max(retry_delay(tracked.approval.attempts), tracked.approval.asked_to_wait)
    if last.mono is not None and now.mono is not None:
        return now.mono - last.mono >= wait
    since = (now.wall - last.wall).total_seconds()
    if since >= 0 and not tracked.approval.in_flight:
        return since >= wait
    return (now.mono or 0.0) - (process_start.mono or 0.0) >= wait


def attempting(before: Approval, now: Instant, rule: str) -> Approval:
    """What is to be committed before a POST. One still in flight was cut off with its process: it stays in doubt."""
    return replace(
        before,
        attempts=before.attempts + 1,
        last_attempt=now,
        rule=rule,
        in_flight=True,
        unanswered=before.unanswered or before.in_flight,
    )


def accepted(before: Approval, at: datetime) -> Approval:
    """After a 200."""
    return replace(before, accepted_at=at, in_flight=False, unanswered=False, last_failure="")


def not_accepted(before: Approval, reason: str, status: int | None, asked_to_wait: float = 0.0) -> Approval:
    """After any other answer, or none. Azure did not take what it called our mistake; anything else leaves a doubt."""
    refused = reason in NEVER_LEFT or (status is not None and 400 <= status < 500)  # noqa: PLR2004  # client errors
    return replace(
        before,
        in_flight=False,
        unanswered=before.unanswered or not refused,
        last_failure=reason,
        asked_to_wait=asked_to_wait,
    )


def taken_back(state: State, key: str, before: Approval) -> State:
    """The state as if an attempt that was marked had not been: it was not sent. `before` is what was sent before it."""
    tracked = state.history(key)
    if tracked is not None:
        approval = replace(before, in_flight=False, unanswered=tracked.approval.unanswered)
        return with_tracked(state, replace(tracked, approval=approval))
    if key not in state.sent:
        return state
    others = {name: approval for name, approval in state.sent.items() if name != key}
    kept = {key: before} if before.attempts else {}
    return replace(state, sent={**others, **kept})
