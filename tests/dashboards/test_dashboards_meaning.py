"""What dashboards and alerts say about lives of the real agent, on a real Prometheus that has lived through them."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
import yaml

from dashboards.queries import CHOICES, FAR
from tests.support.dashboards_stories import FLEET_SIZE, LIVES, id_of
from tests.support.dashboards_world import RULES, SPANS, World, filled, load, panels, step_of

pytestmark = pytest.mark.peer("prometheus")
MARKS: Final = "snippets/annotations"
GONE: Final = None
"""No sample: the panel shows its text for no data."""


def _one(series: list[dict[str, Any]]) -> float | None:
    assert len(series) <= 1, series
    return float(series[0]["value"][1]) if series else None


@pytest.mark.parametrize(
    ("story", "state", "starts_in"),
    [
        ("calm", 0, FAR),
        ("scheduled", 1, 1320),
        ("started", 2, -3 * FAR),
        ("stale", 20, -FAR),
        ("stale-scheduled", 21, 480),
        ("warming", 10, -2 * FAR),
        ("down", GONE, GONE),
        ("wrong", 2, 400),
        ("nameless", 10, -2 * FAR),
        ("led", 2, -3 * FAR),
        ("first", 2, -3 * FAR),
    ],
)
def test_what_is_on(lived: World, story: str, state: int | None, starts_in: float | None) -> None:
    """State and countdown are those of the story; blind, warming, nameless and down are never calm."""
    assert _one(lived.panel("vm", "State", story)[0]) == state
    countdown = _one(lived.panel("vm", "Starts in", story)[0])
    assert countdown == (lived.ahead(starts_in) if starts_in is not None and abs(starts_in) < FAR else starts_in)


SILENT: Final = {
    "calm": {"Notice", "Decisions", "Current decisions", "Interruption: observed and announced"},
    "scheduled": set(),
    "started": set(),
    "stale": {"Notice", "Decisions", "Current decisions", "Interruption: observed and announced", "Events, all VMs"},
    "stale-scheduled": {"Interruption: observed and announced", "Events, all VMs"},
    "warming": {"Notice", "Decisions", "Current decisions", "Interruption: observed and announced"},
    "down": {
        *(
            "State",
            "Starts in",
            "Last successful poll",
            "Approval mode",
            "Events",
            "Outbox",
            "Events, all VMs",
            "This VM",
        ),
        *("Current decisions", "Hold", "Outbox writes", "Interruption: observed and announced"),
    },
    "wrong": {"Interruption: observed and announced"},
    "nameless": {"Notice", "Decisions", "Current decisions", "Interruption: observed and announced", "This VM"},
    "led": {"Interruption: observed and announced"},
    "first": set(),
}
"""The panels without any data, and therefore with their own text, in each story."""


@pytest.mark.parametrize("story", LIVES)
def test_a_panel_is_empty_only_where_the_story_is(lived: World, story: str) -> None:
    """Every other panel has something to show: no query is mistyped, no label never matches."""
    answers = lived.answers("vm", story)
    titles = {str(panel["id"]): panel["title"] for panel in panels(load("vm"))}
    empty = {titles[number] for number, queries in answers.items() if not any(query["result"] for query in queries)}
    assert empty == SILENT[story]


def test_the_events_are_told_with_all_that_is_known(lived: World) -> None:
    """Both events of the VM, not the neighbour's, the sooner first, with duration and number of VMs where known."""
    _, soonest, durations, resources, seen, approved, base, silent = lived.panel("vm", "Events", "scheduled")
    kinds = [(row["metric"]["event_type"], row["metric"]["event_status"]) for row in soonest]
    assert kinds == [("Reboot", "Scheduled"), ("Freeze", "Scheduled")]
    assert [row["value"][1] for row in durations] == ["5"]
    assert sorted(row["value"][1] for row in resources) == ["1", "2"]
    assert len(seen) == len(base) == 2
    assert approved == silent == []


def test_an_interruption_is_shown_as_long_as_it_was(lived: World) -> None:
    """7.2 s are 7.2 s, beside the 5 s that were announced: nothing is extrapolated."""
    felt, announced = lived.panel("vm", "Interruption: observed and announced", "started")
    longest = {row["metric"]["kind"]: max(float(value) for _, value in row["values"]) for row in felt}
    assert longest == {"clock_step": pytest.approx(7.2), "stall": pytest.approx(7.0)}
    assert {value for row in announced for _, value in row["values"]} == {"5"}


