"""What fires in each story of `tests.support.alerts_scenarios`, when, for which receivers, and with which text.

`make bench WHAT=stories` writes it into docs/alerts.md. `python -m benchmarks.stories WORDS` prints the stories whose
title matches.

Prometheus' engine (`promtool test rules`) reports each firing alert of each minute with its texts. At every change, all
firing alerts are sent to a real Alertmanager, whose API returns the receivers of each, and the alert that mutes it.
Every inhibition requires an equal `cluster`: each moment has another value, so that it is separate from all others.
Notifications aren't waited for: an alert that starts in the same minute as one that mutes it is muted.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
import yaml

from benchmarks.notifications import CONFIG, ROOT, RULES
from tests.support.alerts_claims import untrue
from tests.support.alerts_scenarios import AT, STORIES, Fires, Story
from tests.support.documentation import generated_part
from tests.support.peers import NO_TLS, alertmanager_of, need, until

PAGE: Final = "docs/alerts.md"
PART: Final = "stories"
ABOUT: Final = """
Times are hours and minutes since the story's begin. A row is one kind of alert: how many VMs it is about, and the text
of the first one. The receiver `none` means that only dashboards show it; an alert that another one mutes is sent if it
outlasts that one. Prometheus scrapes and evaluates every minute, in stories of over six hours every three or four
minutes. Each story begins at 00:20 UTC of 1 January 1970. After an outage, a real Prometheus also restores how long
alerts have been pending, so that they fire earlier than here.
"""
MOST: Final = 8
"""Problems of a story that are reported."""

PREFIX: Final = "AzureScheduledEvents"
SEVERITIES: Final = ("info", "warning", "critical")

Alert = frozenset[tuple[str, str]]
Texts = tuple[str, str]
"""Summary and description."""
Timeline = dict[int, dict[Alert, Texts]]
"""The firing alerts of each minute since the story's begin."""

