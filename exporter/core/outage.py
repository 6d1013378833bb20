"""Outages of the metadata service: when one is recorded (after 10 s), and when Azure may switch the service off."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from exporter.core.state import Instant, Outage, State

UNAVAILABLE_SECONDS: Final = 10.0
SWITCH_OFF_NEAR_SECONDS: Final = 20 * 3600.0
"""Azure switches the service off for the VM after 24 hours without a request [Enabling and disabling]."""
NOTED_SECONDS: Final = 10.0


def failed(outage: Outage | None, began: Instant, ended: Instant, reason: str) -> Outage:
    """The outage after a poll has failed, which took from `began` to `ended`."""
    if outage is None:
        outage = Outage(began, reason, began)
    elif outage.last_failure.mono is None:  # of an earlier process
        absent = absent_until(outage, began)
        outage = replace(outage, last_failure=began, absent=absent, first_failure_here=began)
    return replace(outage, last_failure=ended, silent=outage.silent + ended.minus(outage.last_failure))


def is_noted(before: Outage | None, after: Outage) -> bool:
    """Whether `before`, the outage that `after` continues, need not be written anew yet: a restart is to know until
    when the source was silent, to within `NOTED_SECONDS`."""
    if before is None or before.first_failure_here != after.first_failure_here:
        return False
    return before.silent // NOTED_SECONDS == after.silent // NOTED_SECONDS


def absent_until(outage: Outage, now: Instant) -> float | None:
    """For how many seconds of the outage no agent polled, by a poll `now`; None where it is not known."""
    if outage.last_failure.mono is not None:
        return outage.absent
    away = now.since(outage.last_failure)
    return None if away is None or outage.absent is None else outage.absent + away


def seconds_until_recorded(state: State, mono: float) -> float:
    """Seconds until an outage that this process observes has to be recorded; infinity when there is none."""
    outage = state.outage
    if outage is None or outage.recorded or outage.known_since.mono is None:
        return float("inf")
    return outage.known_since.mono + UNAVAILABLE_SECONDS - mono
