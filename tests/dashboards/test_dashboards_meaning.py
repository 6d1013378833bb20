"""What dashboards and alerts show for scenarios of the real agent, on a real Prometheus with its scrapes."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
import yaml

from dashboards.queries import CHOICES, FAR
from tests.support.dashboards_environment import RULES, DashboardsEnvironment, filled, load, panels
from tests.support.dashboards_scenarios import FLEET_SIZE, LIVES, id_of

pytestmark = pytest.mark.peer("prometheus")
MARKS: Final = "snippets/annotations"
GONE: Final = None
"""No sample: the panel shows its no-data text."""


def _one(series: list[dict[str, Any]]) -> float | None:
    assert len(series) <= 1, series
    return float(series[0]["value"][1]) if series else None


@pytest.mark.parametrize(
    ("scenario", "state", "starts_in"),
    [
        ("quiet", 0, FAR),
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
        ("closed", 0, FAR),
        ("ahead", 0, FAR),
        ("behind", 0, FAR),
        ("ahead-stale", 20, -FAR),
        ("behind-hung", 20, -FAR),
        ("hung", 20, -FAR),
    ],
)
def test_state_and_countdown_match_the_scenario(
    lived: DashboardsEnvironment, scenario: str, state: int | None, starts_in: float | None
) -> None:
    """State and countdown match; stale, warming, nameless, and down never show "nothing scheduled".

    The clock of "ahead" and "behind" is off by an hour; the agent of "hung" answers scrapes and doesn't poll.
    """
    assert _one(lived.panel("vm", "State", scenario)[0]) == state
    countdown = _one(lived.panel("vm", "Starts in", scenario)[0])
    assert countdown == (lived.ahead(starts_in) if starts_in is not None and abs(starts_in) < FAR else starts_in)


_WITHOUT_EVENTS: Final = {"Notice", "Decisions", "Current decisions", "Interruption: observed and announced"}
SILENT: Final = {
    "quiet": _WITHOUT_EVENTS,
    "scheduled": set(),
    "started": set(),
    "stale": {*_WITHOUT_EVENTS, "Events, all VMs"},
    "stale-scheduled": {"Interruption: observed and announced", "Events, all VMs"},
    "warming": _WITHOUT_EVENTS,
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
    "nameless": {*_WITHOUT_EVENTS, "This VM"},
    "led": {"Interruption: observed and announced"},
    "first": set(),
    "closed": {"Current decisions"},
    "ahead": _WITHOUT_EVENTS,
    "behind": _WITHOUT_EVENTS,
    "ahead-stale": {*_WITHOUT_EVENTS, "Events, all VMs"},
    "behind-hung": _WITHOUT_EVENTS,
    "hung": _WITHOUT_EVENTS,
}
"""The panels of each scenario that have no data and show their no-data text."""


@pytest.mark.parametrize("scenario", LIVES)
def test_a_panel_is_empty_only_if_the_scenario_has_no_data(lived: DashboardsEnvironment, scenario: str) -> None:
    """Every other panel shows data: no query is mistyped, and every label matches."""
    answers = lived.answers("vm", scenario)
    titles = {str(panel["id"]): panel["title"] for panel in panels(load("vm"))}
    empty = {titles[number] for number, queries in answers.items() if not any(query["result"] for query in queries)}
    assert empty == SILENT[scenario]


def test_events_are_shown_with_duration_and_number_of_vms(lived: DashboardsEnvironment) -> None:
    """Both events of the VM, but not its neighbour's; the earlier first, with duration and number of VMs if known."""
    _, soonest, durations, resources, seen, approved, base, silent = lived.panel("vm", "Events", "scheduled")
    kinds = [(row["metric"]["event_type"], row["metric"]["event_status"]) for row in soonest]
    assert kinds == [("Reboot", "Scheduled"), ("Freeze", "Scheduled")]
    assert [row["value"][1] for row in durations] == ["5"]
    assert sorted(row["value"][1] for row in resources) == ["1", "2"]
    assert len(seen) == len(base) == 2
    assert approved == silent == []