_ASKED: Final = re.compile(r"^    alertname: \w+, time: (\w+), *$")
_PAIR: Final = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')
_UNITS: Final = {"s": 1 / 60, "m": 1, "h": 60, "d": 1440, "w": 10080}
_GROUPS: Final[list[dict[str, Any]]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
_NAMES: Final = tuple(rule["alert"] for group in _GROUPS for rule in group["rules"] if "alert" in rule)


# -- Prometheus


def timeline(story: Story) -> Timeline:
    """Return the firing alerts of each minute in which Prometheus evaluates the rules."""
    step = story.step
    minutes = [minute for minute in range(0, AT + story.minutes, step) if minute not in story.away]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "test.yml"
        with path.open("w", encoding="utf-8") as file:
            file.write(f"rule_files: ['{RULES}']\nevaluation_interval: {step}m\n")
            # Otherwise promtool evaluates groups in a random order, and an alert can start a minute later.
            file.write(f"group_eval_order: {json.dumps([group['name'] for group in _GROUPS])}\n")
            file.write(f"tests:\n- interval: {story.step}m\n  input_series:\n")
            for series, values in story.samples().series():
                file.write(f"  - {{series: '{series}', values: '{values}'}}\n")
            file.write("  alert_rule_test:\n")
            for minute in minutes:
                for alert in _NAMES:
                    file.write(f"  - {{eval_time: {minute}m, alertname: {alert}, exp_alerts: []}}\n")
        command = [need("promtool"), "test", "rules", str(path)]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
    output = done.stdout + done.stderr
    if not re.search(r"^  SUCCESS|^    alertname: ", output, flags=re.M) or re.search(r"\berr(or)?:", output):
        raise RuntimeError(f"{story.title}: {output.strip()[:2000]}")
    found: Timeline = {minute - AT: {} for minute in minutes}
    for minute, alert, texts in _read(output):
        found[minute - AT][alert] = texts
    return found


def _read(output: str) -> Iterator[tuple[int, Alert, Texts]]:
    """Yield the alerts that promtool reports as unexpected, with their minute."""
    minute = 0
    labels: Alert = frozenset()
    for line in output.splitlines():
        if found := _ASKED.match(line):
            minute = round(sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([smhdw])", found[1])))
        elif line.startswith("              Labels:"):
            labels = frozenset(_pairs(line).items())
        elif line.startswith("              Annotations:"):
            texts = _pairs(line)
            yield minute, labels, (texts["summary"], texts["description"])


def _pairs(line: str) -> dict[str, str]:
    return {name: json.loads(value) for name, value in _PAIR.findall(line)}


# -- Alertmanager


@dataclass(frozen=True, slots=True)
class Route:
    """The receivers of a firing alert, and the name of the alert that mutes it; empty: none."""

    receivers: tuple[str, ...]
    muted_by: str = ""


class Router:
    """A context manager for an Alertmanager with the configuration of the compose file, without addresses."""

    def __init__(self, folder: Path) -> None:
        config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
        config["receivers"] = [{"name": receiver["name"]} for receiver in config["receivers"]]
        self._daemon = alertmanager_of(folder, config)
        self._clusters = 0

    def __enter__(self) -> Self:
        self._daemon.__enter__()
        self._client = httpx.Client(base_url=self._daemon.url, timeout=60, verify=NO_TLS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._daemon.__exit__(kind, error, trace)

    def routes(self, moments: Sequence[Iterable[Alert]]) -> list[dict[Alert, Route]]:
        """Return the route of each alert of each moment, in which no other alerts fire."""
        first = self._clusters
        self._clusters += len(moments) + 1
        sent = [
            {**dict(alert), "cluster": str(first + number)} for number, moment in enumerate(moments) for alert in moment
        ]
        # Alertmanager reads alerts in order: if the last one is muted, all before are known to its inhibitions.
        last = {"cluster": str(self._clusters - 1), "job": "last"}
        end = [{**last, "alertname": f"{PREFIX}VMDidNotReturn"}, {**last, "alertname": f"{PREFIX}ExporterDown"}]
        self._post(sent, timedelta(days=1))
        self._post(end, timedelta(days=1))
        until(lambda: any(each["status"]["inhibitedBy"] for each in self._alerts(last["cluster"])))
        found = self._alerts()
        self._post([*sent, *end], timedelta())  # resolved alerts cost no time later
        names = {each["fingerprint"]: each["labels"]["alertname"] for each in found}
        routes: list[dict[Alert, Route]] = [{} for _ in moments]
        for each in found:
            labels = each["labels"]
            number = int(labels.pop("cluster")) - first
            if 0 <= number < len(moments):
                by = sorted(names[fingerprint] for fingerprint in each["status"]["inhibitedBy"])
                receivers = tuple(sorted(receiver["name"] for receiver in each["receivers"]))
                routes[number][frozenset(labels.items())] = Route(receivers, by[0] if by else "")
        assert sum(map(len, routes)) == len(sent), "Alertmanager has other alerts than those that were sent"
        return routes

    def _post(self, alerts: Sequence[dict[str, str]], lasting: timedelta) -> None:
        now = datetime.now(UTC)
        ends = (now + lasting).isoformat()
        starts = (now - timedelta(minutes=1)).isoformat()
        body = [{"labels": labels, "startsAt": starts, "endsAt": ends} for labels in alerts]
        self._client.post("/api/v2/alerts", json=body).raise_for_status()

    def _alerts(self, cluster: str = "") -> list[dict[str, Any]]:
        parameters = {"filter": f'cluster="{cluster}"'} if cluster else {}
        response = self._client.get("/api/v2/alerts", params=parameters).raise_for_status()
        found: list[dict[str, Any]] = response.json()
        return found


# -- what is reported of a story


@dataclass(slots=True)
class Firing:
    """One alert of a story from its start to its end: the minutes, its routes and texts in each, and how often it fired
    before."""

    labels: dict[str, str]
    minutes: list[int]
    routes: list[Route]
    texts: list[Texts]
    before: int

    @property
    def name(self) -> str:
        return self.labels["alertname"].removeprefix(PREFIX)

    @property
    def severity(self) -> str:
        return self.labels["severity"]

    @property
    def notified(self) -> int | None:
        """The minute of its first notification; None: none."""
        for minute, route in zip(self.minutes, self.routes, strict=True):
            if not route.muted_by and route.receivers != ("none",):
                return minute
        return None

    @property
    def sent(self) -> list[Texts]:
        """Its texts in the minute of its first notification, which waits for up to a minute; later ones aren't sent."""
        first = self.notified
        minutes = zip(self.minutes, self.texts, strict=True)
        return [] if first is None else [texts for minute, texts in minutes if first <= minute <= first + 1]

    @property
    def outcome(self) -> str:
        """Its receivers, or the reason for having none."""
        first = self.routes[0]
        if self.severity == "info":
            return "none"
        receivers = ", ".join(f"`{name}`" for name in first.receivers)
        if not first.muted_by:
            return receivers
        muted = f"muted by {first.muted_by.removeprefix(PREFIX)}"
        return muted if self.notified is None else f"{muted}, then {receivers}"


def firings(by_minute: Timeline, router: Router) -> list[Firing]:
    """Return the alerts of a story, in the order of their first minute and their name."""
    moments: list[frozenset[Alert]] = []
    for alerts in by_minute.values():
        if alerts and frozenset(alerts) not in moments:
            moments.append(frozenset(alerts))
    routed = dict(zip(moments, router.routes(moments), strict=True)) if moments else {}
    found: list[Firing] = []
    now: dict[Alert, Firing] = {}
    for minute, alerts in by_minute.items():
        now = {alert: firing for alert, firing in now.items() if alert in alerts}
        for alert, texts in alerts.items():
            if alert not in now:
                now[alert] = Firing(dict(alert), [], [], [], sum(each.labels == dict(alert) for each in found))
                found.append(now[alert])
            firing = now[alert]
            firing.minutes.append(minute)
            firing.routes.append(routed[frozenset(alerts)][alert])
            firing.texts.append(texts)
    return sorted(found, key=lambda each: (each.minutes[0], each.name, sorted(each.labels.items())))


def table(story: Story, found: Sequence[Firing]) -> str:
    """Return a story's section of the page: what happens, and a row for each kind of alert."""
    lines = [f"### {story.title}", "", story.happens, ""]
    kinds: dict[tuple[str, str, str, int], list[Firing]] = {}
    for each in found:
        kinds.setdefault((each.name, each.severity, each.outcome, each.before), []).append(each)
    if not kinds:
        return "\n".join([*lines, "No alert fires.", ""])
    lines += ["|When|Alert|Severity|Receiver|VMs|Text|", "|---|---|---|---|--:|---|"]
    for (name, severity, outcome, _), alerts in kinds.items():
        start, end = alerts[0].minutes[0], max(each.minutes[-1] for each in alerts)
        lasts = end + story.step >= story.minutes
        when = f"from {_clock(start)}" if lasts else f"{_clock(start)}–{_clock(end)}"
        vms = {each.labels["instance"] for each in alerts if "instance" in each.labels}
        summary, description = (text.replace("|", "\\|") for text in alerts[0].texts[0])
        text = f"**{summary}** {description}"
        lines.append(f"|{when}|{name}|{severity}|{outcome}|{len(vms) or ''}|{text}|")
    return "\n".join([*lines, ""])


def _clock(minutes: int) -> str:
    """Return minutes as hours and minutes, from two days on with days."""
    sign, minutes = "−" if minutes < 0 else "", abs(minutes)
    days = f"{minutes // 1440} d " if minutes >= 2 * 1440 else ""
    hours = minutes // 60 - (minutes // 1440 * 24 if days else 0)
    return f"{sign}{days}{hours}:{minutes % 60:02}"


def problems(story: Story, found: Sequence[Firing]) -> list[str]:
    """Return what isn't as the story requires, and what the texts claim and isn't true."""
    wrong = []
    samples = story.samples()
    for must in story.must:
        if not any(_is(must, each) for each in found):
            wrong.append(f"no notification like {must}")
    for each in found:
        if each.notified is not None and not (story.notifies is None or re.fullmatch(story.notifies, each.name)):
            wrong.append(f"{each.name} notifies {each.outcome} of nothing to do: {each.texts[0][0]}")
        if each.notified is not None and each.notified < story.quiet:
            wrong.append(f"{each.name} notifies {each.outcome} after {each.notified} minutes")
        for minute, texts in zip(each.minutes, each.texts, strict=True):
            text = " ".join(texts)
            denied = [repr(pattern) for pattern in story.untrue if re.search(pattern, text)]
            denied += untrue(story, samples, each.labels, minute, text)
            wrong += [f"{each.name} claims {claim}" for claim in denied]
    return list(dict.fromkeys(wrong))[:MOST]


def _is(must: Fires, each: Firing) -> bool:
    return (
        bool(re.fullmatch(must.names or ".*", each.name))
        and SEVERITIES.index(each.severity) >= SEVERITIES.index(must.severity)
        and each.notified is not None
        and each.notified <= must.within
        and (not must.receiver or any(must.receiver in route.receivers for route in each.routes))
        and (not must.text or any(re.search(must.text, " ".join(texts), re.DOTALL) for texts in each.sent))
    )


def main() -> int:
    """Write the page, or print the stories whose title matches. Return 1 if one isn't as it must be."""
    pattern = " ".join(sys.argv[1:])
    stories = [story for story in STORIES if re.search(pattern, story.title)]
    sections, wrong = [], []
    with tempfile.TemporaryDirectory() as name, Router(Path(name)) as router, ThreadPoolExecutor(2) as engines:
        for story, by_minute in zip(stories, engines.map(timeline, stories), strict=True):
            found = firings(by_minute, router)
            sections.append(table(story, found))
            wrong += [f"{story.title}: {line}" for line in problems(story, found)]
    if pattern:
        print("\n".join(sections))
    else:
        place = generated_part(PAGE, PART)
        text = place.string[: place.start(2)] + "\n".join([ABOUT, *sections]) + place.string[place.end(2) :]
        (ROOT / PAGE).write_text(text, encoding="utf-8")
    print("\n".join(wrong), file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
