"""The landing page: the right sentence first, honest when blind, readable as a document."""

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


def test_a_calm_page_says_as_of_when() -> None:
    """Nothing planned, a fresh document: calm, and as of when."""
    page = shown(statuses.empty_scenario().status())
    assert verdict(page) == (
        "none",
        "Nothing is plannedThe metadata service names no event for this VM, as of 2025-11-21 12:10:01 UTC.",
    )
    assert page.one("title").text == "Nothing is planned · shop-web_3"
    assert page.one("h1").text == "shop-web_3"


def test_the_worst_event_is_the_headline() -> None:
    """What takes the VM down is named before a freeze that comes sooner, counted down, and how many more there are."""
    page = shown(statuses.scheduled_scenario().status())
    assert verdict(page) == (
        "scheduled",
        "Reboot in 21 min 53 s, at the earliest, and 1 more eventThe VM is rebooted. What is only in memory is lost.",
    )
    reboot, freeze = page.all("article")
    assert terms(freeze)["Not before"] == "2025-11-21 12:15:00 UTC (in 14 min 53 s)"
    assert terms(freeze)["Decision"] == "Held: it would be approved, but the mode is dry-run (rule short-freeze)"
    assert terms(reboot)["Decision"] == (
        "Held: no rule matches: EventSource differs in user-initiated, EventType in short-freeze"
    )
    assert terms(reboot)["Interruption"] == "Azure does not say"
    assert terms(reboot)["Touches"] == "this VM, shop-web_1"
    assert "The document also holds 1 further event of other VMs." in page.text


def test_a_document_that_says_less_changes_nothing_on_the_page() -> None:
    """What has started stays so, type and names are the last known ones; what Azure says now is next to it."""
    scenario = statuses.scheduled_scenario()
    assert [terms(card)["Status"] for card in shown(scenario.status()).all("article")] == ["Scheduled"] * 2
    scenario.read(statuses.started(REBOOT))
    before = shown(scenario.status())
    for fields, status in (
        ({"EventStatus": "Scheduled"}, "Started (the document now says: Scheduled)"),
        ({"EventStatus": 5}, "Started (the document now says: not known)"),
        ({"EventType": None, "Resources": None, "EventStatus": "Paused"}, "Started (the document now says: Paused)"),
    ):
        scenario.read({**REBOOT, **fields}, after=0)
        page = shown(scenario.status())
        assert verdict(page) == verdict(before)
        (card,), (was,) = page.all("article"), before.all("article")
        assert (card.attributes["class"], card.one("h3").text) == ("started", "Reboot")
        assert terms(card)["Touches"] == terms(was)["Touches"] == "this VM, shop-web_1"
        assert terms(card)["Status"] == status


def test_a_started_freeze_beside_a_reboot_is_told_too() -> None:
    """The reboot to come stays the headline and what has started is said beside it; its card shows who approved it.

    Headline and card have one word for when: in whole seconds.
    """
    page = shown(statuses.started_scenario().status(mode=Mode.ENFORCE), later=3.6)
    state, text = verdict(page)
    assert state == "started"
    assert text.startswith("Reboot in 21 min 45 s, at the earliest, and 1 more event")
    assert text.endswith("Also: Freeze started 3 s ago.")
    card = terms(list(page.all("article"))[1])
    assert card["Started by"] == "this VM (rule short-freeze)"
    assert card["Started"] == "2025-11-21 12:00:11 UTC (3 s ago)"
    assert not {"Not before", "Decision"} & set(card)


@given(notice=st.integers(-900, 900) | st.integers(-3, 3), tenths=st.integers(0, 9))
def test_one_moment_has_one_word(notice: int, tenths: int) -> None:
    """Headline, card and NotBefore say the same of one moment, in the same words: in so long, or due."""
    scenario = EventScenario()
    start = NOON + timedelta(seconds=1 + notice)
    scenario.read({**FREEZE, "NotBefore": start.strftime("%a, %d %b %Y %H:%M:%S GMT")})
    page = shown(scenario.status(), tenths / 10)
    left = notice - tenths / 10
    title, card = plain(page.one("strong").text), next(page.all("article"))
    when = plain(next(item.text for item in card.all("p") if item.attributes.get("class") == "when"))
    not_before = terms(card)["Not before"].partition(" UTC ")[2]
    if left < 1:
        assert (title, when) == (f"Freeze is {when[0].lower()}{when[1:]}", "Due: it may start any moment")
        assert not_before == "(due)" or not_before.startswith("(due for ")
    else:
        assert title == f"Freeze {when[0].lower()}{when[1:]}"
        assert when == f"{not_before[1].upper()}{not_before[2:-1]}, at the earliest"
    assert "now" not in title + when + not_before


