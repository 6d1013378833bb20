"""The landing page for on-call operators: this VM, its events with their times, and the decisions with their reasons.

The page needs no scripts and no external resources. While the metadata service returns no data, its verdict is unknown,
and it marks the data that it still shows as old.

It is rendered from the JSON value of `status` only, so it shows nothing that `/api/v1/status` doesn't contain. This
module computes plain values, `page.html` lays them out, and `style.css` styles them. jinja2 escapes all values; it is
imported with the first page, not with the agent. External text (descriptions, ids, names) is also `Quoted`: isolated
from the page's text direction, truncated, and with escapes for characters that hide or reorder text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from exporter.core.state import Phase
from exporter.page.sentences import (
    COORDINATIONS,
    MODES,
    decision_text,
    failure,
    impact_text,
    not_before_distance,
    start_text,
)
from exporter.text.format import ago, counted, moment, size, span
from exporter.text.terminal import printable
from exporter.text.timeline import UNKNOWN, announced_duration, approver_text, observed_interruption, starter_text

if TYPE_CHECKING:
    from jinja2 import Template

REFRESH_SECONDS: Final = 10
MAX_QUOTED: Final = 600
ICONS: Final = {"none": "1c7c4a", "scheduled": "e09a1a", "started": "d3342b", "unknown": "8a5fc7"}
DESTINATION_NAMES: Final = {"event_hubs": "Event Hubs", "otlp": "OpenTelemetry"}
OUTCOMES: Final = {"completed": "completed", "canceled": "canceled by Azure", "ended": "ended, outcome not observed"}

# Read as text: the line ends must be those that the browser hashes, whatever the checkout uses.
STYLE: Final = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
TEMPLATE: Final = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
"""Read at import, as the style is: an upgrade may replace the files of a running agent."""
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
PAGE_CONTENT_TYPE: Final = "text/html; charset=utf-8"
PAGE_HEADERS: Final = (
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
"""Headers of the page: no scripts, no resources, no framing, and no caching."""


# --- the values of a page ---------------------------------------------------------------------------------------------


class Marked(Struct, frozen=True):
    """Text of the page itself with a CSS class: `good` or `bad`."""

    text: str
    style: str


class Quoted(Struct, frozen=True):
    """External text from `quoted`: escaped and truncated, with the number of omitted characters."""

    text: str
    style: str
    omitted: int


Part = str | datetime | Marked | Quoted
Value = Part | tuple[Part, ...]
"""The content of one place of the page; "\\n" is a line break. A row of terms with an empty value is omitted."""


class Card(Struct, frozen=True):
    """One open event."""

    state: str
    title: Value
    when: str
    rows: tuple[tuple[str, Value], ...]


Json = Mapping[str, Any]
"""A JSON object of the status."""


def render_page(status: Json) -> bytes:
    """Return the landing page of a status (`status.status_value`) in UTF-8. Send `PAGE_HEADERS` with it."""
    verdict, name = status["verdict"], status["vm"]["name"]
    page = _template().render(
        title=f"{verdict['title']} · {(name or 'this VM')[:100]}",
        icon=ICONS[verdict["state"]],
        refresh_seconds=REFRESH_SECONDS,
        name=quoted(name) if name else "This VM (name not known yet)",
        name_known=bool(name),
        about=tuple(_about(status["vm"])),
        verdict=verdict,
        events=tuple(_card(event) for event in status["events"]),
        events_omitted=status["events_omitted"],
        rest=_rest(status["document"]),
        closed=tuple(_closed(event) for event in status["closed"]),
        destinations=tuple(_destination(destination) for destination in status["destinations"]),
        outbox=_outbox(status["outbox"]),
        source=_source(status),
        now=_time(status["as_of"]),
        version=status["agent"]["version"],
        links=status["links"],
    )
    return page.encode("utf-8", "replace")


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415  # 2 MiB of memory, only if the page is requested

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["moment"] = moment
    environment.globals["style"] = STYLE
    return environment.from_string(TEMPLATE)


# --- external text ----------------------------------------------------------------------------------------------------


def quoted(value: str, style: str = "", limit: int = MAX_QUOTED, omitted: int = 0) -> Quoted:
    """Return external text, truncated to `limit` characters, with line breaks kept.

    `style`: further CSS classes; `omitted`: characters that were already cut. Stacked combining marks stay: the style
    clips them.
    """
    shown = "\n".join(map(printable, value[:limit].split("\n")))
    return Quoted(shown, f"outside {style}".rstrip(), max(0, len(value) - limit) + omitted)


def _outside(event: Json, name: str, limit: int = MAX_QUOTED) -> Part:
    """Return a text of an event; "" if it has none."""
    text = event[name]
    return quoted(text, limit=limit, omitted=event["omitted_characters"].get(name, 0)) if text else ""


# --- this VM and its events -------------------------------------------------------------------------------------------


def _about(vm: Json) -> Iterator[Value]:
    yield "Azure scheduled events"
    if vm["priority"] and vm["priority"] != "Regular":
        yield quoted(vm["priority"], limit=40)
    zone = f"{vm['location']}, zone {vm['zone']}" if vm["location"] and vm["zone"] else vm["location"]
    for detail in (vm["size"], zone, vm["resource_group"], vm["vmss_name"], vm["node"]):
        if detail:
            yield quoted(detail, limit=120)


def _card(event: Json) -> Card:
    started = event["status"] == Phase.STARTED
    rows: tuple[tuple[str, Value], ...] = (
        ("Impact", impact_text(event)),
        ("Description", _outside(event, "description")),
        ("Not before", _not_before(event)),
        ("Started", _past(event, "started") if started else ""),
        ("Started by", starter_text(event["started_by"], event["approval_rule"] or "") if started else ""),
        ("Announced interruption", announced_duration(event["announced_duration_seconds"])),
        ("Decision", decision_text(event) if not started else ""),
        ("Approved", _past(event, "approved")),
        (
            "Outdated",
            Marked("the event changed after this VM approved it; it would now be held", "bad")
            if event["approval_outdated"]
            else "",
        ),
        ("Resources", _resources(event)),
        ("Source", _outside(event, "event_source", 60)),
        ("Status", _status(event)),
        ("First seen", _past(event, "first_seen")),
        ("Unreadable fields", _listed([quoted(name, limit=80) for name in event["faults"]], event["faults_omitted"])),
        ("EventId", quoted(event["event_id"], "id")),
    )
    title = _outside(event, "event_type", 60) or "Event of unknown type"
    return Card("started" if started else "scheduled", title, start_text(event), rows)


def _status(event: Json) -> Value:
    """Return Azure's status, after the known phase if they differ: a started event stays Started."""
    value = _outside(event, "event_status", 60) or UNKNOWN
    known = event["status"] not in (Phase.UNKNOWN, event["event_status"])
    return (event["status"], " (now in the document: ", value, ")") if known else value


