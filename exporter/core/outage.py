"""Outages of the metadata service: when one is recorded (after 10 s), and when Azure may switch the service off."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from exporter.core.state import Instant, Outage, SourceStatus, State

UNAVAILABLE_SECONDS: Final = 10.0
SWITCH_OFF_NEAR_SECONDS: Final = 20 * 3600.0
"""Azure switches the service off for the VM after 24 hours without a request [Enabling and disabling]."""


def began(state: State, at: Instant, reason: str) -> State:
    """The state after a poll that began `at` has failed: with an outage, which this process observes from then on."""
    outage = state.outage
    if outage is None:
        return replace(state, outage=Outage(at, reason))
    if outage.known_since.mono is None:
        return replace(state, outage=replace(outage, first_failure_here=at))
    return state


def seconds_until_recorded(state: State, mono: float) -> float | None:
    """Seconds until an outage that this process observes has to be recorded; None when there is none."""
    outage = state.outage
    if outage is None or outage.recorded or outage.known_since.mono is None:
        return None
    return outage.known_since.mono + UNAVAILABLE_SECONDS - mono


def source_failed(status: SourceStatus, now: Instant, reason: str) -> SourceStatus:
    """The source's status after a poll that failed for this reason."""
    since = status.failing or now
    return replace(
        status,
        up=False,
        last_poll=now.wall,
        failure=reason,
        failing_since=since.wall,
        failing_since_mono=since.mono,
    )


def source_answered(now: Instant) -> SourceStatus:
    """The source's status after a poll that gave a whole document."""
    return SourceStatus(up=True, last_poll=now.wall, last_success=now.wall, last_success_mono=now.mono)