def test_an_interruption_has_its_exact_duration(lived: DashboardsEnvironment) -> None:
    """7.2 s are 7.2 s, next to the announced 5 s: nothing is extrapolated."""
    observed, announced = lived.panel("vm", "Interruption: observed and announced", "started")
    longest = {row["metric"]["kind"]: max(float(value) for _, value in row["values"]) for row in observed}
    assert longest == {"clock_step": pytest.approx(7.2), "stall": pytest.approx(7.0)}
    assert {value for row in announced for _, value in row["values"]} == {"5"}


def test_decisions_name_reason_and_rule(lived: DashboardsEnvironment) -> None:
    """Held and approved events with reasons, without events that have started or name only a neighbour."""
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


def test_each_event_has_one_current_decision(lived: DashboardsEnvironment) -> None:
    """One current decision per event, with type, reason, and rule; none for events that have ended."""
    rows = lived.panel("vm", "Current decisions", "wrong")[0]
    decisions = [
        tuple(row["metric"].get(label, "") for label in ("event_type", "decision", "reason", "rule")) for row in rows
    ]
    assert sorted(decisions) == [
        ("Freeze", "approved", "", "short-freeze"),
        ("Freeze", "hold", "not-scheduled", ""),
        ("Freeze", "hold", "not-scheduled", ""),
        ("Preempt", "hold", "not-scheduled", ""),
        ("Redeploy", "approve", "", "user-initiated"),
        ("Redeploy", "hold", "no-rule", ""),
        ("other", "hold", "unknown-type", ""),
    ]
    started = lived.panel("vm", "Current decisions", "started")[0]
    assert [(row["metric"]["decision"], row["metric"]["rule"]) for row in started] == [("approved", "short-freeze")]
    (row,) = lived.panel("vm", "Current decisions", "stale-scheduled")[0]
    assert (row["metric"]["decision"], row["metric"]["reason"]) == ("hold", "no-rule")
    assert len({row["metric"]["event_id"] for row in rows}) == len(rows)


def test_approvals_hold_and_outbox_state_are_shown(lived: DashboardsEnvironment) -> None:
    """Approvals by outcome; no hold; a writable outbox."""
    sent, failed, postponed, outdated = (_one(rows) for rows in lived.panel("vm", "Approvals sent", "wrong"))
    assert sent is not None
    assert failed is not None
    assert 0 < failed < sent
    assert (postponed, outdated) == (0, 1)
    assert _one(lived.panel("vm", "Hold", "wrong")[0]) == 0
    assert _one(lived.panel("vm", "Outbox writes", "wrong")[0]) == 1


def test_the_first_value_of_a_counter_is_shown(lived: DashboardsEnvironment) -> None:
    """Failed approvals, notice, decisions, and an interruption without a scrape at 0; increase() misses all of them."""
    failures = 'azure_scheduled_events_approval_request_failures_total{job="first"}'
    assert _one(lived.now(failures)) == 2
    assert not _one(lived.now(f"increase({failures}[15m])"))
    _, failed, *_ = lived.panel("vm", "Approvals sent", "first")
    assert _one(failed) == 2
    observed, _ = lived.panel("vm", "Interruption: observed and announced", "first")
    assert {float(value) for row in observed for _, value in row["values"]} == {12.0}
    assert _one(lived.panel("vm", "Notice", "first")[0]) == pytest.approx(900, abs=5)
    decisions = lived.panel("vm", "Decisions", "first")[0]
    assert [(row["metric"]["decision"], row["value"][1]) for row in decisions] == [("approve", "1")]


