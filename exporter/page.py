"""The landing page: what a person on call sees first. This VM, what is coming and when, what we decided and why.

A page of one status, complete without scripts and without anything from elsewhere. It never looks calm while the agent
is blind: what is not known is said to be so, and what is shown then is said to be old.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from exporter.lifecycle import Instant, Phase, Tracked
from exporter.page_html import (
    NOTHING,
    PAGE_CONTENT_TYPE,
    PAGE_HEADERS,
    STYLE,
    Html,
    icon,
    join,
    listed,
    moment,
    outside,
    tag,
    text,
)
from exporter.page_sections import sections
from exporter.page_words import MEANING, ago, failure, headline
from exporter.status import Status, urgency

__all__ = ["PAGE_CONTENT_TYPE", "PAGE_HEADERS", "render_page"]

REFRESH_SECONDS: Final = 10
ICONS: Final = {"calm": "#1c7c4a", "coming": "#e09a1a", "on": "#d3342b", "blind": "#8a5fc7"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The page in one sentence. `tone` is a class of the style and a colour of the tab's dot."""

    tone: str
    title: str
    lines: tuple[Html, ...] = ()


def render_page(status: Status, now: Instant, version: str) -> bytes:
    """The landing page of one status, in UTF-8. Send `PAGE_HEADERS` with it."""
    own = sorted(status.own_events, key=urgency)
    verdict = _verdict(status, own, now)
    name = status.vm.name or "this VM"
    head = join(
        (
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<meta name="color-scheme" content="light dark">'),
            Html(f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'),
            tag("title", text(f"{verdict.title} · {name[:100]}")),
            Html(f'<link rel="icon" href="{icon(ICONS[verdict.tone])}">'),
            Html(f"<style>{STYLE}</style>"),
        )
    )
    body = join(
        (
            tag("header", tag("h1", *_name(status)), _about(status), _banner(verdict)),
            tag("main", *sections(status, own, now)),
            _footer(now, version),
        )
    )
    page = f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'
    return page.encode("utf-8", "replace")


def _name(status: Status) -> Iterator[Html]:
    if status.vm.name:
        yield outside(status.vm.name)
    else:
        yield text("This VM (its name is not known yet)")


def _about(status: Status) -> Html:
    vm = status.vm
    zone = f"{vm.location}, zone {vm.zone}" if vm.location and vm.zone else vm.location
    said = [vm.size, zone, vm.resource_group, vm.vmss_name, vm.node]
    parts = [outside(part, limit=120) for part in said if part]
    if vm.priority and vm.priority != "Regular":
        parts.insert(0, outside(vm.priority, limit=40))
    return tag("p", listed((text("Azure scheduled events"), *parts), " · "), class_="soft")


# --- the verdict ------------------------------------------------------------------------------------------------------


def _verdict(status: Status, own: list[Tracked], now: Instant) -> Verdict:
    if _last_read(status) is None:
        return Verdict("blind", "Not known yet", (text(_never_read(status)),))
    if not status.fresh(now):
        return Verdict("blind", "Not known at the moment", (_age(status, now), *_headline(own, now)))
    found = _present(status, own, now)
    return found if status.source.up else replace(found, lines=(*found.lines, _age(status, now)))


def _present(status: Status, own: list[Tracked], now: Instant) -> Verdict:
    """What a document that was just read says."""
    if own:
        return _busy(own, now)
    if status.warming(now):
        say = "Azure may still be enabling the service for this VM: up to five minutes after the first request."
        return Verdict("blind", "Not known yet", (text(say),))
    if status.state.document is not None and status.state.document.rejected:
        say = "The document holds events that can't be read; the log and the records have them."
        return Verdict("blind", "Not known for sure", (text(say),))
    read = _last_read(status)
    as_of = join((text(", as of "), moment(read.wall))) if read else NOTHING
    say = "The metadata service names no event for this VM"
    return Verdict("calm", "Nothing is planned", (join((text(say), as_of, text("."))),))


def _last_read(status: Status) -> Instant | None:
    """When the document that we know was read, perhaps by an earlier process."""
    return status.source.success or (status.state.last_good if status.state.document else None)


def _never_read(status: Status) -> str:
    reason = status.source.failure
    if not reason:
        return "The metadata service has not been asked yet."
    return f"The metadata service gave no document so far: {failure(reason)}."


def _age(status: Status, now: Instant) -> Html:
    """That the source fails, why, and how old everything else on this page is."""
    reason, read = status.source.failure, _last_read(status)
    why = f"can't be read: {failure(reason)}" if reason else "was not read again"
    say = text(f"The metadata service {why}.")
    if read is None:
        return say
    if now.since(read) is None:
        return join(
            (
                say,
                text(" This page shows what was known at "),
                moment(read.wall),
                text(", before the clock was set back."),
            )
        )
    return join((say, text(f" This page shows what was known {ago(read, now)}, at "), moment(read.wall), text(".")))


def _headline(own: list[Tracked], now: Instant) -> Iterator[Html]:
    if own:
        yield text(f"Known then: {headline(own[0], now)}.")
    else:
        yield text("No event of this VM was known then.")


def _busy(own: list[Tracked], now: Instant) -> Verdict:
    first = own[0]
    tone = "on" if first.phase is Phase.STARTED else "coming"
    return Verdict(tone, headline(first, now), tuple(_more(own)))


def _more(own: list[Tracked]) -> Iterator[Html]:
    meaning = MEANING.get(own[0].event.event_type or "")
    if meaning:
        yield text(meaning)
    if len(own) > 1:
        yield text(f"{len(own) - 1} more below.")


def _banner(verdict: Verdict) -> Html:
    lines = (tag("p", line) for line in verdict.lines)
    return tag("div", tag("strong", text(verdict.title)), *lines, class_=f"verdict {verdict.tone}")


def _footer(now: Instant, version: str) -> Html:
    links = (("/metrics", "Metrics"), ("/-/healthy", "Healthy?"), ("/-/ready", "Ready?"))
    items = (tag("li", tag("a", text(name), href=path)) for path, name in links)
    nav = tag("nav", tag("ul", *items), aria_label="Links")
    said = join((text("As of "), moment(now.wall), text(f", renewed every {REFRESH_SECONDS} s · ")))
    return tag("footer", nav, tag("p", said, text(f"azure-scheduled-events-exporter {version}")))