def test_decisions_name_reason_and_rule(lived: World) -> None:
    """What was held and approved, and why, without the noise of events that already run or are a neighbour's."""
    rows = lived.panel("vm", "Decisions", "wrong")[0]
    decisions = {
        (row["metric"]["event_type"], row["metric"].get("reason", ""), row["metric"].get("rule", "")) for row in rows
    }
    assert {
        ("Freeze", "", "short-freeze"),
        ("Redeploy", "", "user-initiated"),
        ("other", "unknown-type", ""),
    } <= decisions
    assert {reason for _, reason, _ in decisions} == {"", "no-rule", "unknown-type"}


def test_what_stands_of_each_event_is_one_row(lived: World) -> None:
    """The decisions of now, one per event, with type, reason and rule: none of what is over."""
    rows = lived.panel("vm", "Current decisions", "wrong")[0]
    decisions = [(row["metric"]["event_type"], row["metric"].get("reason", "")) for row in rows]
    assert sorted(decisions) == [
        ("Freeze", "already-approved"),
        ("Freeze", "not-scheduled"),
        ("Freeze", "not-scheduled"),
        ("Preempt", "not-scheduled"),
        ("Redeploy", ""),
        ("Redeploy", "no-rule"),
        ("other", "unknown-type"),
    ]
    (row,) = lived.panel("vm", "Current decisions", "stale-scheduled")[0]
    assert (row["metric"]["decision"], row["metric"]["reason"]) == ("hold", "no-rule")
    assert len({row["metric"]["event_id"] for row in rows}) == len(rows)


def test_what_was_sent_held_and_written_is_shown(lived: World) -> None:
    """Approvals by what became of them; no hold; a disk that takes the records."""
    sent, failed, postponed, outdated = (_one(rows) for rows in lived.panel("vm", "Approvals sent", "wrong"))
    assert sent is not None
    assert failed is not None
    assert 0 < failed < sent
    assert (postponed, outdated) == (0, 1)
    assert _one(lived.panel("vm", "Hold", "wrong")[0]) == 0
    assert _one(lived.panel("vm", "Outbox writes", "wrong")[0]) == 1


def test_what_a_counter_appears_with_is_shown(lived: World) -> None:
    """Failed approvals, notice, decisions and an interruption that no scrape saw at 0; increase() alone sees none."""
    failures = 'azure_scheduled_events_approval_request_failures_total{job="first"}'
    assert _one(lived.now(failures)) == 2
    assert not _one(lived.now(f"increase({failures}[15m])"))
    _, failed, *_ = lived.panel("vm", "Approvals sent", "first")
    assert _one(failed) == 2
    felt, _ = lived.panel("vm", "Interruption: observed and announced", "first")
    assert {float(value) for row in felt for _, value in row["values"]} == {12.0}
    assert _one(lived.panel("vm", "Notice", "first")[0]) == pytest.approx(900, abs=5)
    decisions = lived.panel("vm", "Decisions", "first")[0]
    assert [(row["metric"]["decision"], row["value"][1]) for row in decisions] == [("approve", "1")]


def test_no_failed_approval_is_shown_as_zero_only_where_an_exporter_answers(lived: World) -> None:
    """0 in the calm story, and nothing where there is no exporter."""
    assert _one(lived.panel("vm", "Approvals sent", "calm")[1]) == 0
    assert _one(lived.panel("vm", "Approvals sent", "nobody")[1]) is GONE


def test_events_that_may_be_of_a_nameless_vm_are_not_called_nothing(lived: World) -> None:
    """No event has a row, and the row in their place says that it is not known yet."""
    rows = [row for query in lived.panel("vm", "Events", "nameless") for row in query]
    assert [row["metric"]["event_type"] for row in rows] == ["not known yet"]
    assert [row["value"][1] for row in _fleet(lived, "Missing data, by scale set", "nameless")[1]] == ["1"]
    assert _one(_fleet(lived, "VMs scheduled", "nameless")[0]) is GONE