@pytest.mark.parametrize(
    ("announced", "observed", "recorded"),
    [
        (5, None, "Azure announces a pause of 5 s. Memory"),
        (30, None, "Azure announces a pause of 30 s. Memory"),
        (0, None, "Azure announces that the VM does not pause. Memory"),
        (-1, None, "The VM pauses, Azure does not say for how long. Memory"),
        (
            5,
            4.9,
            "Azure announces a pause of 5 s. Memory and open files stay, CPU and network may be suspended. "
            "This VM stood still for 4.9 s so far.",
        ),
        (0, 9.0, "may be suspended. This VM stood still for 9 s so far, longer than announced."),
        (-1, 9.0, "may be suspended. This VM stood still for 9 s so far."),
    ],
)
def test_what_is_said_of_a_freeze_agrees_with_azure(announced: int, observed: float | None, recorded: str) -> None:
    """How long it pauses is what Azure announced of this event, and what was felt stands beside it."""
    scenario, event = EventScenario(), {**FREEZE, "DurationInSeconds": announced}
    scenario.read(event)
    if observed is not None:
        scenario.read(statuses.started(event))
        key = folded(FREEZE["EventId"])
        tracked = replace(scenario.state.tracked[key], interruptions=InterruptionTotals(1, observed, observed))
        scenario.state = replace(scenario.state, tracked={key: tracked})
    page = shown(scenario.status())
    assert recorded in verdict(page)[1]
    assert recorded in terms(page.one("article"))["What it means"]
    assert "few seconds" not in page.text


@pytest.mark.parametrize("first", range(5))
def test_events_are_told_by_the_harm_they_do(first: int) -> None:
    """Down and Started, down and soon, down and later, a type that is not known, a freeze: in whatever order."""
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


def test_it_never_looks_calm_when_blind() -> None:
    """Never read, failing, stale, warming up, or with events that can't be read: not known, with the reason."""
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
        (never, 0, "Not known yetThe metadata service has not been asked yet."),
        (
            refused,
            0,
            "Not known yetThe metadata service gave no document so far: it refuses this process (401 or 403).",
        ),
        (
            statuses.failing_status(statuses.empty_scenario()),
            0,
            "Not known at the momentThe metadata service can't be read: it",
        ),
        (
            good,
            31,
            "Not known at the momentThe metadata service was not read again. This page shows what was known 31 s",
        ),
        (earlier, 661, "Not known at the momentThe metadata service was not read again."),
        (warming.status(), 0, "Not known yetAzure may still be enabling"),
        (unreadable.status(), 0, "Not known for sureThe document holds events that can't be read"),
    ):
        state, text = verdict(shown(status, later))
        assert state == "unknown", sentence
        assert text.startswith(sentence)


def test_blind_with_events_still_tells_what_was_known() -> None:
    """The last truth stays on the page, with its age."""
    page = shown(statuses.failing_status(statuses.scheduled_scenario()))
    text = verdict(page)[1]
    assert "This page shows what was known 1 min ago, at 2025-11-21 12:00:07 UTC." in text
    assert "Known then: Reboot in 20 min 53 s, at the earliest, and 1 more event." in text
    assert len(list(page.all("article"))) == 2
    assert "it did not answer in time" in terms(page)["Metadata service"]


def test_one_failed_poll_is_shown_without_an_alarm() -> None:
    """A fresh document stays the answer; that the last poll failed stands beside it."""
    scenario = statuses.empty_scenario()
    status = scenario.status(
        source=SourceStatus(False, scenario.now, Instant(scenario.now), "throttled", Instant(scenario.now))
    )
    state, text = verdict(shown(status, 2))
    assert state == "none"
    assert "can't be read: too many requests from this VM (429)" in text


def test_an_unknown_name_is_shown_with_what_follows_from_it() -> None:
    """Every event is shown, and why none is approved."""
    page = shown(statuses.scheduled_scenario().status(vm=Vm()))
    assert len(list(page.all("article"))) == 3
    assert "its name is not known yet" in page.one("h1").text
    assert "every event of the document is shown and none is approved" in page.text


