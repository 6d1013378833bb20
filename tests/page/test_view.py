"""The landing page: the verdict first, no all-clear without data, accessible markup."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.core.document import folded
from exporter.core.policy import Mode
from exporter.core.records import Vm
from exporter.core.snapshot import DestinationStatus, OutboxStatus, Status
from exporter.core.state import Instant, InterruptionTotals, SourceStatus, State
from exporter.page.status import RUNBOOK, status_value
from exporter.page.view import render_page
from tests.support import statuses
from tests.support.page_reading import plain, read, rows, shown, tables, terms, verdict
from tests.support.status_reading import answered
from tests.support.statuses import FREEZE, NOON, REBOOT, EventScenario, with_source


def test_quiet_page_shows_the_time_of_its_data() -> None:
    page = shown(statuses.empty_scenario().status())
    assert verdict(page) == (
        "none",
        "Nothing is plannedThe metadata service lists no event for this VM, as of 2025-11-21 12:10:01 UTC.",
    )
    assert page.one("title").text == "Nothing is planned · shop-web_3"
    assert page.one("h1").text == "shop-web_3"


def test_most_severe_event_is_the_headline() -> None:
    """A reboot comes before an earlier freeze; the headline counts down and contains the number of further events."""
    page = shown(statuses.scheduled_scenario().status())
    assert verdict(page) == (
        "scheduled",
        "Reboot in 21 min 53 s at the earliest, and 1 more event"
        "The VM is rebooted. Data that is only in memory is lost.",
    )
    reboot, freeze = page.all("article")
    assert terms(freeze)["Not before"] == "2025-11-21 12:15:00 UTC (in 14 min 53 s)"
    assert terms(freeze)["Decision"] == "Held: it would be approved, but the mode is dry-run (rule short-freeze)"
    assert terms(reboot)["Decision"] == (
        "Held: no rule matches: EventSource differs in user-initiated, EventType in short-freeze"
    )
    assert terms(reboot)["Announced interruption"] == "not known"
    assert terms(reboot)["Resources"] == "this VM, shop-web_1"
    assert "The document also contains 1 further event of other VMs." in page.text


def test_missing_fields_keep_their_last_known_values() -> None:
    """A started event stays Started; the page also shows the document's current status."""
    scenario = statuses.scheduled_scenario()
    assert [terms(card)["Status"] for card in shown(scenario.status()).all("article")] == ["Scheduled"] * 2
    scenario.read(statuses.started(REBOOT))
    before = shown(scenario.status())
    for fields, status in (
        ({"EventStatus": "Scheduled"}, "Started (now in the document: Scheduled)"),
        ({"EventStatus": 5}, "Started (now in the document: not known)"),
        ({"EventType": None, "Resources": None, "EventStatus": "Paused"}, "Started (now in the document: Paused)"),
    ):
        scenario.read({**REBOOT, **fields}, after=0)
        page = shown(scenario.status())
        assert verdict(page) == verdict(before)
        (card,), (was,) = page.all("article"), before.all("article")
        assert (card.attributes["class"], card.one("h3").text) == ("started", "Reboot")
        assert terms(card)["Resources"] == terms(was)["Resources"] == "this VM, shop-web_1"
        assert terms(card)["Status"] == status


def test_started_freeze_is_shown_next_to_a_scheduled_reboot() -> None:
    """The reboot stays the headline, with the freeze below it; the freeze's card shows what started it.

    Headline and card use the same time, in whole seconds.
    """
    page = shown(statuses.started_scenario().status(mode=Mode.ENFORCE), later=3.6)
    state, text = verdict(page)
    assert state == "started"
    assert text.startswith("Reboot in 21 min 45 s at the earliest, and 1 more event")
    assert text.endswith("Also: Freeze started 3 s ago.")
    card = terms(list(page.all("article"))[1])
    assert card["Started by"] == "this VM (rule short-freeze)"
    assert card["Started"] == "2025-11-21 12:00:11 UTC (3 s ago)"
    assert not {"Not before", "Decision"} & set(card)


@given(notice=st.integers(-900, 900) | st.integers(-3, 3), tenths=st.integers(0, 9))
def test_headline_card_and_not_before_agree(notice: int, tenths: int) -> None:
    """All show the same remaining time, or that the event is due."""
    scenario = EventScenario()
    start = NOON + timedelta(seconds=1 + notice)
    scenario.read({**FREEZE, "NotBefore": start.strftime("%a, %d %b %Y %H:%M:%S GMT")})
    page = shown(scenario.status(), tenths / 10)
    left = notice - tenths / 10
    title, card = plain(page.one("strong").text), next(page.all("article"))
    when = plain(next(item.text for item in card.all("p") if item.attributes.get("class") == "when"))
    not_before = terms(card)["Not before"].partition(" UTC ")[2]
    if left < 1:
        assert (title, when) == (f"Freeze is {when[0].lower()}{when[1:]}", "Due: it may start at any moment")
        assert not_before == "(due)" or not_before.startswith("(due for ")
    else:
        assert title == f"Freeze {when[0].lower()}{when[1:]}"
        assert when == f"{not_before[1].upper()}{not_before[2:-1]} at the earliest"
    assert "now" not in title + when + not_before


