"""What is said of an event, of a decision and of the metadata service, by the JSON value of `status`. Text only,
without markup."""

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
    "Freeze": "Memory and open files stay, CPU and network may be suspended.",
    "Reboot": "The VM is rebooted. What is only in memory is lost.",
    "Redeploy": "The VM moves to another host. Temporary disks are lost.",
    "Preempt": "This Spot VM is being deleted. Temporary disks are lost.",
    "Terminate": "The VM is to be deleted.",
}
"""From Azure's documentation of Scheduled Events, section "Event properties". How long a freeze lasts is said by
`impact_text`: each announces its own duration."""

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

MODES: Final[Mapping[str, str]] = {
    Mode.OFF: "off: nothing is approved",
    Mode.DRY_RUN: "dry-run: decides, but never approves",
    Mode.ENFORCE: "enforce: approves what a rule matches",
}
COORDINATIONS: Final[Mapping[str, str]] = {
    Coordination.LEADER: "the first VM of an event approves",
    Coordination.ANY: "any VM of an event approves",
    Coordination.SINGLE: "only events that touch one VM are approved",
}


def failure(reason: str) -> str:
    """Why a poll failed, to follow "The metadata service can't be read:"."""
    return FAILURE.get(reason, reason.replace("-", " ") or "no reason given")


# --- the verdict ------------------------------------------------------------------------------------------------------


def verdict(value: Json) -> dict[str, Any]:
    """The status in one sentence: `state` (none, scheduled, started, or unknown), `title`, and `lines` below it.

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
        known = f"Known then: {_worst(value)}." if events else "No event of this VM was known then."
        return "unknown", "Not known at the moment", (_age(source), known)
    state, title, lines = _present(value)
    return state, title, (lines if source["up"] else (*lines, _age(source)))


def _present(value: Json) -> _Verdict:
    """What a document that was just read says."""
    source, events = value["source"], value["events"]
    if events:
        started = [event for event in events if event["status"] == Phase.STARTED]
        beside = next((event for event in started if event is not events[0]), None)
        lines = (impact_text(events[0]), f"Also: {headline(beside)}." if beside else "")
        return "started" if started else "scheduled", _worst(value), tuple(line for line in lines if line)
    if source["warming"]:
        enabling = "Azure may still be enabling the service for this VM: up to five minutes after the first request."
        return "unknown", "Not known yet", (enabling,)
    if value["document"] and value["document"]["unreadable"]:
        unreadable = "The document holds events that can't be read; the log and the records have them."
        return "unknown", "Not known for sure", (unreadable,)
    nothing = f"The metadata service names no event for this VM, as of {_utc(source['last_read_at'])}."
    return "none", "Nothing is planned", (nothing,)


def _worst(value: Json) -> str:
    """The worst event, and how many more there are."""
    more = len(value["events"]) - 1 + value["events_omitted"]
    return headline(value["events"][0]) + (f", and {counted(more, 'more event')}" if more else "")


def _never_read(source: Json) -> str:
    if not source["failure"]:
        return "The metadata service has not been asked yet."
    return f"The metadata service gave no document so far: {failure(source['failure'])}."


def _age(source: Json) -> str:
    """That the source fails, why, and how old everything else is."""
    reason, read = source["failure"], _utc(source["last_read_at"])
    fails = f"can't be read: {failure(reason)}" if reason else "was not read again"
    passed = source["last_read_seconds_ago"]
    when = f"at {read}, before the clock was set back" if passed is None else f"{ago(int(passed))}, at {read}"
    return f"The metadata service {fails}. This page shows what was known {when}."


def _utc(time: str) -> str:
    return moment(datetime.fromisoformat(time)).replace("Z", " UTC")


# --- events -----------------------------------------------------------------------------------------------------------


def decision_text(event: Json) -> str:
    """What the agent does about an event, and why."""
    decision, attempts = event["decision"], event["approval_attempts"]
    if event["approved_at"] is not None:
        return "Approved by us" + (f" (rule {event['approval_rule']})" if event["approval_rule"] else "")
    if decision is None:
        return "Not decided yet"
    if decision["decision"] == Verdict.HOLD:
        return f"Held: {decision['why']}"
    if not attempts:
        return f"Approving: {decision['why']}"
    last = f", the last failed ({event['approval_failure']})" if event["approval_failure"] else ""
    return f"Approving: {decision['why']}; {attempts} sent so far{last}"


def impact_text(event: Json) -> str:
    """What an event does to the VM; of a freeze as long as Azure announced it, and as it was felt so far."""
    stays = MEANING.get(event["event_type"], "")
    if event["event_type"] != "Freeze":
        return stays
    announced = event["announced_duration_seconds"]
    if announced is None:
        pause = "The VM pauses, Azure does not say for how long."
    elif announced == 0:
        pause = "Azure announces that the VM does not pause."
    else:
        pause = f"Azure announces a pause of {span(announced)}."
    return " ".join(text for text in (pause, stays, _interruption_text(event)) if text)


def _interruption_text(event: Json) -> str:
    """How long this VM stood still while the event was Started; empty where nothing was observed."""
    seconds, announced = event["interruption_seconds"], event["announced_duration_seconds"]
    if not event["interruptions_observed"] or seconds is None:
        return ""
    longer = announced is not None and seconds > announced + 1
    return f"This VM stood still for {span(seconds)} so far{', longer than announced' if longer else ''}."


def headline(event: Json) -> str:
    """An event in half a sentence: what, and when."""
    name = event["event_type"] if event["event_type"] in MEANING else "Event of unknown kind"
    words = start_text(event)[0].lower() + start_text(event)[1:]
    if event["status"] == Phase.STARTED:
        return f"{name} has started" if _seconds_started(event) is None else f"{name} {words}"
    if event["not_before_in_seconds"] is None:
        return f"{name} is coming, {words}"
    return f"{name} is {words}" if _due(event) else f"{name} {words}"


def start_text(event: Json) -> str:
    """When an event starts, or since when it is on, in the words of `headline`."""
    left = event["not_before_in_seconds"]
    if event["status"] == Phase.STARTED:
        seconds = _seconds_started(event)
        if seconds is None:
            return "Started at a time that is not known: the clock was set back"
        return f"Started {ago(seconds)}"
    if left is None:
        return "At a time that can't be read"
    if _due(event):
        return "Due: it may start any moment"  # from a second before NotBefore on
    return f"In {span(int(left))}, at the earliest"


def not_before_distance(event: Json) -> str:
    """How far away NotBefore is, in the words of `start_text`; it must be known."""
    left = event["not_before_in_seconds"]
    if not _due(event):
        return f"in {span(int(left))}"
    return "due" if left > -1 else f"due for {span(int(-left))}"


def _due(event: Json) -> bool:
    return bool(event["not_before_in_seconds"] < 1)


def _seconds_started(event: Json) -> int | None:
    seconds = event["started_seconds_ago"] if event["started_at"] else event["first_seen_seconds_ago"]
    return None if seconds is None else int(seconds)