def test_trouble_with_a_destination_is_shown(lived: World) -> None:
    """Waiting, oldest, failed and refused records of the one that fails, and nothing of that for the other."""
    waiting, oldest, sent, failed, _, refused = (
        {row["metric"]["destination"]: float(row["value"][1]) for row in rows}
        for rows in lived.panel("vm", "Destinations", "wrong")
    )
    assert waiting["event_hubs"] == 0 < waiting["otlp"]
    assert set(oldest) == {"otlp"}
    assert oldest["otlp"] > 600
    assert sent["event_hubs"] > sent["otlp"]
    assert failed["event_hubs"] == 0 < failed["otlp"]
    assert (refused["event_hubs"], refused["otlp"]) == (0, 1)


def test_starts_and_ends_are_marked(lived: World) -> None:
    """A start is marked at the moment that the agent saw it, an end with its outcome."""
    starts, ends = load("vm")["annotations"]["list"]
    assert starts["useValueForTime"] is True
    marked = lived.over(filled(starts["expr"], "started", 7200), 7200, 60)
    moments = {float(value) / 1000 - lived.end for row in marked for _, value in row["values"]}
    assert sorted(moments) == pytest.approx([-6500, -460], abs=10)
    closed = lived.over(filled(ends["expr"], "started", 7200), 7200, 60)
    assert [(row["metric"]["event_type"], row["metric"]["outcome"]) for row in closed] == [("Freeze", "completed")]


@pytest.mark.parametrize("name", ["vm", "fleet"])
def test_the_variables_offer_what_there_is(lived: World, name: str) -> None:
    """Each offers the values of its label among the VMs that are chosen before it."""
    variables = {variable["name"]: variable for variable in load(name)["templating"]["list"]}
    assert _values(lived, variables["job"], ".+") == {*LIVES, "fleet"}
    assert _values(lived, variables["subscription"], "fleet") == {"sub-a", "sub-b"}
    assert _values(lived, variables["scale_set"], "fleet", subscription="sub-a", location="northeurope") == {
        "set-1",
        "set-3",
    }
    assert _values(lived, variables["tag_owner"], "fleet") == {"shop", "bank"}
    assert _values(lived, variables["tag_owner"], "fleet", scale_set="set-4") == {"bank"}
    assert _values(lived, variables["tag_owner"], "scheduled") == set()


def test_an_instance_is_chosen_among_few(lived: World) -> None:
    """What is chosen before narrows the list; a VM that does not know its name is in it while nothing is chosen."""
    variable = load("vm")["templating"]["list"][-1]
    assert _values(lived, variable, "scheduled") == {"web_1:10169"}
    assert _values(lived, variable, "nameless") == {"who-1:10169"}
    assert len(_values(lived, variable, "fleet", tag_owner="shop")) == 100
    assert _values(lived, variable, "nameless", tag_owner="shop") == set()


def _values(lived: World, variable: dict[str, Any], job: str, **choices: str) -> set[str]:
    selector, label = variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
    values = lived.get(f"/api/v1/label/{label}/values", **{"match[]": filled(selector, job, 0, **choices)})
    return set(values["data"])


@pytest.mark.parametrize("variable", ["job", *CHOICES])
def test_every_panel_obeys_every_choice(lived: World, variable: str) -> None:
    """Nothing is shown of VMs that are not chosen; but an alert that is not of one VM is shown to all it may be of."""
    wide = sum("instance" not in alert["labels"] for alert in lived.active)
    for panel in panels(load("fleet")):
        for target in panel["targets"]:
            shown = lived.target(target, "fleet", **{"job": "fleet", variable: "nobody"})
            if "ALERTS{" in target["expr"]:
                assert sum(float(row["value"][1]) for row in shown) <= wide, panel["title"]
            else:
                assert shown == [], (panel["title"], target["expr"])


def test_every_annotation_obeys_every_choice(lived: World) -> None:
    """Marks on the curves are those of the chosen VMs."""
    for annotation in load("fleet")["annotations"]["list"]:
        assert lived.over(filled(annotation["expr"], "fleet", 86400), 86400, 300)
        for variable in CHOICES:
            expression = filled(annotation["expr"], "fleet", 86400, **{variable: "nobody"})
            assert lived.over(expression, 86400, 300) == []