def test_zero_failed_approvals_are_shown_only_if_an_exporter_answers(lived: DashboardsEnvironment) -> None:
    """0 in the scenario without events, and no sample without an exporter."""
    assert _one(lived.panel("vm", "Approvals sent", "quiet")[1]) == 0
    assert _one(lived.panel("vm", "Approvals sent", "absent")[1]) is GONE


def test_events_of_a_nameless_vm_are_not_shown_as_nothing_scheduled(lived: DashboardsEnvironment) -> None:
    """No event has a row, and the only row is "not known yet"."""
    rows = [row for query in lived.panel("vm", "Events", "nameless") for row in query]
    assert [row["metric"]["event_type"] for row in rows] == ["not known yet"]
    assert [row["value"][1] for row in _fleet(lived, "Missing data, by scale set", "nameless")[1]] == ["1"]
    assert _one(_fleet(lived, "VMs scheduled", "nameless")[0]) is GONE


def test_a_failing_destination_is_shown(lived: DashboardsEnvironment) -> None:
    """Waiting, oldest, failed, and rejected records of the failing destination, and none of the other one."""
    waiting, oldest, sent, failed, _, rejected = (
        {row["metric"]["destination"]: float(row["value"][1]) for row in rows}
        for rows in lived.panel("vm", "Destinations", "wrong")
    )
    assert waiting["event_hubs"] == 0 < waiting["otlp"]
    assert set(oldest) == {"otlp"}
    assert oldest["otlp"] > 600
    assert sent["event_hubs"] > sent["otlp"]
    assert failed["event_hubs"] == 0 < failed["otlp"]
    assert (rejected["event_hubs"], rejected["otlp"]) == (0, 1)


def test_starts_and_ends_are_marked(lived: DashboardsEnvironment) -> None:
    """A start has the time at which the agent saw it, an end has its outcome."""
    starts, ends = load("vm")["annotations"]["list"]
    assert starts["useValueForTime"] is True
    marked = lived.over(filled(starts["expr"], "started", 7200), 7200, 60)
    moments = {float(value) / 1000 - lived.end for row in marked for _, value in row["values"]}
    assert sorted(moments) == pytest.approx([-6500, -460], abs=10)
    closed = lived.over(filled(ends["expr"], "started", 7200), 7200, 60)
    assert [(row["metric"]["event_type"], row["metric"]["outcome"]) for row in closed] == [("Freeze", "completed")]


@pytest.mark.parametrize("name", ["vm", "fleet"])
def test_variables_offer_the_values_of_the_selected_vms(lived: DashboardsEnvironment, name: str) -> None:
    """Each offers the values of its label among the VMs that the previous variables select."""
    variables = {variable["name"]: variable for variable in load(name)["templating"]["list"]}
    assert _values(lived, variables["job"], ".+") == {*LIVES, "fleet"}
    assert _values(lived, variables["subscription"], "fleet") == {
        "0b1f6471-1bf0-4dda-aec3-cb9272f09590",
        "8d10da13-8125-4ba9-a717-bf7490507b3d",
    }
    assert _values(
        lived,
        variables["scale_set"],
        "fleet",
        subscription="0b1f6471-1bf0-4dda-aec3-cb9272f09590",
        location="northeurope",
    ) == {
        "set-1",
        "set-3",
    }
    assert _values(lived, variables["tag_owner"], "fleet") == {"shop", "bank"}
    assert _values(lived, variables["tag_owner"], "fleet", scale_set="set-4") == {"bank"}
    assert _values(lived, variables["tag_owner"], "scheduled") == set()


def test_other_variables_narrow_the_instances(lived: DashboardsEnvironment) -> None:
    """The previous variables narrow the list; without a selection it includes a VM with an unknown name."""
    variable = load("vm")["templating"]["list"][-1]
    assert _values(lived, variable, "scheduled") == {"web_1:10169"}
    assert _values(lived, variable, "nameless") == {"nameless-1:10169"}
    assert len(_values(lived, variable, "fleet", tag_owner="shop")) == 100
    assert _values(lived, variable, "nameless", tag_owner="shop") == set()


