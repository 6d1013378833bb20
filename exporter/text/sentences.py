"""The page's sentences about spans, events and approvals. Text only: nothing here is markup."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from exporter.core.interruption import THRESHOLD_SECONDS
from exporter.core.messages import why
from exporter.core.policy import Coordination, Decision, Mode, Verdict
from exporter.core.state import Instant, Phase, StartedBy, Tracked

UNKNOWN: Final = "not known"
LEAST_INTERRUPTION: Final = f"≥\u00a0{THRESHOLD_SECONDS:g}\u00a0s"
"""What the observer can feel: anything shorter passes unseen."""
MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
TENTHS_BELOW: Final = 10.0

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


def span(seconds: float) -> str:
    """A length of time with its two greatest units: `4.2 s`, `14 min 30 s`, `3 d 4 h`. A unit stays with its number."""
    if seconds < TENTHS_BELOW and seconds != int(seconds):
        return f"{seconds:.1f}\u00a0s"
    whole = int(seconds)
    for size, name, rest_size, rest_name in (
        (DAY, "d", HOUR, "h"),
        (HOUR, "h", MINUTE, "min"),
        (MINUTE, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // rest_size
            return f"{whole // size}\u00a0{name}" + (f" {rest}\u00a0{rest_name}" if rest else "")
    return f"{whole}\u00a0s"


def distance(moment: datetime, now: datetime) -> str:
    """`in 14 min 30 s` or `3 min ago`."""
    away = moment - now
    if abs(away) < timedelta(seconds=1):
        return "now"
    return f"in {span(away.total_seconds())}" if away > timedelta() else f"{span(-away.total_seconds())} ago"


def ago(then: Instant, now: Instant) -> str:
    """How long ago something was, which is never said to come."""
    seconds = now.since(then)
    if seconds is None:
        return "the clock was set back since"
    return "now" if seconds < 1 else f"{span(seconds)} ago"


def optional_span(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else span(max(0.0, seconds))


def duration(seconds: int | None) -> str:
    """What Azure says of the length of an interruption."""
    if seconds is None or seconds < 0:
        return "Azure does not say"
    return "none" if seconds == 0 else f"{span(seconds)}, says Azure"


def failure(reason: str) -> str:
    return FAILURE.get(reason, reason.replace("-", " ") or "no reason given")


def decision(found: Decision | None, tracked: Tracked) -> str:
    """What we do about an event, and why."""
    if tracked.approval.accepted_at is not None:
        return "Approved by us" + (f" (rule {tracked.approval.rule})" if tracked.approval.rule else "")
    if found is None:
        return "Not decided yet"
    if found.verdict is Verdict.HOLD:
        return f"Held: {why(found)}"
    tried = tracked.approval.attempts
    if not tried:
        return f"Approving: {why(found)}"
    last = tracked.approval.last_failure
    return f"Approving: {why(found)}; {tried} sent so far" + (f", the last failed ({last})" if last else "")


def started_by(who: StartedBy | None, rule: str = "") -> str:
    """Who let an event start."""
    match who:
        case StartedBy.US:
            return f"us (rule {rule})" if rule else "us"
        case StartedBy.NOT_US:
            return "somebody else, before NotBefore"
        case StartedBy.TIME:
            return "nobody: its time had come"
        case _:
            return UNKNOWN


def approved_by(account: Mapping[str, Any]) -> str:
    """Who approved an event that is over, from its account."""
    if account["started_at"] is None and account["approved_at"] is None:
        return "nobody, as far as seen"
    if account["started_at"] is None or account["approved_by"] == StartedBy.US:
        return started_by(StartedBy.US, account["rule"] or "")
    return started_by(StartedBy(account["approved_by"])) if account["approved_by"] else UNKNOWN


def felt(account: Mapping[str, Any]) -> str:
    """What an event cost, as far as it could be felt from inside. Never 0: what is too short is not felt."""
    count, together = account["interruptions_observed"], account["interruption_seconds"]
    if count is None:
        return "not watched"
    if not count or together is None:
        words = f"none observed ({LEAST_INTERRUPTION})"
    elif count == 1:
        words = span(together)
    else:
        words = f"{span(together)} in {count} pieces, the longest {span(account['interruption_longest_seconds'])}"
    if account["gaps"]:
        away = account["gap_seconds"]
        words += "; not watched for " + ("a time that is not known" if away is None else span(away))
    return words


def kind(tracked: Tracked) -> str:
    """An event's type, as a title may say it."""
    found = tracked.event.event_type
    return found if found and found in MEANING else "Event of unknown kind"


def headline(tracked: Tracked, now: Instant) -> str:
    """An event in half a sentence: what, and when."""
    name, start = kind(tracked), tracked.event.not_before
    if tracked.phase is Phase.STARTED:
        on_for = _on_for(tracked, now)
        if on_for is None:
            return f"{name} is on"
        return f"{name} has been on for {span(on_for)}" if on_for else f"{name} has just started"
    if start is None:
        return f"{name} is coming, at a time that can't be read"
    if start <= now.wall:
        return f"{name} is due: it may start any moment"
    return f"{name} {distance(start, now.wall)}, at the earliest"


def when(tracked: Tracked, now: Instant) -> str:
    """When an event starts, or since when it is on."""
    start = tracked.event.not_before
    if tracked.phase is Phase.STARTED:
        on_for = _on_for(tracked, now)
        if on_for is None:
            return "On, for a time that is not known: the clock was set back"
        return f"On for {span(on_for)}" if on_for else "Just started"
    if start is None:
        return "At a time that can't be read"
    if start <= now.wall:
        return "Due: it may start any moment"
    return f"In {span((start - now.wall).total_seconds())}, at the earliest"


def _on_for(tracked: Tracked, now: Instant) -> int | None:
    seconds = now.since(tracked.started or tracked.sighted)
    return None if seconds is None else int(seconds)


def size(count: int) -> str:
    """Bytes, in the unit that a person would choose."""
    return f"{count / 2**10:.0f}\u00a0KiB" if count < 2**20 else f"{count / 2**20:.0f}\u00a0MiB"