def test_an_event_that_is_over_has_its_summary() -> None:
    """Notice, who approved, how long it was on, and what was felt; nothing felt is never a 0."""
    scenario = statuses.closed_scenario()
    page = shown(scenario.status())
    closed = rows(tables(page)["The last events that are over, newest first"])
    assert list(closed) == ["Reboot", "Freeze"]
    assert closed["Reboot"]["Outcome"].startswith("canceled by Azure")
    assert closed["Reboot"]["Lasted"] == "–"
    freeze = closed["Freeze"]
    assert freeze["Notice"] == "14 min 53 s"
    assert freeze["Started by"] == "this VM (rule short-freeze)"
    assert freeze["Lasted"] == "6 s"
    assert freeze["Interruption felt"] == "none observed (≥ 0.2 s)"
    key = folded(FREEZE["EventId"])
    observed = replace(
        scenario.state.closed[key], interruptions=InterruptionTotals(2, 5.2, 4.9), gaps=1, gap_seconds=35
    )
    scenario.state = replace(scenario.state, closed={key: observed})
    closed = rows(tables(shown(scenario.status()))["The last events that are over, newest first"])
    assert closed["Freeze"]["Interruption felt"] == "5.2 s in 2 pieces, the longest 4.9 s; not watched for 35 s"


def test_closed_events_of_other_vms_are_left_out() -> None:
    """A neighbour's event that is over does not stand among ours."""
    scenario = statuses.scheduled_scenario()
    scenario.read()
    text = shown(scenario.status()).text
    assert FREEZE["EventId"] in text
    assert "neighbour" not in text


def test_outputs_show_their_queue_and_their_failure() -> None:
    """Queue, oldest, parked, last success and error of each destination, and an outbox that can't be written."""
    scenario = statuses.empty_scenario()
    status = scenario.status(
        destinations=[*statuses.outputs(scenario.now), DestinationStatus("spare")], outbox=OutboxStatus(1, 2**20, False)
    )
    page = shown(status)
    outputs = rows(next(table for name, table in tables(page).items() if name.startswith("Where the records go")))
    assert outputs["Event Hubs"]["State"] == "works"
    assert outputs["OpenTelemetry"]["State"] == "fails: connect"
    assert outputs["OpenTelemetry"]["Waiting"] == "3"
    assert outputs["OpenTelemetry"]["Oldest waiting"].endswith("(4 min ago)")
    assert outputs["OpenTelemetry"]["Parked"] == "1"
    assert outputs["spare"]["State"] == "not configured"
    assert "can't be written: nothing is approved until it can" in page.text


def test_a_crowd_is_cut_and_counted() -> None:
    """A thousand events make a bearable page that says how many it left out."""
    scenario = statuses.crowded_scenario(1000)
    body = render_page(status_value(scenario.status(), Instant(scenario.now), "1.2.3"))
    page = read(body)
    assert len(list(page.all("article"))) == 20
    assert "980 more events of this VM" in page.text
    assert len(body) < 100_000


def test_what_has_started_is_shown_whatever_the_crowd() -> None:
    """Of too many events the worst stays the headline, and a freeze that has started is not among those left out."""
    scenario = EventScenario()
    scenario.read()
    reboots = [{**REBOOT, "EventId": f"reboot-{place}"} for place in range(49)]
    scenario.read(*reboots, statuses.started(FREEZE))
    page = shown(scenario.status())
    state, text = verdict(page)
    assert state == "started"
    assert text.startswith("Reboot in 21 min 58 s, at the earliest, and 49 more events")
    assert text.endswith("Also: Freeze started just now.")
    assert [article.attributes["class"] for article in page.all("article")] == ["scheduled"] * 19 + ["started"]
    scenario.read(*(statuses.started({**FREEZE, "EventId": f"freeze-{place}"}) for place in range(30)), REBOOT)
    page = shown(scenario.status())
    assert verdict(page)[1].startswith("Reboot in 21 min 57 s, at the earliest, and 30 more events")


def test_it_is_a_document_that_anybody_can_read() -> None:
    """One h1, no level left out, every table with a caption, scoped heads and labelled cells, every section named."""
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


def test_a_dashboard_is_linked_where_one_is_configured() -> None:
    """The VM's name is put into the configured address so that it can't leave its place; without a name no link."""
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


def test_the_runbook_is_linked_at_what_the_page_says() -> None:
    """Each state leads to its own section, and the runbook has every section that a page may lead to."""
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
