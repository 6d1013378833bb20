"""What the agent will do with these settings, a line for each thing, without any secret."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from exporter.config.load import policy_values
from exporter.config.schema import EventHubsSettings, GateSettings, Settings, catalogue
from exporter.config.types import Duration
from exporter.core.hours import DAYS, WHOLE_DAY, Hours
from exporter.core.policy import Coordination, Mode, Rule
from exporter.text.format import format_duration
from exporter.web.config_file import read_web_file

Line = tuple[str, str]

_MIB: Final = 1 << 20
_MODES: Final[Mapping[Mode, str]] = {
    Mode.OFF: "off: decides nothing and sends nothing",
    Mode.DRY_RUN: "dry-run: says what it would approve, and sends nothing",
    Mode.ENFORCE: "enforce: APPROVES events by the rules below",
}
_COORDINATIONS: Final[Mapping[Coordination, str]] = {
    Coordination.LEADER: "leader: only the first name in Resources approves",
    Coordination.ANY: "any: every VM that an event names may approve it",
    Coordination.SINGLE: "single: only events that name this VM alone are approved",
}


def summary(settings: Settings) -> Iterator[Line]:
    """Name and text of each line, in the order in which they are printed."""
    source, approval = settings.source, settings.approval
    yield "settings", settings.config_file or "no file: defaults, environment and flags"
    yield (
        "source",
        f"{source.url}, api-version {source.api_version}, asked every {format_duration(source.poll_interval)}",
    )
    yield "this VM", source.vm_name or "its name is asked of the metadata service"
    yield "approval", _MODES[approval.mode]
    if approval.mode is not Mode.OFF:
        yield from _approval(settings)
    yield "records", "of events that name this VM" if settings.records.scope == "own" else "of all events (a witness)"
    yield from _destinations(settings)
    yield "outbox", f"{settings.outbox.path}, at most {settings.outbox.max_bytes / _MIB:.4g} MiB"
    yield "gate", _gate(settings.gate)
    yield "web", f"{settings.web.listen_address}, {_protection(settings)}"
    if settings.event_files.path:
        yield "event files", f"one for each event of this VM in {settings.event_files.path}"
    if settings.recorder.path:
        recorder = settings.recorder
        yield "recorder", f"{recorder.path}, {recorder.files} files of {recorder.max_bytes / _MIB:.4g} MiB"
    yield "log", f"{settings.log.level}, {settings.log.format}"


def values(settings: Settings) -> dict[str, dict[str, Any]]:
    """The settings in force by section and key, as one would write them in the file: durations with a unit. Of a secret
    it says whether there is one."""
    sections: dict[str, dict[str, Any]] = {}
    for setting in catalogue():
        value = getattr(getattr(settings, setting.section), setting.key)
        if setting.secret:
            shown: Any = bool(value)
        elif isinstance(setting.kind, Duration):
            shown = "never" if value is None else format_duration(value)
        else:
            shown = list(value) if isinstance(value, tuple) else value
        sections.setdefault(setting.section, {})[setting.key] = shown
    if settings.otlp.configured:
        sections["otlp"]["endpoint"] = _collector(settings.otlp.logs_url)
    sections["approval"]["rules"] = policy_values(settings.approval.policy)["rules"]
    return sections


def _approval(settings: Settings) -> Iterator[Line]:
    approval = settings.approval
    takeover = ""
    if approval.takeover_after is not None and approval.coordination is Coordination.LEADER:
        takeover = f"; events of users also the next name, each {format_duration(approval.takeover_after)} later"
    yield "coordination", _COORDINATIONS[approval.coordination] + takeover
    for number, rule in enumerate(approval.rules, 1):
        yield f"rule {number}", _rule(rule)
    if not approval.rules:
        yield "rules", "none: every event is held"
    if approval.hold_file:
        yield "hold file", f"{approval.hold_file}: nothing is approved unless it is known to be absent"


def _rule(rule: Rule) -> str:
    parts = [f"{rule.name}: {' or '.join(rule.event_type)}"]
    if rule.event_source:
        parts.append(f"from {' or '.join(rule.event_source)}")
    low, high = rule.min_duration, rule.max_duration
    if low is not None and high is not None:
        parts.append(f"of {low} to {high} s")
    elif low is not None:
        parts.append(f"of {low} s and more")
    elif high is not None:
        parts.append(f"of at most {high} s")
    if rule.settle:
        parts.append(f"unchanged for {format_duration(rule.settle)}")
    if rule.require_file:
        parts.append(f"once {rule.require_file} exists")
    if rule.when_quiet:
        parts.append("while no other event is Started")
    if rule.max_resources is not None:
        parts.append(f"if it names at most {rule.max_resources} VM{'' if rule.max_resources == 1 else 's'}")
    if rule.hours is not None:
        parts.append(_hours(rule.hours))
    return " ".join(parts)


def _hours(hours: Hours) -> str:
    parts = []
    if len(hours.days) < len(DAYS):
        *others, last = (DAYS[day] for day in hours.days)
        parts.append(f"on {', '.join(others)} and {last}" if others else f"on {last}")
    if (hours.start, hours.end) != (0, WHOLE_DAY) or not parts:
        start, end = hours.between.split("-")
        parts.append(f"from {start} to {end}{' of the next day' if hours.over_midnight else ''}")
    return f"{' '.join(parts)}, {hours.timezone}"


def _destinations(settings: Settings) -> Iterator[Line]:
    yield "prometheus", "/metrics at the address below"
    if settings.event_hubs.configured:
        yield "event_hubs", _event_hubs(settings.event_hubs)
    if settings.otlp.configured:
        yield "otlp", f"{_collector(settings.otlp.logs_url)}, within {settings.otlp.timeout:g} s"


def _collector(url: str) -> str:
    """A collector's address without what may be a token: its user, and its path, where some backends have one."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _event_hubs(hubs: EventHubsSettings) -> str:
    connection = hubs.connection
    host = connection.host if connection is not None else hubs.fully_qualified_namespace
    how = "an Azure identity" if connection is None else "a connection string"
    if connection is not None and connection.emulator:
        how += ", to an emulator without TLS"
    through = f" through {hubs.custom_endpoint}" if hubs.custom_endpoint else ""
    trusting = f", trusting the CA in {hubs.certificate}" if hubs.certificate else ""
    return f"{hubs.event_hub} at {host}{through} by {hubs.transport}, with {how}{trusting}"


def _gate(gate: GateSettings) -> str:
    if not gate.event_types:
        return "/-/gate is always 200: no type of event closes it"
    *others, last = gate.event_types
    kinds = f"{', '.join(others)} or {last}" if others else last
    return f"/-/gate is 503 from {format_duration(gate.lead)} before {kinds} until it is over"


def _protection(settings: Settings) -> str:
    if not settings.web.config_file:
        return "without TLS, open to whoever reaches it"
    web, _, _ = read_web_file(Path(settings.web.config_file))
    if web is None:
        return f"as {settings.web.config_file} says"
    tls = "TLS" if web.tls is not None else "without TLS"
    required = []
    if web.tls is not None and web.tls.verify_mode is ssl.CERT_REQUIRED:
        required.append("a client certificate")
    if web.users:
        required.append(f"passwords of {len(web.users)} user{'' if len(web.users) == 1 else 's'}")
    return f"{tls}, {' and '.join(required) or 'open to whoever reaches it'}"