def _time(time: str) -> datetime:
    return datetime.fromisoformat(time)


def _not_before(event: Json) -> Value:
    """Return NotBefore with its distance; "" if the event has started or NotBefore is unknown."""
    left = event["not_before_in_seconds"]
    return "" if left is None else (_time(event["not_before"]), f" ({not_before_distance(event)})")


def _past(value: Json, name: str) -> Value:
    """Return a past time with its age in whole seconds, as in the headline; "" if unknown."""
    time, seconds = value[f"{name}_at"], value[f"{name}_seconds_ago"]
    return "" if time is None else (_time(time), f" ({ago(None if seconds is None else int(seconds))})")


def _resources(event: Json) -> Value:
    resources = event["resources"]
    if resources is None:
        return "resources that can't be read"
    own: list[Part] = ["this VM"] if event["names_this_vm"] else []
    others = [quoted(name, limit=80) for name in resources["others"]]
    return _listed([*own, *others], resources["others_omitted"]) or "no resources"


def _listed(parts: list[Part], omitted: int) -> Value:
    """Return the parts separated by commas, with the number of omitted ones."""
    more = [f"{omitted} more"] if omitted else []
    return tuple(part for shown in (*parts, *more) for part in (", ", shown))[1:]


def _rest(document: Json | None) -> str:
    if document is None:
        return ""
    others, unread = document["events_of_other_vms"], document["unreadable"]
    parts = [f"{counted(others, 'further event')} of other VMs" if others else ""]
    parts.append(f"{unread} that can't be read" if unread else "")
    return " and ".join(part for part in parts if part)


