"""A second reading of the approval rules: slow, simple, and sharing nothing with the code it judges.

It parses the body of a document itself, asks the questions of the contract's table of hold reasons from top to bottom,
and returns the first that applies. If the contract allows two readings, it uses the one that holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct

MISSING = object()
"""A field that is absent, or that can't be used."""
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class PolicySetup(Struct, frozen=True):
    """The owner's settings, in the form of the settings file, and the current state of the machine."""

    mode: str = "enforce"
    coordination: str = "leader"
    takeover_after: float | None = None
    hold_file: str = ""
    rules: tuple[dict[str, Any], ...] = ()
    vm_name: str = "vm-0"
    conflict: bool = False
    file: Callable[[str], str] = lambda _path: "absent"
    """Maps a path to "present", "absent", or anything else, which means unknown."""
    writable: bool = True
    now: datetime | None = None
    """The machine's clock; None if it is unknown."""


class Past(Struct, frozen=True):
    """The past of one event. Seconds are those of successful polls, without gaps."""

    approved: bool = False
    seconds_known: float = 0.0
    seconds_unchanged: float = 0.0
    started: bool = False
    """It was seen Started at some time."""
    reset: bool = False
    """The DocumentIncarnation decreased a moment ago."""
    others: bool = False
    """Another event of the document was Started before, or this VM approves it or may have approved it."""
    theirs: bool = False
    """Its last readable names are those of other VMs."""