def _values(lived: DashboardsEnvironment, variable: dict[str, Any], job: str, **choices: str) -> set[str]:
    selector, label = variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
    values = lived.get(f"/api/v1/label/{label}/values", **{"match[]": filled(selector, job, 0, **choices)})
    return set(values["data"])


@pytest.mark.parametrize("variable", ["job", *CHOICES])
def test_every_panel_obeys_every_variable(lived: DashboardsEnvironment, variable: str) -> None:
    """Other VMs aren't shown; an alert that isn't about one VM is shown for all VMs that it may be about."""
    wide = sum("instance" not in alert["labels"] for alert in lived.active)
    for panel in panels(load("fleet")):
        for target in panel["targets"]:
            shown = lived.target(target, "fleet", **{"job": "fleet", variable: "absent"})
            if "ALERTS{" in target["expr"]:
                assert sum(float(row["value"][1]) for row in shown) <= wide, panel["title"]
            else:
                assert shown == [], (panel["title"], target["expr"])


def test_every_annotation_obeys_every_variable(lived: DashboardsEnvironment) -> None:
    """Annotations are those of the selected VMs."""
    for annotation in load("fleet")["annotations"]["list"]:
        assert lived.over(filled(annotation["expr"], "fleet", 86400), 86400, 300)
        for variable in CHOICES:
            expression = filled(annotation["expr"], "fleet", 86400, **{variable: "absent"})
            assert lived.over(expression, 86400, 300) == []


@pytest.mark.parametrize(
    ("choice", "counts"),
    [
        ({}, [1000, 50, 101, 12, 1]),
        ({"subscription": "0b1f6471-1bf0-4dda-aec3-cb9272f09590"}, [500, 50, 101, 0, 0]),
        (
            {"subscription": "(0b1f6471-1bf0-4dda-aec3-cb9272f09590|8d10da13-8125-4ba9-a717-bf7490507b3d)"},
            [1000, 50, 101, 12, 1],
        ),
        ({"location": "northeurope"}, [500, 0, 100, 12, 1]),
        ({"scale_set": "set-4"}, [100, 50, 0, 0, 0]),
        ({"tag_owner": "shop"}, [100, 0, 100, 0, 0]),
        ({"tag_environment": "prod", "location": "westeurope"}, [300, 50, 1, 0, 0]),
    ],
)
def test_selected_vms_are_counted(lived: DashboardsEnvironment, choice: dict[str, str], counts: list[int]) -> None:
    """ "All" includes every VM, also the nine hundred without an owner; a selection includes only its VMs."""
    titles = ("VMs", "VMs in maintenance", "VMs scheduled", "Stale or down", "Records late or lost")
    assert [_one(lived.panel("fleet", title, "fleet", **choice)[0]) for title in titles] == counts


def test_alerts_are_those_of_the_selected_vms(lived: DashboardsEnvironment) -> None:
    """Firing and pending alerts by name, with severity info last."""
    firing, pending, none = _fleet(lived, "Alerts")
    assert {row["metric"]["alertname"]: row["value"][1] for row in firing}["MaintenanceImminent"] == "50"
    severities = [row["metric"]["severity"] for row in firing]
    assert severities == sorted(severities, key="info".__eq__)
    assert pending
    assert none == []
    bank = lived.panel("fleet", "Alerts", "fleet", tag_owner="bank")
    assert "MaintenanceImminent" not in {row["metric"]["alertname"] for row in bank[0]}
    alerts = lived.panel("fleet", "Alerts", "quiet")
    assert [row["metric"]["alertname"] for row in alerts[2]] == ["none"]