@pytest.mark.parametrize(
    ("choice", "counts"),
    [
        ({}, [1000, 50, 101, 12, 1]),
        ({"subscription": "sub-a"}, [500, 50, 101, 0, 0]),
        ({"subscription": "(sub-a|sub-b)"}, [1000, 50, 101, 12, 1]),
        ({"location": "northeurope"}, [500, 0, 100, 12, 1]),
        ({"scale_set": "set-4"}, [100, 50, 0, 0, 0]),
        ({"tag_owner": "shop"}, [100, 0, 100, 0, 0]),
        ({"tag_environment": "prod", "location": "westeurope"}, [300, 50, 1, 0, 0]),
    ],
)
def test_what_is_chosen_is_counted(lived: World, choice: dict[str, str], counts: list[int]) -> None:
    """With "All" every VM is there, the nine hundred without an owner too; a choice shows its own VMs and no others."""
    titles = ("VMs", "VMs in maintenance", "VMs scheduled", "Stale or down", "Records late or lost")
    assert [_one(lived.panel("fleet", title, "fleet", **choice)[0]) for title in titles] == counts


def test_alerts_are_those_of_the_chosen_vms(lived: World) -> None:
    """By name, those that fire and those that wait; those that only inform last."""
    firing, pending, none = _fleet(lived, "Alerts")
    assert {row["metric"]["alertname"]: row["value"][1] for row in firing}["MaintenanceImminent"] == "50"
    severities = [row["metric"]["severity"] for row in firing]
    assert severities == sorted(severities, key="info".__eq__)
    assert pending
    assert none == []
    bank = lived.panel("fleet", "Alerts", "fleet", tag_owner="bank")
    assert "MaintenanceImminent" not in {row["metric"]["alertname"] for row in bank[0]}
    calm = lived.panel("fleet", "Alerts", "calm")
    assert [row["metric"]["alertname"] for row in calm[2]] == ["none"]


def test_what_became_of_events_is_told_by_type(lived: World) -> None:
    """Seven starts in six hours by who let them, and their ends."""
    *counted, none = _fleet(lived, "Starts and ends of events")
    assert [sum(float(row["value"][1]) for row in rows) for rows in counted] == [2, 2, 2, 0, 6, 0, 0]
    assert none == []
    quiet = _fleet(lived, "Starts and ends of events", "calm")
    assert [row["metric"]["event_type"] for row in quiet[-1]] == ["none"]


def test_what_the_fleet_felt_is_its_longest_and_its_p99(lived: World) -> None:
    """31 s at one of three VMs."""
    longest, p99, _ = _fleet(lived, "Interruption: observed and announced")
    assert [max(float(value) for _, value in rows[0]["values"]) for rows in (longest, p99)] == [
        31,
        pytest.approx(30.5, abs=0.1),
    ]


def test_one_kind_of_agent_is_all_of_them(lived: World) -> None:
    """Every VM that answers is counted once, under its mode and version."""
    counted, share = _fleet(lived, "Mode and version")
    assert [(row["metric"], row["value"][1]) for row in counted] == [({"mode": "dry-run", "version": "1.0.0"}, "995")]
    assert [row["value"][1] for row in share] == ["1"]
    assert [row["value"][1] for row in lived.panel("fleet", "Mode and version", ".+")[1]] != ["1"]


def test_lost_records_have_a_vm(lived: World) -> None:
    """Twelve of one VM, two hours ago."""
    behind, refused, lost = _fleet(lived, "Records late, rejected, or lost")
    assert behind == refused == []
    assert [(row["metric"]["vm_name"], row["metric"]["destination"], row["value"][1]) for row in lost] == [
        ("set-7_777", "otlp", "12")
    ]
    behind, refused, _ = _fleet(lived, "Records late, rejected, or lost", "wrong")
    assert [row["metric"]["vm_name"] for row in behind] == ["wrong-1"]
    assert [row["value"][1] for row in refused] == ["1"]


def _fleet(lived: World, title: str, job: str = "fleet") -> list[list[dict[str, Any]]]:
    return lived.panel("fleet", title, job)


