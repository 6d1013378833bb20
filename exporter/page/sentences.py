"""What the page says of an event, of a decision and of the metadata service. Text only, without markup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporter.core.messages import why
from exporter.core.policy import Coordination, Decision, Mode, Verdict
from exporter.core.state import Instant, Phase, Tracked
from exporter.text.format import distance, span

MEANING: Final[Mapping[str, str]] = {
    "Freeze": "The VM pauses for a few seconds. Memory and open files stay, CPU and network may be suspended.",
    "Reboot": "The VM is rebooted. What is only in memory is lost.",
    "Redeploy": "The VM moves to another host. Temporary disks are lost.",
    "Preempt": "This Spot VM is being deleted. Temporary disks are lost.",
    "Terminate": "The VM is to be deleted.",
}
"""From Azure's documentation of Scheduled Events, section "Event properties"."""

FAILURE: Final[Mapping[str, str]] = {
    "timeout": "it did not answer in time",
    "connect": "it can't be reached",
    "dns": "its name has no address",
    "tls": "TLS with it failed",
    "reset": "the connection broke",
    "protocol": "what answers does not speak HTTP",
    "redirect": "it answered with a redirect",
    "status-400": "it refused the request (400)",
    "forbidden": "it refuses this process (401 or 403)",
    "not-found": "it answered 404",
    "gone": "it is being updated (410)",
    "throttled": "too many requests from this VM (429)",
    "server-error": "it answered with a server error (5xx)",
    "too-large": "its answer was too large",
    "encoding": "its answer was encoded",
    "malformed": "its answer was not a document",
}

MODES: Final[Mapping[Mode, str]] = {
    Mode.OFF: "off: nothing is approved",
    Mode.DRY_RUN: "dry-run: decides, but never approves",
    Mode.ENFORCE: "enforce: approves what a rule matches",
}
COORDINATIONS: Final[Mapping[Coordination, str]] = {
    Coordination.LEADER: "the first VM of an event approves",
    Coordination.ANY: "any VM of an event approves",
    Coordination.SINGLE: "only events that touch one VM are approved",
}


def failure(reason: str) -> str:
    """Why a poll failed, to follow "The metadata service can't be read:"."""
    return FAILURE.get(reason, reason.replace("-", " ") or "no reason given")


def decision_text(decision: Decision | None, tracked: Tracked) -> str:
    """What the agent does about an event, and why."""
    approval = tracked.approval
    if approval.accepted_at is not None:
        return "Approved by us" + (f" (rule {approval.rule})" if approval.rule else "")
    if decision is None:
        return "Not decided yet"
    if decision.verdict is Verdict.HOLD:
        return f"Held: {why(decision)}"
    if not approval.attempts:
        return f"Approving: {why(decision)}"
    last = f", the last failed ({approval.last_failure})" if approval.last_failure else ""
    return f"Approving: {why(decision)}; {approval.attempts} sent so far{last}"


def headline(tracked: Tracked, now: Instant) -> str:
    """An event in half a sentence: what, and when."""
    event_type, start = tracked.event.event_type, tracked.event.not_before
    name = event_type if event_type in MEANING else "Event of unknown kind"
    if tracked.phase is Phase.STARTED:
        seconds = _seconds_started(tracked, now)
        if seconds is None:
            return f"{name} is on"
        return f"{name} has been on for {span(seconds)}" if seconds else f"{name} has just started"
    if start is None:
        return f"{name} is coming, at a time that can't be read"
    if start <= now.wall:
        return f"{name} is due: it may start any moment"
    return f"{name} {distance(start, now.wall)}, at the earliest"


def when(tracked: Tracked, now: Instant) -> str:
    """When an event starts, or since when it is on."""
    start = tracked.event.not_before
    if tracked.phase is Phase.STARTED:
        seconds = _seconds_started(tracked, now)
        if seconds is None:
            return "On, for a time that is not known: the clock was set back"
        return f"On for {span(seconds)}" if seconds else "Just started"
    if start is None:
        return "At a time that can't be read"
    if start <= now.wall:
        return "Due: it may start any moment"
    return f"In {span((start - now.wall).total_seconds())}, at the earliest"


def _seconds_started(tracked: Tracked, now: Instant) -> int | None:
    seconds = now.since(tracked.started or tracked.first_seen_instant)
    return None if seconds is None else int(seconds)