def test_starts_and_ends_are_counted_by_type(lived: DashboardsEnvironment) -> None:
    """Starts in six hours by approver, and their ends by outcome."""
    *counted, none = _fleet(lived, "Starts and ends of events")
    assert [sum(float(row["value"][1]) for row in rows) for rows in counted] == [2, 2, 2, 0, 6, 0, 0]
    assert none == []
    found = _fleet(lived, "Starts and ends of events", "quiet")
    assert [row["metric"]["event_type"] for row in found[-1]] == ["none"]


def test_interruptions_of_the_fleet_are_shown_as_maximum_and_p99(lived: DashboardsEnvironment) -> None:
    """31 s at one of three VMs."""
    longest, p99, _ = _fleet(lived, "Interruption: observed and announced")
    assert [max(float(value) for _, value in rows[0]["values"]) for rows in (longest, p99)] == [
        31,
        pytest.approx(30.5, abs=0.1),
    ]


def test_agents_are_counted_by_mode_and_version(lived: DashboardsEnvironment) -> None:
    """Every VM that answers counts once, with its mode and version."""
    counted, share = _fleet(lived, "Mode and version")
    assert [(row["metric"], row["value"][1]) for row in counted] == [({"mode": "dry-run", "version": "1.0.0"}, "995")]
    assert [row["value"][1] for row in share] == ["1"]
    assert [row["value"][1] for row in lived.panel("fleet", "Mode and version", ".+")[1]] != ["1"]


def test_lost_records_have_a_vm(lived: DashboardsEnvironment) -> None:
    """Twelve records of one VM, two hours ago."""
    behind, rejected, lost = _fleet(lived, "Records late, rejected, or lost")
    assert behind == rejected == []
    assert [(row["metric"]["vm_name"], row["metric"]["destination"], row["value"][1]) for row in lost] == [
        ("set-7_777", "otlp", "12")
    ]
    behind, rejected, _ = _fleet(lived, "Records late, rejected, or lost", "wrong")
    assert [row["metric"]["vm_name"] for row in behind] == ["wrong-1"]
    assert [row["value"][1] for row in rejected] == ["1"]


def _fleet(lived: DashboardsEnvironment, title: str, job: str = "fleet") -> list[list[dict[str, Any]]]:
    return lived.panel("fleet", title, job)


def test_the_fleet_is_counted(lived: DashboardsEnvironment) -> None:
    """The next start is the earliest of 101; 7 exporters are stale, 5 down, 3 not known yet, all in one scale set."""
    assert _one(_fleet(lived, "Next start in")[0]) == lived.ahead(600)
    unwatched, warming, share, none = _fleet(lived, "Missing data, by scale set")
    assert [(row["metric"]["vmss_name"], row["value"][1]) for row in unwatched] == [("set-9", "12")]
    assert [row["value"][1] for row in warming] == ["3"]
    assert [row["value"][1] for row in share] == ["0.12"]
    assert none == []
    assert [row["metric"]["vmss_name"] for row in _fleet(lived, "Missing data, by scale set", "quiet")[-1]] == [
        "none: all data is current"
    ]


def test_scheduled_events_are_grouped(lived: DashboardsEnvironment) -> None:
    """100 VMs of set-3 in 20 events, and one VM without a scale set; the bars group them by time of start."""
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
    ("scenario", "word"),
    [("quiet", "nothing scheduled"), ("started", "nothing scheduled"), ("stale", "unknown"), ("warming", "unknown")],
)
def test_a_fleet_without_events_shows_the_reason(lived: DashboardsEnvironment, scenario: str, word: str) -> None:
    """ "nothing scheduled" appears only if a VM has current data; otherwise the numbers are missing, not 0."""
    row = _fleet(lived, "Scheduled events, by scale set and type", scenario)[-1]
    assert [series["metric"]["event_type"] for series in row] == [word]
    scheduled = _one(_fleet(lived, "VMs scheduled", scenario)[0])
    assert scheduled == (0 if word == "nothing scheduled" else GONE)


LABELS: Final = ("vm_name", "event_type", "started_by", "rule", "outcome")


