"""Sentences about events, decisions, and the metadata service, from the JSON value of `status`. Plain text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from exporter.core.policy import Coordination, Mode, Verdict
from exporter.core.state import Phase
from exporter.text.format import NO_BREAK_SPACE, ago, counted, moment, span

Json = Mapping[str, Any]
"""A JSON object of the status."""

MEANING: Final[Mapping[str, str]] = {
    "Freeze": "Memory and open files are preserved; CPU and network may be suspended.",
    "Reboot": "The VM is rebooted. Data that is only in memory is lost.",
    "Redeploy": "The VM moves to another host. Temporary disks are lost.",
    "Preempt": "This Spot VM is deleted. Temporary disks are lost.",
    "Terminate": "The VM is deleted.",
}
"""The effect of each event type [Azure, Scheduled Events: Event properties]. `impact_text` adds a freeze's duration."""

FAILURE: Final[Mapping[str, str]] = {
    "timeout": "it did not respond in time",
    "connect": "the connection failed",
    "dns": "its name does not resolve",
    "tls": "the TLS handshake failed",
    "reset": "the connection was reset",
    "protocol": "the response is not HTTP",
    "redirect": "it returned a redirect",
    "status-400": "it rejected the request (400)",
    "forbidden": "it denied access to this process (401 or 403)",
    "not-found": "it returned 404",
    "gone": "it is being updated (410)",
    "throttled": "too many requests from this VM (429)",
    "server-error": "it returned a server error (5xx)",
    "too-large": "the response is too large",
    "encoding": "the response has a content encoding",
    "malformed": "the response is not a valid document",
}

MODES: Final[Mapping[str, str]] = {
    Mode.OFF: "off: decides and approves nothing",
    Mode.DRY_RUN: "dry-run: decides, but approves nothing",
    Mode.ENFORCE: "enforce: approves events that match a rule",
}
COORDINATIONS: Final[Mapping[str, str]] = {
    Coordination.LEADER: "leader: only the first VM in Resources approves",
    Coordination.ANY: "any: every VM in Resources may approve",
    Coordination.SINGLE: "single: approves only events whose Resources are just this VM",
}


def failure(reason: str) -> str:
    """Return why a poll failed, as a clause that follows "The metadata service can't be read:"."""
    return FAILURE.get(reason, reason.replace("-", " ") or "no reason given")


# --- the verdict ------------------------------------------------------------------------------------------------------


def verdict(value: Json) -> dict[str, Any]:
    """Return the verdict on a status: `state` (none, scheduled, started, or unknown), `title`, and `lines` below it.

    It is never `none` while the metadata service returns no data: the state is then `unknown`.
    """
    state, title, lines = _verdict(value)
    plain = [text.replace(NO_BREAK_SPACE, " ") for text in (title, *lines)]
    return {"state": state, "title": plain[0], "lines": plain[1:]}


_Verdict = tuple[str, str, tuple[str, ...]]


def _verdict(value: Json) -> _Verdict:
    source, events = value["source"], value["events"]
    if source["last_read_at"] is None:
        return "unknown", "Not known yet", (_never_read(source),)
    if not source["fresh"]:
        known = f"Last known: {_worst(value)}." if events else "Last known: no event of this VM."
        return "unknown", "Not known at the moment", (_age(source), known)
    state, title, lines = _present(value)
    return state, title, (lines if source["up"] else (*lines, _age(source)))


def _present(value: Json) -> _Verdict:
    """Return the verdict on a document that is fresh."""
    source, events = value["source"], value["events"]
    if events:
        started = [event for event in events if event["status"] == Phase.STARTED]
        other = next((event for event in started if event is not events[0]), None)
        lines = (impact_text(events[0]), f"Also: {headline(other)}." if other else "")
        return "started" if started else "scheduled", _worst(value), tuple(line for line in lines if line)
    if source["warming"]:
        enabling = "Azure may still be enabling Scheduled Events for this VM, up to 5 minutes after the first request."
        return "unknown", "Not known yet", (enabling,)
    if value["document"] and value["document"]["unreadable"]:
        unreadable = "The document contains events that can't be read; see the log and the records."
        return "unknown", "Partly unknown", (unreadable,)
    nothing = f"The metadata service lists no event for this VM, as of {_utc(source['last_read_at'])}."
    return "none", "Nothing is planned", (nothing,)


