"""What the texts of alerts claim, compared with what happens in the story: names, counts, shares, and times.

A claim is a pattern whose group is the value, and a function that returns the true values, from the series of the story
and not from the rules. A text with a claim about something that the function doesn't find is untrue.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.fleet_month import PREFIX, Announced, FleetSamples, Values, Vm
from tests.support.alerts_scenarios import AT, Story

WINDOW: Final = 120
"""Minutes that a wave remembers an event."""
EXPLAINED: Final = 30
"""Minutes for which an announced restart explains that a VM is down."""

LENGTHS: Final = {"ten minutes": 10, "half an hour": 30}
_DURATION: Final = r"((?:\d+[dhms] ?)+)"
_TIME: Final = r"(1970-01-\d\d \d\d:\d\d:\d\d \+0000 UTC)"


@dataclass(frozen=True, slots=True)
class Moment:
    """An alert's labels in one minute of a story, counted from the story's first sample."""

    story: Story
    samples: FleetSamples
    labels: Mapping[str, str]
    minute: int

    def before(self, minutes: int) -> Moment:
        """Return the same alert, minutes earlier."""
        return replace(self, minute=self.minute - minutes)

    def series(self, vm: Vm | None, name: str) -> Values:
        """Return all samples of one series of a VM, without those after this minute."""
        changed = self.samples.changed.get(vm.name) if vm else None
        return changed.series.get(name, [])[: self.minute // self.samples.step + 1] if changed else []

    def events(self, vm: Vm) -> list[Announced]:
        """Return the events of a VM so far."""
        changed = self.samples.changed.get(vm.name)
        return [event for event in changed.events if event.start <= self.minute] if changed else []

    def down_for(self, vm: Vm) -> int:
        """Return for how many minutes no scrape of this VM has succeeded; 0: the last one did."""
        up = self.series(vm, "up")
        back = next((back for back, value in enumerate(reversed(up)) if value == 1), 0)
        first = (len(up) - back) * self.samples.step
        return self.minute - first + self.samples.step if back else 0

    def is_lost(self, vm: Vm) -> bool:
        """Whether it is down, and no event that could take it down then explains that, or explains it any longer."""
        down = self.down_for(vm)
        if not down:
            return False
        since = self.minute - down
        held = [event for event in self.before(down).events(vm) if event.over > since]
        could = [
            event
            for event in held
            if event.source == "User" or event.begins <= since or event.not_before <= since + self.samples.step
        ]
        expires = {"Preempt": self.minute + 1, "Terminate": self.minute + 1}
        return not any(self.minute < expires.get(event.kind, since + self.samples.step + EXPLAINED) for event in could)

    @property
    def vm(self) -> Vm | None:
        """The VM that the alert is about; None: several."""
        name = self.labels.get("instance", "").partition(":")[0]
        changed = self.samples.changed.get(name)
        return changed.vm if changed else next((vm for vm in self.story.vms if vm.name == name), None)

    @property
    def scope(self) -> list[Vm]:
        """The VMs of the scope that the alert is about."""
        kind, vms = self.labels.get("scope"), self.story.vms
        if kind == "subscription":
            return list(vms)
        owned = [vm for vm in vms if vm.owner == self.labels.get("tag_owner", "")]  # all are in one resource group
        return [vm for vm in owned if kind == "resource group" or vm.vmss == self.labels.get("vmss_name", "")]

    @property
    def event(self) -> Announced | None:
        """The event that the alert is about."""
        own = self.events(self.vm) if self.vm else []
        found = [event for event in own if self.labels.get("event_id", event.ident) == event.ident]
        return found[-1] if found else None

    @property
    def wave(self) -> dict[Vm, Announced]:
        """The VMs of its scope that events of its type named within two hours, with that event."""
        kind = self.labels.get("event_type")
        return {
            vm: event
            for vm in self.scope
            for event in self.events(vm)
            if event.kind == kind and event.source != "User" and event.over > self.minute - WINDOW
        }


def humanized(minutes: float) -> str:
    """Return a duration as the function humanizeDuration of a template does."""
    seconds = round(minutes * 60)
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    parts = [f"{days}d"] * (days > 0) + [f"{hours}h"] * (seconds >= 3600) + [f"{rest // 60}m"] * (seconds >= 60)
    return " ".join([*parts, f"{rest % 60}s"])


def _time(minute: int) -> str:
    return f"1970-01-{1 + minute // 1440:02} {minute // 60 % 24:02}:{minute % 60:02}:00 +0000 UTC"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.4g}"


def _starts_in(at: Moment) -> set[str]:
    return {humanized(at.event.not_before - at.minute)} if at.event else set()


def _seen_ago(at: Moment) -> set[str]:
    return {humanized(at.minute - at.event.start)} if at.event else set()


def _started_ago(at: Moment) -> set[str]:
    return {humanized(at.minute - at.event.begins)} if at.event and at.event.begins <= at.minute else set()


def _unanswered(at: Moment) -> set[str]:
    return {text for text, minutes in LENGTHS.items() if at.vm and at.down_for(at.vm) > minutes}


def _lost_since(at: Moment) -> set[str]:
    if not at.vm or not at.event:
        return set()
    since = at.minute - at.down_for(at.vm) + at.samples.step
    waits = at.event.source != "User" and at.event.begins >= since
    return {_time(max(since, at.event.not_before if waits else 0))}


def _requests(at: Moment) -> set[str]:
    name = f'{PREFIX}approval_request_failures_total{{reason="{at.labels["reason"]}"}}'
    values = [value or 0.0 for value in at.series(at.vm, name)]
    return {f"{values[-1] - values[max(0, len(values) - 11)]:g}"} if values else set()


def _share_failed(at: Moment) -> set[str]:
    failed = at.series(at.vm, f'{PREFIX}poll_failures_total{{reason="{at.labels["reason"]}"}}')
    polled = at.series(at.vm, PREFIX + "polls_total")
    parts, wholes = ((values[-1] or 0.0) - (values[-6] or 0.0) for values in (failed, polled))
    return {_percent(parts, wholes)}


def _held_for(at: Moment) -> set[str]:
    values = at.series(at.vm, f"{PREFIX}approval_held")
    held = next((back for back, value in enumerate(reversed(values)) if value == 0), 0)
    return {humanized((held - 1) * at.samples.step)}


def _skew(at: Moment) -> set[str]:
    polled = at.series(at.vm, f"{PREFIX}last_poll_timestamp_seconds")
    return {humanized(abs(at.minute - polled[-1] / 60))} if polled and polled[-1] is not None else set()


def _share_lost(at: Moment) -> set[str]:
    moments = [
        at.before(back) for back in range(0, 15, at.samples.step)
    ]  # a window keeps the alert, with its value, for minutes
    return {_percent(sum(map(then.is_lost, then.scope)), len(then.scope)) for then in moments}


def _named(at: Moment) -> set[str]:
    return {str(len(at.wave))}


def _first_seen(at: Moment) -> set[str]:
    return {_time(min(event.start for event in at.wave.values()))} if at.wave else set()


def _not_before(at: Moment) -> set[str]:
    if at.event:
        return {_time(at.event.not_before)}
    waiting = [event.not_before for event in at.wave.values() if at.minute < min(event.begins, event.over)]
    return {_time(min(waiting))} if waiting else set()


def _none_waits(at: Moment) -> set[str]:
    return set() if _not_before(at) else {"None"}


WAVES: Final = "MaintenanceWave|FreezeWave|EvictionWave"
CLAIMS: Final[tuple[tuple[str, str, Callable[[Moment], set[str]]], ...]] = (
    ("", rf"can start in {_DURATION}", _starts_in),
    ("", rf"first seen {_DURATION} ago", _seen_ago),
    ("", rf"started {_DURATION} ago", _started_ago),
    ("ExporterDown|DidNotReturn", r"answered scrapes for (ten minutes|half an hour)", _unanswered),
    ("DidNotReturn", rf"answered no scrape since {_TIME}", _lost_since),
    ("", r"(\d+) approval requests?\b", _requests),
    ("SourceFailing", r"([\d.]+)% of the polls", _share_failed),
    ("ApprovalsHeld", rf"(?:held for|at least) {_DURATION}", _held_for),
    ("Clock", rf"by {_DURATION}", _skew),
    ("FleetDown", r"([\d.]+)% of (?:the )?exporters", _share_lost),
    (WAVES, r"(\d+) (?:Spot )?VMs\b", _named),
    (WAVES, rf"first at {_TIME}", _first_seen),
    ("", rf"NotBefore[^.]*? {_TIME}", _not_before),
    (WAVES, r"(None) of these events is waiting", _none_waits),
)
"""Names of alerts (a regular expression), a pattern, and the values that are true."""


def untrue(story: Story, samples: FleetSamples, labels: Mapping[str, str], minute: int, text: str) -> Iterator[str]:
    """Yield what a text claims in this minute since the story's begin and isn't so."""
    at = Moment(story, samples, labels, minute + AT)
    times = re.findall(_TIME, text)
    for alert, pattern, values in CLAIMS:
        claims = list(re.finditer(pattern, text)) if re.search(alert, labels["alertname"]) else []
        true = values(at) if claims else set()
        for found in claims:
            if found[1].strip() not in true:
                yield f"{found[0]!r}, but it is {sorted(true)}"
            if found[1] in times:
                times.remove(found[1])
    yield from (f"{time}, which no claim explains" for time in times)
    yield from _wrong_names(at, text)


def _wrong_names(at: Moment, text: str) -> Iterator[str]:
    """Yield the VMs that a text names although the alert isn't about them."""
    words = set(re.findall(r"[\w-]+", text))
    named = [vm for vm in at.story.vms if vm.name in words]
    is_wave = re.search(WAVES, at.labels["alertname"])
    for vm in named:
        if at.vm and vm != at.vm:
            yield f"{vm.name}, but it is about {at.vm.name}"
        elif not at.vm and is_wave and vm not in at.wave:
            yield f"{vm.name}, which no such event names"
        elif not at.vm and not is_wave and not any(at.before(back).is_lost(vm) for back in range(15)):
            yield f"{vm.name}, which isn't lost"
    more = re.search(r"and (\d+) more", text)
    if is_wave and len(named) + (int(more[1]) if more else 0) != len(at.wave):
        yield f"{len(named)} names{' ' + more[0] if more else ''}, but it is {len(at.wave)} VMs"