def _rows(lived: DashboardsEnvironment, job: str) -> list[tuple[str, ...]]:
    """Return the rows of the table of events: the labels, and when it began in seconds before the end."""
    began, *_ = _fleet(lived, "Events in this range", job)
    return [
        (*(row["metric"].get(label, "") for label in LABELS), f"{float(row['value'][1]) / 1000 - lived.end:.0f}")
        for row in began
    ]


def test_each_event_of_the_range_is_one_row(lived: DashboardsEnvironment) -> None:
    """The newest first, with approval, notice, interruption, and outcome, also of events that ended before a scrape."""
    began, notice, interruption, since, until, none = _fleet(lived, "Events in this range", "closed")
    assert [row[:-1] for row in _rows(lived, "closed")] == [
        ("closed-1", "Freeze", "this_vm", "short-freeze", "completed"),
        ("closed-1", "Reboot", "", "", "canceled"),
    ][::-1]
    assert [float(row[-1]) for row in _rows(lived, "closed")] == pytest.approx([-600, -800], abs=10)
    assert [float(row["value"][1]) for row in notice] == pytest.approx([900, 900], abs=10)
    assert [(row["metric"]["event_type"], row["value"][1]) for row in interruption] == [("Freeze", "4.2")]
    for row, start, stop in zip(began, since, until, strict=True):
        assert float(stop["value"][1]) - 3_600_000 == float(row["value"][1]) == float(start["value"][1]) + 3_600_000
    assert none == []


def test_an_event_without_an_end_is_open(lived: DashboardsEnvironment) -> None:
    """Events in progress, and the eviction of a VM that no longer exists."""
    rows = _rows(lived, "fleet")
    assert len(rows) == 50 + 100 + 1 + 6 + 2 + 1
    assert ("alone_098", "Preempt", "", "", "open", "-5400") in rows
    assert sum(row[1] == "Reboot" and row[4] == "open" for row in rows) == 100
    assert [float(row[-1]) for row in rows] == sorted((float(row[-1]) for row in rows), reverse=True)
    bank = lived.panel("fleet", "Events in this range", "fleet", tag_owner="bank")[0]
    assert {row["metric"]["vmss_name"] for row in bank} == {"set-4"}


def test_a_range_without_events_has_one_row(lived: DashboardsEnvironment) -> None:
    """One row, and only if there is a VM."""
    *empty, none = _fleet(lived, "Events in this range", "quiet")
    assert empty == [[]] * 5
    assert [row["metric"]["vm_name"] for row in none] == ["none"]
    assert _fleet(lived, "Events in this range", "absent") == [[]] * 6


def test_events_that_take_a_vm_down_come_first(lived: DashboardsEnvironment) -> None:
    """A reboot in ten minutes is before a freeze that has started; equals are sorted by time of start."""
    urgent, due, _ = _fleet(lived, "VMs with an event")
    types = [row["metric"]["event_type"] for row in urgent]
    assert types == ["Reboot"] * 100
    assert [float(row["value"][1]) for row in due][:2] == [lived.ahead(600)] * 2
    mixed, starts, _ = _fleet(lived, "VMs with an event", "wrong")
    shown = [(row["metric"]["event_type"], row["metric"]["event_status"]) for row in mixed]
    assert shown == [
        ("Preempt", "Started"),
        ("Redeploy", "Scheduled"),
        ("other", "Scheduled"),
        ("Redeploy", "Scheduled"),
        ("Freeze", "Started"),
        ("Freeze", "Started"),
        ("Freeze", "Scheduled"),
    ]
    assert len(starts) == 4


def test_queries_read_a_small_part_of_the_series(lived: DashboardsEnvironment) -> None:
    """No query about the fleet or one of its VMs reads a twentieth of the series for any point in time."""
    assert len(lived.now('count by (instance) (azure_scheduled_events_up{job="fleet"})')) == FLEET_SIZE - 5
    everything = lived.samples('count({job="fleet"})')
    assert everything > 100 * FLEET_SIZE
    for name, instance in (("fleet", ".+"), ("vm", "set-3_300:10169")):
        for panel in panels(load(name)):
            for target in panel["targets"]:
                samples = lived.samples_of_point(target, name, "fleet", instance)
                assert samples < everything / 20, (name, panel["title"], target["expr"])


