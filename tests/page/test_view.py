"""The landing page: the right sentence first, honest when blind, readable as a document."""

from __future__ import annotations

from dataclasses import replace

from exporter.core.folding import folded
from exporter.core.policy import Mode
from exporter.core.records import Vm
from exporter.core.snapshot import DestinationStatus, OutboxStatus, Status
from exporter.core.state import Instant, InterruptionTotals, SourceStatus, State
from exporter.page.status import status_value
from exporter.page.view import render_page
from tests.support import statuses
from tests.support.page_reading import read, rows, shown, tables, terms, verdict
from tests.support.statuses import FREEZE, NOON, Story


def test_a_calm_page_says_as_of_when() -> None:
    """Nothing planned, a fresh document: calm, and as of when."""
    page = shown(statuses.empty_story().status())
    assert verdict(page) == (
        "calm",
        "Nothing is plannedThe metadata service names no event for this VM, as of 2025-11-21 12:10:01 UTC.",
    )
    assert page.one("title").text == "Nothing is planned · shop-web_3"
    assert page.one("h1").text == "shop-web_3"


def test_the_event_that_starts_soonest_is_the_headline() -> None:
    """The event that starts soonest is the headline, counted down and with its absolute time."""
    page = shown(statuses.scheduled_story().status())
    tone, text = verdict(page)
    assert tone == "coming"
    assert text.startswith("Freeze in 14 min 53 s, at the earliestThe VM pauses for a few seconds.")
    freeze, reboot = page.all("article")
    assert terms(freeze)["Not before"] == "2025-11-21 12:15:00 UTC (in 14 min 53 s)"
    assert terms(freeze)["Decision"] == "Held: it would be approved, but the mode is dry-run (rule short-freeze)"
    assert terms(reboot)["Decision"] == "Held: no rule matches"
    assert terms(reboot)["Interruption"] == "Azure does not say"
    assert terms(reboot)["Touches"] == "this VM, shop-web_1"
    assert "The document also holds 1 further event of other VMs." in page.text


def test_a_started_event_outranks_a_scheduled_one() -> None:
    """A started event is the headline; the card shows who approved it, and no NotBefore."""
    page = shown(statuses.started_story().status(mode=Mode.ENFORCE), later=3)
    assert verdict(page)[0] == "on"
    assert verdict(page)[1].startswith("Freeze has been on for 3 s")
    card = terms(next(page.all("article")))
    assert card["Approved by"] == "us (rule short-freeze)"
    assert card["Started"] == "2025-11-21 12:00:11 UTC (3 s ago)"
    assert not {"Not before", "Decision"} & set(card)


def test_an_event_that_is_due_is_not_counted_down() -> None:
    """NotBefore has passed and it is still Scheduled: any moment now."""
    story = statuses.scheduled_story()
    story.wait(15 * 60)
    page = shown(story.status())
    assert verdict(page)[1].startswith("Freeze is due: it may start any moment")


def test_it_never_looks_calm_when_blind() -> None:
    """Never read, failing, stale, warming up, or with events that can't be read: not known, with the reason."""
    empty = statuses.empty_story()
    good = empty.status()
    never = Status(NOON, State(birth=NOON))
    refused = replace(never, source=SourceStatus(False, NOON, None, "forbidden", NOON))
    earlier = replace(good, source=SourceStatus())
    warming = Story()
    warming.read()
    unreadable = statuses.empty_story()
    unreadable.read({"EventType": "Freeze"})
    for status, later, sentence in (
        (never, 0, "Not known yetThe metadata service has not been asked yet."),
        (
            refused,
            0,
            "Not known yetThe metadata service gave no document so far: it refuses this process (401 or 403).",
        ),
        (
            statuses.failing_status(statuses.empty_story()),
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
        tone, text = verdict(shown(status, later))
        assert tone == "blind", sentence
        assert text.startswith(sentence)


def test_blind_with_events_still_tells_what_was_known() -> None:
    """The last truth stays on the page, with its age."""
    page = shown(statuses.failing_status(statuses.scheduled_story()))
    text = verdict(page)[1]
    assert "This page shows what was known 1 min ago, at 2025-11-21 12:00:07 UTC." in text
    assert "Known then: Freeze in 13 min 53 s, at the earliest." in text
    assert len(list(page.all("article"))) == 2
    assert "it did not answer in time" in terms(page)["Metadata service"]


def test_one_failed_poll_is_shown_without_an_alarm() -> None:
    """A fresh document stays the answer; that the last poll failed stands beside it."""
    story = statuses.empty_story()
    status = story.status(source=SourceStatus(False, story.now, story.now, "throttled", story.now))
    tone, text = verdict(shown(status, 2))
    assert tone == "calm"
    assert "can't be read: too many requests from this VM (429)" in text


def test_an_unknown_name_is_shown_with_what_follows_from_it() -> None:
    """Every event is shown, and why none is approved."""
    page = shown(statuses.scheduled_story().status(vm=Vm()))
    assert len(list(page.all("article"))) == 3
    assert "its name is not known yet" in page.one("h1").text
    assert "every event of the document is shown and none is approved" in page.text


def test_an_event_that_is_over_has_its_account() -> None:
    """Notice, who approved, how long it was on, and what was felt; nothing felt is never a 0."""
    story = statuses.closed_story()
    page = shown(story.status())
    closed = rows(tables(page)["The last events that are over, newest first"])
    assert list(closed) == ["Reboot", "Freeze"]
    assert closed["Reboot"]["Outcome"].startswith("canceled by Azure")
    assert closed["Reboot"]["Lasted"] == "–"
    freeze = closed["Freeze"]
    assert freeze["Notice"] == "14 min 53 s"
    assert freeze["Approved by"] == "us (rule short-freeze)"
    assert freeze["Lasted"] == "6 s"
    assert freeze["Interruption felt"] == "none observed (≥ 0.2 s)"
    key = folded(FREEZE["EventId"])
    felt = replace(story.state.closed[key], interruptions=InterruptionTotals(2, 5.2, 4.9), gaps=1, gap_seconds=35)
    story.state = replace(story.state, closed={key: felt})
    closed = rows(tables(shown(story.status()))["The last events that are over, newest first"])
    assert closed["Freeze"]["Interruption felt"] == "5.2 s in 2 pieces, the longest 4.9 s; not watched for 35 s"


def test_closed_events_of_other_vms_are_left_out() -> None:
    """A neighbour's event that is over does not stand among ours."""
    story = statuses.scheduled_story()
    story.read()
    text = shown(story.status()).text
    assert FREEZE["EventId"] in text
    assert "neighbour" not in text


def test_outputs_show_their_queue_and_their_failure() -> None:
    """Queue, oldest, parked, last success and error of each destination, and an outbox that can't be written."""
    story = statuses.empty_story()
    status = story.status(
        destinations=[*statuses.outputs(story.now), DestinationStatus("spare")], outbox=OutboxStatus(1, 2**20, False)
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
    story = statuses.crowded_story(1000)
    body = render_page(status_value(story.status(), Instant(story.now), "1.2.3"))
    page = read(body)
    assert len(list(page.all("article"))) == 20
    assert "980 more events of this VM" in page.text
    assert len(body) < 100_000


def test_it_is_a_document_that_anybody_can_read() -> None:
    """One h1, no level left out, every table with a caption, scoped heads and labelled cells, every section named."""
    story = statuses.closed_story()
    story.read(FREEZE)
    page = shown(story.status(destinations=statuses.outputs(story.now)))
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
        *("/metrics", "/api/v1/status", "/-/healthy", "/-/ready")
    }