def test_the_fleet_is_counted(lived: World) -> None:
    """The next start is the earliest of 101; 7 exporters are blind and 5 down, 3 are not known yet, all in one set."""
    assert _one(_fleet(lived, "Next start in")[0]) == lived.ahead(600)
    blind, warming, share, none = _fleet(lived, "Missing data, by scale set")
    assert [(row["metric"]["vmss_name"], row["value"][1]) for row in blind] == [("set-9", "12")]
    assert [row["value"][1] for row in warming] == ["3"]
    assert [row["value"][1] for row in share] == ["0.12"]
    assert none == []
    assert [row["metric"]["vmss_name"] for row in _fleet(lived, "Missing data, by scale set", "calm")[-1]] == [
        "none: all data is current"
    ]


def test_what_is_coming_is_grouped(lived: World) -> None:
    """100 VMs of set-3 in 20 events, and one VM without a scale set; by time of start in the bars beside it."""
    vms, events, first, last, silent = _fleet(lived, "Scheduled events, by scale set and type")

    def by_type(rows: list[dict[str, Any]]) -> dict[str, float]:
        return {row["metric"]["event_type"]: float(row["value"][1]) for row in rows}

    assert by_type(vms) == {"Reboot": 100, "Terminate": 1}
    assert by_type(events) == {"Reboot": 20, "Terminate": 1}
    assert by_type(first)["Reboot"] == lived.ahead(600)
    assert by_type(last)["Reboot"] == lived.ahead(3000)
    assert silent == []
    assert [_one(rows) for rows in _fleet(lived, "Scheduled starts")] == [50, 50, 1, 0, 0]


@pytest.mark.parametrize(
    ("story", "word"),
    [("calm", "nothing scheduled"), ("started", "nothing scheduled"), ("stale", "unknown"), ("warming", "unknown")],
)
def test_a_fleet_without_events_says_why(lived: World, story: str, word: str) -> None:
    """Nothing scheduled is said only if somebody sees; else the numbers are missing rather than 0."""
    row = _fleet(lived, "Scheduled events, by scale set and type", story)[-1]
    assert [series["metric"]["event_type"] for series in row] == [word]
    scheduled = _one(_fleet(lived, "VMs scheduled", story)[0])
    assert scheduled == (0 if word == "nothing scheduled" else GONE)


def test_history_is_summed_over_weeks(lived: World) -> None:
    """28 starts a day in three types are 196 a week."""
    week = _fleet(lived, "Starts per week")[0]
    assert sum(float(row["values"][-1][1]) for row in week) == pytest.approx(196, abs=6)


def test_a_thousand_vms_answer_at_once(lived: World) -> None:
    """No query, about all of them or one among them, looks at a twentieth of their series for any point in time."""
    assert len(lived.now('count by (instance) (azure_scheduled_events_up{job="fleet"})')) == FLEET_SIZE - 5
    everything = lived.samples('count({job="fleet"})')
    assert everything > 100 * FLEET_SIZE
    for name, instance in (("fleet", ".+"), ("vm", "set-3_300:10169")):
        for panel in panels(load(name)):
            for target in panel["targets"]:
                samples = lived.samples_of_point(target, name, "fleet", instance)
                assert samples < everything / 20, (name, panel["title"], target["expr"])


ALERTS: Final[dict[str, set[str]]] = {
    "calm": set(),
    "scheduled": {"MaintenanceScheduled"},
    "started": {"InterruptionLongerThanAnnounced"},
    "stale": {"DataStale"},
    "stale-scheduled": {"SourceFailing", "MaintenanceScheduled", "MaintenanceImminent"},
    "warming": set(),
    "down": {"VMDidNotReturn"},
    "wrong": {
        *("MaintenanceScheduled", "MaintenanceStuck", "SpotPreemption"),
        *("HardwareFailurePredicted", "UserActionWaiting", "ApprovedExternally", "ApprovalOutdated"),
        *("ApprovalFailing", "UnknownValuesSeen", "CertificateExpiring", "WebConfigReloadFailing"),
        *("DestinationParked", "OutboxAlmostFull"),
    },
    "nameless": {"NameUnknown"},
    "led": set(),
    "first": {"ApprovalFailing", "InterruptionLongerThanAnnounced"},
    "fleet": {
        *("MaintenanceScheduled", "MaintenanceImminent", "DataStale", "ExporterDown", "MaintenanceWave", "FreezeWave"),
    },
}