ALERTS: Final[dict[str, set[str]]] = {
    "quiet": set(),
    "scheduled": {"MaintenanceScheduled"},
    "started": {"InterruptionLongerThanAnnounced"},
    "stale": {"DataStale"},
    "stale-scheduled": {"SourceFailing", "MaintenanceScheduled", "MaintenanceImminent"},
    "warming": set(),
    "down": set(),
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


@pytest.mark.parametrize("scenario", ALERTS)
def test_each_scenario_raises_exactly_its_alerts(lived: DashboardsEnvironment, scenario: str) -> None:
    """Exactly these alerts are pending or firing, and none of their texts contains a failed template."""
    active = lived.alerts(scenario)
    assert {name.removeprefix("AzureScheduledEvents") for name in active} == ALERTS[scenario]
    for alert in active.values():
        for text in alert["annotations"].values():
            assert "<" not in text, text
            assert "  " not in text, text


def test_the_externally_approved_event_is_identified(lived: DashboardsEnvironment) -> None:
    """The only alert is about the event that was approved externally, among other events of its type."""
    active = lived.active
    name = "AzureScheduledEventsApprovedExternally"
    accused = {alert["labels"]["event_id"] for alert in active if alert["labels"]["alertname"] == name}
    assert accused == {id_of("stolen")}
    starts = lived.now('azure_scheduled_events_event_started_by{job="led"}')
    assert sorted(row["metric"]["started_by"] for row in starts) == ["not_before", "other"]


def test_every_rule_runs(lived: DashboardsEnvironment) -> None:
    """Each expression is evaluated without an error, and so are the labels and texts of alerts."""
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            lived.now(rule["expr"])
    for group in lived.groups:
        for rule in group["rules"]:
            assert rule["health"] == "ok", (rule["name"], rule.get("lastError"))


# -- annotations for other dashboards


def _mark(name: str) -> dict[str, Any]:
    (mark,) = [mark for mark in load(MARKS)["annotations"]["list"] if mark["name"] == name]
    return dict(mark)


def _regions(lived: DashboardsEnvironment, mark: dict[str, Any], job: str) -> list[tuple[str, float, float]]:
    """Return the regions that Grafana draws: text, start, and end in seconds before the end of the scenario.

    Grafana joins samples that aren't further apart than the step of the query.
    """
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


def test_an_event_is_a_region_from_its_start_to_its_end(lived: DashboardsEnvironment) -> None:
    """The text is type and VM; each event has a region, even if several VMs have one at a time."""
    regions = _regions(lived, _mark("Azure: started"), "fleet")
    assert {text for text, _, _ in regions} == {f"Freeze of set-4_{number}" for number in range(401, 500, 2)}
    for _, start, stop in regions:
        assert start == pytest.approx(-600, abs=301)
        assert stop >= -60


def test_an_end_has_its_outcome(lived: DashboardsEnvironment) -> None:
    """Six in six hours, each at most as long as the five minutes of a recorded sample."""
    regions = _regions(lived, _mark("Azure: ended"), "fleet")
    assert len(regions) == 6
    assert {text.split()[-1] for text, _, _ in regions} == {"completed"}
    assert all(stop - start <= 300 for _, start, stop in regions)


def test_scheduled_events_are_off_by_default(lived: DashboardsEnvironment) -> None:
    """The annotation exists and is disabled."""
    mark = _mark("Azure: scheduled")
    assert mark["enable"] is False
    assert any(text.startswith("Reboot of set-3_") for text, _, _ in _regions(lived, mark, "fleet"))