def _closed(event: Json) -> tuple[Value, ...]:
    summary = event["summary"]
    notice, lasted = summary["notice_seconds"], summary["started_duration_seconds"]
    return (
        (_outside(event, "event_type", 40) or "Event", "\n", quoted(event["event_id"], "id soft")),
        (f"{OUTCOMES.get(summary['outcome'], UNKNOWN)} ", _time(summary["gone_at"])),
        UNKNOWN if notice is None else span(max(0.0, notice)),
        approver_text(summary),
        _time(summary["started_at"]) if summary["started_at"] else "not observed",
        "–" if lasted is None else span(lasted),
        observed_interruption(summary),
    )


# --- outputs and source -----------------------------------------------------------------------------------------------


def _destination(destination: Json) -> tuple[Value, ...]:
    name = str(destination["name"])
    name = DESTINATION_NAMES.get(name, name)
    if not destination["configured"]:
        return (name, "not configured", *["–"] * 4)
    works = Marked("working" if destination["last_success_at"] else "nothing sent yet", "good")
    return (
        name,
        Marked(f"failing: {destination['error']}", "bad") if destination["error"] else works,
        str(destination["records"]),
        _past(destination, "oldest") or "–",
        Marked(str(destination["parked"]), "bad") if destination["parked"] else "0",
        _past(destination, "last_success") or "never",
    )


def _outbox(outbox: Json) -> Value:
    if not outbox["writable"]:
        return Marked("not writable: nothing is approved until it is", "bad")
    return f"{size(outbox['bytes'])} of {size(outbox['capacity_bytes'])} used"


def _source(status: Json) -> tuple[tuple[str, Value], ...]:
    source, document, approval = status["source"], status["document"], status["approval"]
    fails = Marked(failure(source["failure"]) if source["failure"] else "not polled yet", "bad")
    conflict = "the configured name differs from the metadata service's; nothing is approved"
    read = _past(source, "last_read") if source["read_by_this_process"] else "none by this process"
    return (
        ("Metadata service", Marked("responding", "good") if source["up"] else fails),
        ("Failing since", _past(source, "failing_since")),
        ("Last successful poll", read),
        ("Poll interval", span(source["poll_interval_seconds"])),
        ("DocumentIncarnation", str(document["incarnation"]) if document else ""),
        ("Warming up", "yes: Azure may still be enabling Scheduled Events" if source["warming"] else ""),
        ("Approvals", MODES[approval["mode"]]),
        ("Coordination", COORDINATIONS[approval["coordination"]]),
        ("Hold file", _hold_file(approval)),
        ("VM name", Marked(conflict, "bad") if status["identity"] == "conflict" else ""),
        ("Gate", status["gate"]["sentence"] if status["gate"] else ""),
        ("Event files", _event_files(status["event_files"])),
        ("Agent started", _past(status["agent"], "started")),
    )


def _hold_file(approval: Json) -> Value:
    if not approval["hold_file"]:
        return ""
    held = Marked("exists, or its absence can't be verified: every event is held", "bad")
    return (quoted(approval["hold_file"]), ": ", held if approval["held"] else "does not exist")


def _event_files(files: Json | None) -> Value:
    if files is None:
        return ""
    state = Marked(files["error"], "bad") if files["error"] else "written"
    return (quoted(files["path"]), ": ", state)