@pytest.mark.parametrize(
    ("announced", "observed", "recorded"),
    [
        (5, None, "Azure announces a pause of 5 s. Memory"),
        (30, None, "Azure announces a pause of 30 s. Memory"),
        (0, None, "Azure announces that the VM does not pause. Memory"),
        (-1, None, "The VM pauses; Azure announces no duration. Memory"),
        (
            5,
            4.9,
            "Azure announces a pause of 5 s. Memory and open files are preserved; CPU and network may be suspended. "
            "This VM was interrupted for 4.9 s so far.",
        ),
        (0, 9.0, "may be suspended. This VM was interrupted for 9 s so far, longer than announced."),
        (-1, 9.0, "may be suspended. This VM was interrupted for 9 s so far."),
    ],
)
def test_impact_of_a_freeze_contains_announced_and_observed_duration(
    announced: int, observed: float | None, recorded: str
) -> None:
    scenario, event = EventScenario(), {**FREEZE, "DurationInSeconds": announced}
    scenario.read(event)
    if observed is not None:
        scenario.read(statuses.started(event))
        key = folded(FREEZE["EventId"])
        tracked = replace(scenario.state.tracked[key], interruptions=InterruptionTotals(1, observed, observed))
        scenario.state = replace(scenario.state, tracked={key: tracked})
    page = shown(scenario.status())
    assert recorded in verdict(page)[1]
    assert recorded in terms(page.one("article"))["Impact"]
    assert "few seconds" not in page.text


@pytest.mark.parametrize("first", range(5))
def test_events_are_ordered_by_severity(first: int) -> None:
    """A started redeploy, an imminent reboot, a later termination, an unknown type, a freeze, in any order of input."""
    events = [
        statuses.started({**REBOOT, "EventId": "0", "EventType": "Redeploy"}),
        {**REBOOT, "EventId": "1", "NotBefore": "Fri, 21 Nov 2025 12:05:00 GMT"},
        {**REBOOT, "EventId": "2", "EventType": "Terminate"},
        {**FREEZE, "EventId": "3", "EventType": "Levitate", "NotBefore": "Fri, 21 Nov 2025 12:01:00 GMT"},
        statuses.started({**FREEZE, "EventId": "4"}),
    ]
    scenario = EventScenario()
    scenario.read(*events[first:], *events[:first])
    status = scenario.status()
    assert [event["event_id"] for event in answered(status, scenario.instant)["events"]] == ["0", "1", "2", "3", "4"]
    title = verdict(shown(status))[1]
    assert title.startswith("Redeploy started just now, and 4 more events")


def test_missing_data_is_never_shown_as_nothing_planned() -> None:
    """Never read, failing, stale, warming up, or unreadable events: the state is unknown, with the reason."""
    empty = statuses.empty_scenario()
    good = empty.status()
    never = Status(Instant(NOON), State(birth=NOON))
    refused = with_source(never, SourceStatus(False, NOON, None, "forbidden", Instant(NOON)))
    earlier = with_source(good, SourceStatus())
    warming = EventScenario()
    warming.read()
    unreadable = statuses.empty_scenario()
    unreadable.read({"EventType": "Freeze"})
    for status, later, sentence in (
        (never, 0, "Not known yetThe metadata service has not been polled yet."),
        (
            refused,
            0,
            "Not known yetThe metadata service has returned no document so far: it denied access to this process (401",
        ),
        (
            statuses.failing_status(statuses.empty_scenario()),
            0,
            "Not known at the momentThe metadata service can't be read: it",
        ),
        (
            good,
            31,
            "Not known at the momentThe metadata service has not been read since. This page shows data from "
            "2025-11-21 12:10:01 UTC (31 s ago).",
        ),
        (earlier, 661, "Not known at the momentThe metadata service has not been read since."),
        (warming.status(), 0, "Not known yetAzure may still be enabling"),
        (unreadable.status(), 0, "Partly unknownThe document contains events that can't be read"),
    ):
        state, text = verdict(shown(status, later))
        assert state == "unknown", sentence
        assert text.startswith(sentence)