@pytest.mark.parametrize("story", ALERTS)
def test_the_alerts_of_a_story(lived: World, story: str) -> None:
    """Exactly these are pending or firing, and none of their texts shows a template that failed."""
    active = lived.alerts(story)
    assert {name.removeprefix("AzureScheduledEvents") for name in active} == ALERTS[story]
    for alert in active.values():
        for text in alert["annotations"].values():
            assert "<" not in text, text
            assert "  " not in text, text


def test_the_right_event_is_said_to_be_somebody_elses(lived: World) -> None:
    """One alert, about the one event that was started from elsewhere, among others of its type that were not."""
    active = lived.active
    name = "AzureScheduledEventsApprovedExternally"
    accused = {alert["labels"]["event_id"] for alert in active if alert["labels"]["alertname"] == name}
    assert accused == {id_of("stolen")}
    starts = lived.now('azure_scheduled_events_event_started_by{job="led"}')
    assert sorted(row["metric"]["started_by"] for row in starts) == ["not_before", "other"]


def test_every_rule_runs(lived: World) -> None:
    """Each expression is answered without an error, and alerts fill in their labels and texts without one."""
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            lived.now(rule["expr"])
    for group in lived.groups:
        for rule in group["rules"]:
            assert rule["health"] == "ok", (rule["name"], rule.get("lastError"))


def test_a_curve_has_as_many_points_as_its_range() -> None:
    """The steps of the tests are Grafana's: no finer than a minute, and an hour where the panel asks for it."""
    steps = {step_of(target, SPANS["fleet"]) for panel in panels(load("fleet")) for target in panel["targets"]}
    assert steps == {120, 3600}


# -- marks of events for dashboards that are not ours


def _mark(name: str) -> dict[str, Any]:
    (mark,) = [mark for mark in load(MARKS)["annotations"]["list"] if mark["name"] == name]
    return dict(mark)


def _regions(lived: World, mark: dict[str, Any], job: str) -> list[tuple[str, float, float]]:
    """What Grafana draws: a text, and from when to when in seconds before the end. It joins samples that are not
    further apart than the step of the query."""
    step = int(mark["step"].removesuffix("s"))
    expression = (
        re.sub(r"(:\w+)(\{|\))", rf'\1{{job="{job}",\2', mark["expr"], count=1).replace(",{", ",").replace(",)", "})")
    )
    drawn: list[tuple[str, float, float]] = []
    for series in lived.over(filled(expression, job, 21600), 21600, step):
        text = re.sub(r"\{\{(\w+)\}\}", "{\\1}", mark["textFormat"]).format(**series["metric"])
        times = [float(at) - lived.end for at, value in series["values"] if float(value) > 0]
        first = last = times[0]
        for at in [*times[1:], float("inf")]:
            if at - last > step:
                drawn.append((text, first, last))
                first = at
            last = at
    return drawn


def test_an_event_is_a_region_from_its_start_to_its_end(lived: World) -> None:
    """With type and VM as its text; one region for each event, also where several VMs have one at a time."""
    regions = _regions(lived, _mark("Azure: started"), "fleet")
    assert {text for text, _, _ in regions} == {f"Freeze of set-4_{number}" for number in range(401, 500, 2)}
    for _, start, stop in regions:
        assert start == pytest.approx(-600, abs=301)
        assert stop >= -60


def test_an_end_has_its_outcome(lived: World) -> None:
    """Six in six hours, each a mark of at most the five minutes that a recorded sample stands for."""
    regions = _regions(lived, _mark("Azure: ended"), "fleet")
    assert len(regions) == 6
    assert {text.split()[-1] for text, _, _ in regions} == {"completed"}
    assert all(stop - start <= 300 for _, start, stop in regions)


def test_what_is_scheduled_is_drawn_only_when_somebody_asks(lived: World) -> None:
    """It is there and off."""
    mark = _mark("Azure: scheduled")
    assert mark["enable"] is False
    assert any(text.startswith("Reboot of set-3_") for text, _, _ in _regions(lived, mark, "fleet"))