def read(body: bytes) -> list[Any]:
    """Return the array `Events` of a body, each object as a dictionary in which a field that occurs twice is
    MISSING."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            found[key] = MISSING if key in found else value
        return found

    events: list[Any] = json.loads(body.decode("utf-8-sig"), object_pairs_hook=once)["Events"]
    return events


def clean(text: object) -> bool:
    """Return whether it is a string without surrogates."""
    if not isinstance(text, str) or "\0" in text:
        return False
    return not any(0xD800 <= ord(letter) <= 0xDFFF for letter in text)


def is_whole_number(value: object) -> bool:
    """Return whether it is a JSON integer of 64 bits; no bool."""
    return type(value) is int and -(2**63) <= value < 2**63


def is_instant(text: object) -> bool:
    """Parse RFC 1123 or ISO 8601, by hand."""
    if not isinstance(text, str):
        return False
    text = text.strip()
    try:
        if "T" in text[10:11] or (" " in text[10:11] and text[4:5] == "-"):
            return is_iso(text)
        return is_rfc(text)
    except (ValueError, IndexError):
        return False


def is_rfc(text: str) -> bool:
    """Parse RFC 1123, such as `Mon, 19 Sep 2016 18:29:47 GMT`."""
    parts = text.split(" ")
    if parts[0].endswith(","):
        if not (parts[0][:-1].isascii() and parts[0][:-1].isalpha() and 3 <= len(parts[0]) - 1 <= 9):
            return False
        parts = parts[1:]
    day, month, year, clock, zone = parts
    digits = [day, year, *clock.split(":")]
    if not all(part.isascii() and part.isdigit() for part in digits) or [len(part) for part in digits[1:]] != [
        4,
        2,
        2,
        2,
    ]:
        return False
    if len(day) > 2 or month.title() not in MONTHS:
        return False
    if zone not in ("GMT", "UTC") and not (zone[0] in "+-" and zone[1:].isdigit() and len(zone) == 5):
        return False
    hour, minute, second = (int(part) for part in digits[2:])
    datetime(int(year), MONTHS.index(month.title()) + 1, int(day), hour, minute, second)  # noqa: DTZ001  # only whether it is one
    return True


def is_iso(text: str) -> bool:
    """Parse ISO 8601, such as `2016-09-19T18:29:47Z`."""
    date, rest = text[:10], text[11:]
    clock, tail = rest[:8], rest[8:]
    if tail.startswith("."):
        fraction = tail[1:].split("Z")[0].split("+")[0].split("-")[0]
        if not (fraction.isascii() and fraction.isdigit() and len(fraction) <= 9):
            return False
        tail = tail[1 + len(fraction) :]
    zone = tail.replace(":", "", 1) if tail[:1] in ("+", "-") else tail
    if zone not in ("", "Z") and not (len(zone) == 5 and zone[0] in "+-" and zone[1:].isdigit()):
        return False
    year, month, day = date.split("-")
    hour, minute, second = clock.split(":")
    if [len(part) for part in (year, month, day, hour, minute, second)] != [4, 2, 2, 2, 2, 2]:
        return False
    datetime(*(int(part) for part in (year, month, day, hour, minute, second)))  # type: ignore[arg-type]  # noqa: DTZ001  # only whether it is one
    return True


def judge(events: list[Any], index: int, setup: PolicySetup, past: Past) -> tuple[str, str]:
    """Return the verdict on one element of `Events`, and the reason: ("approve", "") or ("hold", reason)."""
    for reason, applies in QUESTIONS:
        if applies(events, index, setup, past):
            return "hold", reason
    return "approve", ""


Question = Callable[[list[Any], int, PolicySetup, Past], bool]


def get(events: list[Any], index: int, name: str) -> Any:
    """Return a field of an event; MISSING if it has none."""
    return events[index].get(name, MISSING)


def same(one: str, other: str) -> bool:
    """Compare letter by letter; only A to Z have two cases."""

    def plain(text: str) -> list[str]:
        return [chr(ord(letter) + 32) if "A" <= letter <= "Z" else letter for letter in text]

    return plain(one) == plain(other)


def resources(events: list[Any], index: int) -> list[str] | None:
    """Return the names of an event; None if they cannot be read."""
    names = get(events, index, "Resources")
    if not isinstance(names, list) or len(names) > 10_000 or not all(clean(name) and name for name in names):
        return None
    return names


def off(_events: list[Any], _index: int, setup: PolicySetup, _past: Past) -> bool:
    """Approvals are switched off."""
    return setup.mode == "off"


def not_scheduled(events: list[Any], index: int, _setup: PolicySetup, past: Past) -> bool:
    """The event is not, or no longer, Scheduled; it is also Started if its id occurs again as Started."""
    own = events[index]["EventId"]
    twins = [event for event in events if isinstance(event, dict) and isinstance(event.get("EventId"), str)]
    begun = any(same(twin["EventId"], own) and twin.get("EventStatus") == "Started" for twin in twins)
    return past.started or begun or bool(get(events, index, "EventStatus") != "Scheduled")


def identity_unknown(_events: list[Any], _index: int, setup: PolicySetup, _past: Past) -> bool:
    """The name of this VM is unknown."""
    return not setup.vm_name


def identity_conflict(_events: list[Any], _index: int, setup: PolicySetup, _past: Past) -> bool:
    """Azure's name of this VM differs from the settings'."""
    return setup.conflict


def not_this_vm(events: list[Any], index: int, setup: PolicySetup, past: Past) -> bool:
    """The event names only other VMs, by its last readable names."""
    names = resources(events, index)
    if names is None:
        return past.theirs
    return not any(same(name, setup.vm_name) for name in names)


def malformed(events: list[Any], index: int, setup: PolicySetup, _past: Past) -> bool:
    """A field that the rules need cannot be read, or the id of the event occurs twice in the document."""
    if not clean(get(events, index, "EventType")) or resources(events, index) is None:
        return True
    if not is_instant(get(events, index, "NotBefore")):
        return True
    own = events[index]["EventId"]
    for place, other in enumerate(events):
        other_id = other.get("EventId") if isinstance(other, dict) else None
        if place != index and isinstance(other_id, str) and same(other_id, own):
            return True
    for rule in setup.rules:
        if asks_for_unreadable(rule, events, index):
            return True
        if fits(rule, events, index):
            return False
    return False


def asks_for_unreadable(rule: dict[str, Any], events: list[Any], index: int) -> bool:
    """The rule needs a field that the event lacks, or that is unreadable."""
    if "event_source" in rule and not clean(get(events, index, "EventSource")):
        return True
    asks = "min_duration" in rule or "max_duration" in rule
    return asks and not is_whole_number(get(events, index, "DurationInSeconds"))


def fits(rule: dict[str, Any], events: list[Any], index: int) -> bool:
    """The event is of the types, sources, and durations of the rule."""
    if get(events, index, "EventType") not in rule["event_type"]:
        return False
    if "event_source" in rule and get(events, index, "EventSource") not in rule["event_source"]:
        return False
    duration = get(events, index, "DurationInSeconds")
    if "min_duration" in rule and (duration < 0 or duration < rule["min_duration"]):
        return False
    return not ("max_duration" in rule and (duration < 0 or duration > rule["max_duration"]))


def unknown_type(events: list[Any], index: int, _setup: PolicySetup, _past: Past) -> bool:
    """The event is of an unknown type, or for an unknown type of resource."""
    known = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")
    return get(events, index, "EventType") not in known or get(events, index, "ResourceType") != "VirtualMachine"


def already_approved(_events: list[Any], _index: int, _setup: PolicySetup, past: Past) -> bool:
    """A POST was accepted before."""
    return past.approved


def source_reset(_events: list[Any], _index: int, _setup: PolicySetup, past: Past) -> bool:
    """The DocumentIncarnation decreased."""
    return past.reset


def rule_of(events: list[Any], index: int, setup: PolicySetup) -> dict[str, Any] | None:
    """Return the first rule that matches; None if there is none."""
    return next((rule for rule in setup.rules if fits(rule, events, index)), None)


def no_rule(events: list[Any], index: int, setup: PolicySetup, _past: Past) -> bool:
    """No rule matches."""
    return rule_of(events, index, setup) is None


def several_resources(events: list[Any], index: int, setup: PolicySetup, _past: Past) -> bool:
    """The event is for several VMs, and only events of one VM may be approved."""
    return setup.coordination == "single" and len(get(events, index, "Resources")) > 1


def not_leader(events: list[Any], index: int, setup: PolicySetup, past: Past) -> bool:
    """It is the turn of another VM of the event."""
    if setup.coordination != "leader":
        return False
    names = get(events, index, "Resources")
    k = 1
    while not same(names[k - 1], setup.vm_name):
        k += 1
    if k == 1:
        return False
    if setup.takeover_after is None or get(events, index, "EventSource") != "User":
        return True
    return past.seconds_known < (k - 1) * setup.takeover_after


def settling(events: list[Any], index: int, setup: PolicySetup, past: Past) -> bool:
    """The event has not been unchanged for as long as the rule requires."""
    rule = rule_of(events, index, setup) or {}
    return bool(past.seconds_unchanged < rule.get("settle", 0))


def not_prepared(events: list[Any], index: int, setup: PolicySetup, _past: Past) -> bool:
    """The file that the rule requires does not exist."""
    path = (rule_of(events, index, setup) or {}).get("require_file")
    if not path:
        return False
    event_id = events[index]["EventId"]
    if "{event_id}" in path and not plain(event_id):
        return True
    return setup.file(path.replace("{event_id}", event_id)) != "present"


def plain(event_id: str) -> bool:
    """Return whether an id can be a file's name on any file system: no separator, no leading dots, no special
    character."""
    return event_id.isascii() and event_id[0] not in "._-" and all(it.isalnum() or it in "._-" for it in event_id)


def not_quiet(events: list[Any], index: int, setup: PolicySetup, past: Past) -> bool:
    """The rule requires quiet, and another event is more than Scheduled, or approved and not ended."""
    if not (rule_of(events, index, setup) or {}).get("when_quiet"):
        return False
    if past.others:
        return True
    others = [event for place, event in enumerate(events) if place != index]
    return not all(isinstance(event, dict) and event.get("EventStatus") == "Scheduled" for event in others)


def too_many_resources(events: list[Any], index: int, setup: PolicySetup, _past: Past) -> bool:
    """The event is for more VMs than the rule allows."""
    most = (rule_of(events, index, setup) or {}).get("max_resources")
    return most is not None and len(get(events, index, "Resources")) > most


def out_of_hours(events: list[Any], index: int, setup: PolicySetup, _past: Past) -> bool:
    """The rule is for other hours, or other days, than the current local time of its zone."""
    rule = rule_of(events, index, setup) or {}
    if "between" not in rule and "days" not in rule:
        return False
    return setup.now is None or not open_at(setup.now, **{key: rule[key] for key in HOURS if key in rule})


HOURS = ("between", "days", "timezone")
WEEK = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def open_at(now: datetime, between: str = "00:00-24:00", days: Any = WEEK, timezone: str = "UTC") -> bool:
    """Return whether the local time is in the window. Times are compared as they are written.

    For the hours after midnight it goes back, minute by minute, to the day before, on which the window began.
    """
    begin, end = between.split("-")
    date, clock = shown(now, timezone)
    if begin < end:
        return begin <= clock < end and weekday(date) in days
    if clock >= begin:
        return weekday(date) in days
    if clock >= end:
        return False
    earlier, minutes = date, 0
    while earlier == date:
        minutes += 1
        earlier = shown(now - timedelta(minutes=minutes), timezone)[0]
    # A day that was skipped has no window.
    return weekday(earlier) in days and (datetime.fromisoformat(date) - datetime.fromisoformat(earlier)).days == 1


def shown(now: datetime, timezone: str) -> tuple[str, str]:
    """Return the local date and time, as `2026-03-29` and `02:30`."""
    date, clock = now.astimezone(ZoneInfo(timezone)).isoformat().split("T")
    return date, clock[:5]


def weekday(date: str) -> str:
    """Return the first three letters of its weekday, counted from a Monday."""
    return WEEK[(datetime.fromisoformat(date) - datetime.fromisoformat("2001-01-01")).days % 7]


def held(_events: list[Any], _index: int, setup: PolicySetup, _past: Past) -> bool:
    """The hold file exists, or cannot be looked up."""
    return bool(setup.hold_file) and setup.file(setup.hold_file) != "absent"


def unwritable(_events: list[Any], _index: int, setup: PolicySetup, _past: Past) -> bool:
    """The disk rejects writes, so no decision can be stored."""
    return not setup.writable


def dry_run(_events: list[Any], _index: int, setup: PolicySetup, _past: Past) -> bool:
    """All would be approved, but nothing is sent."""
    return setup.mode == "dry-run"


QUESTIONS: tuple[tuple[str, Question], ...] = (
    ("off", off),
    ("not-scheduled", not_scheduled),
    ("identity-unknown", identity_unknown),
    ("identity-conflict", identity_conflict),
    ("not-this-vm", not_this_vm),
    ("malformed", malformed),
    ("unknown-type", unknown_type),
    ("already-approved", already_approved),
    ("source-reset", source_reset),
    ("no-rule", no_rule),
    ("several-resources", several_resources),
    ("not-leader", not_leader),
    ("settling", settling),
    ("not-prepared", not_prepared),
    ("not-quiet", not_quiet),
    ("too-many-resources", too_many_resources),
    ("out-of-hours", out_of_hours),
    ("held", held),
    ("outbox-unwritable", unwritable),
    ("dry-run", dry_run),
)
"""The contract's table, in its order."""