def test_last_known_events_stay_on_the_page_with_their_age() -> None:
    page = shown(statuses.failing_status(statuses.scheduled_scenario()))
    text = verdict(page)[1]
    assert "This page shows data from 2025-11-21 12:00:07 UTC (1 min ago)." in text
    assert "Last known: Reboot in 20 min 53 s at the earliest, and 1 more event." in text
    assert len(list(page.all("article"))) == 2
    assert "it did not respond in time" in terms(page)["Metadata service"]


def test_one_failed_poll_is_shown_without_an_alarm() -> None:
    """A fresh document still counts; the failure of the last poll is shown below the verdict."""
    scenario = statuses.empty_scenario()
    status = scenario.status(
        source=SourceStatus(False, scenario.now, Instant(scenario.now), "throttled", Instant(scenario.now))
    )
    state, text = verdict(shown(status, 2))
    assert state == "none"
    assert "can't be read: too many requests from this VM (429)" in text


def test_unknown_name_is_shown_with_its_effect() -> None:
    """Every event is shown, and the reason why none is approved."""
    page = shown(statuses.scheduled_scenario().status(vm=Vm()))
    assert len(list(page.all("article"))) == 3
    assert "name not known yet" in page.one("h1").text
    assert "every event of the document is shown and none is approved" in page.text


def test_closed_event_is_shown_with_its_summary() -> None:
    """Notice, approver, duration, and observed interruption, which is never 0."""
    scenario = statuses.closed_scenario()
    page = shown(scenario.status())
    closed = rows(tables(page)["Closed events, newest first"])
    assert list(closed) == ["Reboot", "Freeze"]
    assert closed["Reboot"]["Outcome"].startswith("canceled by Azure")
    assert closed["Reboot"]["Duration"] == "–"
    freeze = closed["Freeze"]
    assert freeze["Notice"] == "14 min 53 s"
    assert freeze["Started by"] == "this VM (rule short-freeze)"
    assert freeze["Duration"] == "6 s"
    assert freeze["Observed interruption"] == "none observed (≥ 0.2 s)"
    key = folded(FREEZE["EventId"])
    observed = replace(
        scenario.state.closed[key], interruptions=InterruptionTotals(2, 5.2, 4.9), gaps=1, gap_seconds=35
    )
    scenario.state = replace(scenario.state, closed={key: observed})
    closed = rows(tables(shown(scenario.status()))["Closed events, newest first"])
    observed_text = "5.2 s in 2 interruptions, the longest 4.9 s; not monitored for 35 s"
    assert closed["Freeze"]["Observed interruption"] == observed_text


def test_closed_events_of_other_vms_are_left_out() -> None:
    scenario = statuses.scheduled_scenario()
    scenario.read()
    text = shown(scenario.status()).text
    assert FREEZE["EventId"] in text
    assert "neighbour" not in text


def test_destinations_are_shown_with_queue_and_failure() -> None:
    """Queue, oldest, parked, last success, and error of each destination, and an outbox that isn't writable."""
    scenario = statuses.empty_scenario()
    status = scenario.status(
        destinations=[*statuses.outputs(scenario.now), DestinationStatus("spare")], outbox=OutboxStatus(1, 2**20, False)
    )
    page = shown(status)
    outputs = rows(next(table for name, table in tables(page).items() if name.startswith("Destinations of records")))
    assert outputs["Event Hubs"]["State"] == "working"
    assert outputs["OpenTelemetry"]["State"] == "failing: connect"
    assert outputs["OpenTelemetry"]["Undelivered"] == "3"
    assert outputs["OpenTelemetry"]["Oldest undelivered"].endswith("(4 min ago)")
    assert outputs["OpenTelemetry"]["Parked"] == "1"
    assert outputs["spare"]["State"] == "not configured"
    assert "not writable: nothing is approved until it is" in page.text


def test_number_of_events_is_limited_and_the_rest_counted() -> None:
    """A page of a thousand events stays small and contains the number of omitted ones."""
    scenario = statuses.crowded_scenario(1000)
    body = render_page(status_value(scenario.status(), Instant(scenario.now), "1.2.3"))
    page = read(body)
    assert len(list(page.all("article"))) == 20
    assert "980 more events of this VM" in page.text
    assert len(body) < 100_000


def test_started_event_is_shown_despite_many_severe_ones() -> None:
    """The most severe event stays the headline, and a started freeze isn't omitted."""
    scenario = EventScenario()
    scenario.read()
    reboots = [{**REBOOT, "EventId": f"reboot-{place}"} for place in range(49)]
    scenario.read(*reboots, statuses.started(FREEZE))
    page = shown(scenario.status())
    state, text = verdict(page)
    assert state == "started"
    assert text.startswith("Reboot in 21 min 58 s at the earliest, and 49 more events")
    assert text.endswith("Also: Freeze started just now.")
    assert [article.attributes["class"] for article in page.all("article")] == ["scheduled"] * 19 + ["started"]
    scenario.read(*(statuses.started({**FREEZE, "EventId": f"freeze-{place}"}) for place in range(30)), REBOOT)
    page = shown(scenario.status())
    assert verdict(page)[1].startswith("Reboot in 21 min 57 s at the earliest, and 30 more events")