def _worst(value: Json) -> str:
    """Return the headline of the most severe event, and the number of further events."""
    more = len(value["events"]) - 1 + value["events_omitted"]
    return headline(value["events"][0]) + (f", and {counted(more, 'more event')}" if more else "")


def _never_read(source: Json) -> str:
    if not source["failure"]:
        return "The metadata service has not been polled yet."
    return f"The metadata service has returned no document so far: {failure(source['failure'])}."


def _age(source: Json) -> str:
    """Return the source's failure, and the age of the data."""
    reason, read = source["failure"], _utc(source["last_read_at"])
    fails = f"can't be read: {failure(reason)}" if reason else "has not been read since"
    passed = source["last_read_seconds_ago"]
    age = "before the clock was set back" if passed is None else ago(int(passed))
    return f"The metadata service {fails}. This page shows data from {read} ({age})."


def _utc(time: str) -> str:
    return moment(datetime.fromisoformat(time)).replace("Z", " UTC")


# --- events -----------------------------------------------------------------------------------------------------------


def decision_text(event: Json) -> str:
    """Return the agent's decision on an event, with its reason."""
    decision, attempts = event["decision"], event["approval_attempts"]
    if event["approved_at"] is not None:
        return "Approved by this VM" + (f" (rule {event['approval_rule']})" if event["approval_rule"] else "")
    if decision is None:
        return "Not decided yet"
    if decision["decision"] == Verdict.HOLD:
        return f"Held: {decision['why']}"
    if not attempts:
        return f"Approving: {decision['why']}"
    last = f", the last failed ({event['approval_failure']})" if event["approval_failure"] else ""
    return f"Approving: {decision['why']}; {counted(attempts, 'request')} sent so far{last}"


def impact_text(event: Json) -> str:
    """Return an event's effect on the VM; for a freeze with its announced duration and the observed interruption."""
    effect = MEANING.get(event["event_type"], "")
    if event["event_type"] != "Freeze":
        return effect
    announced = event["announced_duration_seconds"]
    if announced is None:
        pause = "The VM pauses; Azure announces no duration."
    elif announced == 0:
        pause = "Azure announces that the VM does not pause."
    else:
        pause = f"Azure announces a pause of {span(announced)}."
    return " ".join(text for text in (pause, effect, _interruption_text(event)) if text)


def _interruption_text(event: Json) -> str:
    """Return the interruption of this VM observed while the event was Started; "" if none was observed."""
    seconds, announced = event["interruption_seconds"], event["announced_duration_seconds"]
    if not event["interruptions_observed"] or seconds is None:
        return ""
    longer = announced is not None and seconds > announced + 1
    return f"This VM was interrupted for {span(seconds)} so far{', longer than announced' if longer else ''}."


def headline(event: Json) -> str:
    """Return an event's type and time as a clause."""
    name = event["event_type"] if event["event_type"] in MEANING else "Event of unknown type"
    words = start_text(event)[0].lower() + start_text(event)[1:]
    if event["status"] == Phase.STARTED:
        return f"{name} has started" if _seconds_started(event) is None else f"{name} {words}"
    if event["not_before_in_seconds"] is None:
        return f"{name} is scheduled, {words}"
    return f"{name} is {words}" if _due(event) else f"{name} {words}"


def start_text(event: Json) -> str:
    """Return when an event starts or when it started, as `headline` uses it."""
    left = event["not_before_in_seconds"]
    if event["status"] == Phase.STARTED:
        seconds = _seconds_started(event)
        if seconds is None:
            return "Started at an unknown time (the clock was set back)"
        return f"Started {ago(seconds)}"
    if left is None:
        return "At a time that can't be read"
    if _due(event):
        return "Due: it may start at any moment"  # from a second before NotBefore on
    return f"In {span(int(left))} at the earliest"


def not_before_distance(event: Json) -> str:
    """Return the distance to NotBefore, which must be known, in the units of `start_text`."""
    left = event["not_before_in_seconds"]
    if not _due(event):
        return f"in {span(int(left))}"
    return "due" if left > -1 else f"due for {span(int(-left))}"


def _due(event: Json) -> bool:
    return bool(event["not_before_in_seconds"] < 1)


def _seconds_started(event: Json) -> int | None:
    seconds = event["started_seconds_ago"] if event["started_at"] else event["first_seen_seconds_ago"]
    return None if seconds is None else int(seconds)