def test_page_is_accessible() -> None:
    """One h1, no skipped level, every table with a caption, scoped heads, and labelled cells, every section named."""
    scenario = statuses.closed_scenario()
    scenario.read(FREEZE)
    page = shown(scenario.status(destinations=statuses.outputs(scenario.now)))
    assert page.one("html").attributes["lang"] == "en"
    assert len(list(page.all("h1"))) == 1
    assert [item.name for item in page.one("body").children] == ["header", "main", "footer"]
    named = {item.attributes["id"] for item in page.all("h2")}
    sections = list(page.all("section"))
    assert sections
    assert {item.attributes["aria-labelledby"] for item in sections} == named
    assert all(list(section.all("h2")) for section in sections if list(section.all("h3")))
    every_table = list(page.all("table"))
    assert every_table
    for table in every_table:
        assert table.one("caption").text
        assert {head.attributes["scope"] for head in table.all("th")} == {"col", "row"}
        assert all(cell.attributes["data-label"] and cell.attributes["role"] == "cell" for cell in table.all("td"))
    assert {link.attributes["href"] for link in page.all("a")} == {
        *("/metrics", "/api/v1/status", "/-/healthy", "/-/ready"),
        f"{RUNBOOK}#azurescheduledeventsmaintenancescheduled",
    }


DASHBOARD = "https://grafana.example/d/vm?var-instance={resource_group}/{vm_name}"


def test_configured_dashboard_is_linked() -> None:
    """The VM's name is escaped in the configured address; without a name there is no link."""
    status = replace(
        statuses.empty_scenario().status(), vm=replace(statuses.VM, resource_group="SHOP-prod", name='a&b="/#é')
    )
    for vm, template, expected in (
        (status.vm, DASHBOARD, "https://grafana.example/d/vm?var-instance=shop-prod/a%26b%3D%22%2F%23%C3%A9"),
        (replace(status.vm, resource_group=""), DASHBOARD, None),
        (Vm(), DASHBOARD, None),
        (Vm(), "https://grafana.example/fleet", "https://grafana.example/fleet"),
        (status.vm, "", None),
    ):
        value = answered(replace(status, vm=vm), Instant(NOON), dashboard_url=template)
        assert value["links"]["dashboard"] == expected
        addresses = [link.attributes["href"] for link in read(render_page(value)).all("a")]
        assert (expected in addresses) is (expected is not None)
        assert len(addresses) == (6 if expected else 5)


def test_runbook_link_follows_the_most_severe_condition() -> None:
    """Each state links to its section, and the runbook has all these sections."""
    preempt = EventScenario()
    preempt.read({**FREEZE, "EventType": "Preempt"})
    soon = EventScenario()
    soon.read({**REBOOT, "NotBefore": "Fri, 21 Nov 2025 12:05:00 GMT"})
    on = EventScenario()
    on.read(statuses.started(REBOOT))
    empty = statuses.empty_scenario()
    parked = empty.status(destinations=[DestinationStatus("otlp", True, parked=1)])
    behind = empty.status(destinations=[DestinationStatus("otlp", True, error="connect")])
    sections = {
        "": empty.status(),
        "maintenancescheduled": statuses.scheduled_scenario().status(),
        "maintenanceimminent": soon.status(),
        "maintenancestuck": on.status(),
        "spotpreemption": preempt.status(),
        "nameunknown": statuses.scheduled_scenario().status(vm=Vm()),
        "sourcefailing": statuses.failing_status(statuses.scheduled_scenario()),
        "datastale": with_source(empty.status(), SourceStatus()),
        "outboxunwritable": empty.status(outbox=OutboxStatus(1, 2**20, False)),
        "destinationparked": parked,
        "destinationbehind": behind,
    }
    runbook = (Path(__file__).parents[2] / "alerts" / "RUNBOOK.md").read_text(encoding="utf-8")
    anchors = {line[3:].lower() for line in runbook.splitlines() if line.startswith("## ")}
    for section, status in sections.items():
        expected = f"azurescheduledevents{section}" if section else ""
        now = Instant(status.state.process.source.last_poll or NOON)
        assert answered(status, now)["links"]["runbook"].partition("#")[2] == expected
        assert not expected or expected in anchors
