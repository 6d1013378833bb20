"""The command `check`: reports every error of the configuration and its files at once; `--probe` tests the services.

For a valid configuration it prints what the agent will do, one line for each topic, without any secret.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict

from exporter.commands.check.destinations import origin
from exporter.commands.check.disk import open_to_writers
from exporter.commands.check.files import exposed_folders, file_errors, missing_packages, readable_secrets
from exporter.commands.check.probe import run_probes
from exporter.commands.check.report import Finding, FindingVerdict, ProbeEnvironment, Timeouts
from exporter.commands.stops import left_on_stop
from exporter.config.command_line import add_format
from exporter.config.load import ConfigError, load, policy_values, value_text
from exporter.config.rules import rule_table
from exporter.config.schema import EventHubsSettings, GateSettings, Settings, catalogue
from exporter.config.sources import add_flags
from exporter.config.types import Duration
from exporter.core.policy import Coordination, Mode, Rule
from exporter.errors import BAD_USAGE, DONE, FAILED
from exporter.log.log import Log, captured_libraries
from exporter.secrets import Sieve, redact
from exporter.text.format import counted, format_duration
from exporter.text.terminal import print_line, print_wrapped
from exporter.web.config_file import read_web_file

SUMMARY_HANG: Final = 16
WARNING_HANG: Final = 9
FINDING_HANG: Final = 18
"""Columns before the second line of a wrapped text, which begins below the first one's text."""
NOTHING: Final[Mapping[str, object]] = {
    "valid": False,
    "errors": [],
    "warnings": [],
    "settings": None,
    "summary": None,
    "findings": None,
}
"""The output of `--format json` for an invalid configuration. `findings` is null without a probe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `check`: those of `run`, and `--probe`."""
    checking = parser.add_argument_group("checking")
    checking.add_argument(
        "--probe",
        action="store_true",
        help="Also test the metadata service, each configured destination, the outbox, and the listen address, for at "
        f"most {Timeouts().total:g} s. Approves and publishes nothing. Like any client, it enables Scheduled Events "
        "for the VM when it requests the events. Exit code 1 if a test fails.",
    )
    add_format(checking)
    add_flags(parser)


def check(args: argparse.Namespace, environment: ProbeEnvironment | None = None) -> int:
    """Run the command and return the exit code: 1 if a probe failed.

    `environment` defaults to that of this process. Raises `ConfigError` with all errors, unless the format is JSON:
    then they're printed, and the exit code is 2.
    """
    if environment is None:
        environment = ProbeEnvironment(os.environ)
    as_json = args.format == "json"
    try:
        settings = validated(args, environment)
    except ConfigError as error:
        if not as_json:
            raise
        _print_json({**NOTHING, "errors": [redact(text) for text in error.errors]}, Sieve(()))
        return BAD_USAGE
    sieve = Sieve(settings.secrets)
    lines = tuple(summary(settings))
    exposed = (*readable_secrets(settings, environment), *open_to_writers(settings), *exposed_folders(settings))
    warnings = (*settings.warnings, *exposed, *missing_packages(settings))
    if not as_json:
        print_wrapped("configuration is valid")
        for name, text in lines:
            print_wrapped(sieve(f"  {name:<13} {text}"), hang=SUMMARY_HANG)
        for warning in warnings:
            print_wrapped(sieve(f"warning: {warning}"), hang=WARNING_HANG)
    if args.probe and not as_json:
        print_wrapped("")
        print_wrapped(f"testing, for at most {environment.timeouts.total:g} s; nothing is approved or published")
    findings: tuple[Finding, ...] = ()
    if args.probe:
        with left_on_stop(), captured_libraries(Log(None)):
            findings = tuple(run_probes(settings, environment))
    if as_json:
        shown = {"valid": True, "warnings": list(warnings), "settings": values(settings), "summary": dict(lines)}
        probed = [asdict(finding) for finding in findings] if args.probe else None
        _print_json({**NOTHING, **shown, "findings": probed}, sieve)
    else:
        print_findings(findings, sieve)
    return FAILED if any(finding.verdict is FindingVerdict.FAIL for finding in findings) else DONE


def validated(args: argparse.Namespace, environment: ProbeEnvironment) -> Settings:
    """Return the settings. Raises `ConfigError` with the errors of the settings and of all files that they name."""
    errors: tuple[str, ...] = ()
    settings = Settings()
    try:
        settings = load(args, environment.environ)
    except ConfigError as error:
        errors = error.errors
    errors += tuple(error for error in file_errors(args, environment.environ) if error not in errors)
    if errors:
        raise ConfigError(errors)
    return settings


def print_findings(findings: Iterable[Finding], sieve: Sieve) -> None:
    """Print each finding, without secrets."""
    for finding in findings:
        print_wrapped(sieve(f"{finding.verdict:<5} {finding.topic:<11} {finding.sentence}"), hang=FINDING_HANG)


def _print_json(value: Mapping[str, object], sieve: Sieve) -> None:
    """Print the object as JSON on one line, without secrets in its texts."""
    print_line(json.dumps(_sifted(value, sieve), ensure_ascii=False))


def _sifted(value: object, sieve: Sieve) -> object:
    """Return the value with secrets removed from every text in it: JSON escapes could hide a secret from the sieve."""
    if isinstance(value, str):
        return sieve(value)
    if isinstance(value, Mapping):
        return {name: _sifted(item, sieve) for name, item in value.items()}
    return [_sifted(item, sieve) for item in value] if isinstance(value, list) else value


Line = tuple[str, str]

_MIB: Final = 1 << 20
_MODES: Final[Mapping[Mode, str]] = {
    Mode.OFF: "off: decides nothing and sends nothing",
    Mode.DRY_RUN: "dry-run: records what it would approve, and sends nothing",
    Mode.ENFORCE: "enforce: APPROVES events that match the rules below",
}
_COORDINATIONS: Final[Mapping[Coordination, str]] = {
    Coordination.LEADER: "leader: only the first VM in Resources approves",
    Coordination.ANY: "any: every VM in Resources may approve the event",
    Coordination.SINGLE: "single: approves only events whose Resources are just this VM",
}


def summary(settings: Settings) -> Iterator[Line]:
    """Yield the name and the text of each line, in the order in which they are printed."""
    source, approval = settings.source, settings.approval
    yield "settings", settings.config_file or "no file: defaults, environment, and flags"
    yield (
        "source",
        f"{source.url}, api-version {source.api_version}, polled every {format_duration(source.poll_interval)}",
    )
    yield "this VM", source.vm_name or "name from the metadata service"
    yield "approval", _MODES[approval.mode]
    if approval.mode is not Mode.OFF:
        yield from _approval(settings)
    yield "records", "events of this VM" if settings.records.scope == "own" else "all events, also of other VMs"
    yield from _destinations(settings)
    yield "outbox", f"{settings.outbox.path}, at most {settings.outbox.max_bytes / _MIB:.4g} MiB"
    yield "gate", _gate(settings.gate)
    yield "web", f"{settings.web.listen_address}, {_protection(settings)}"
    if settings.event_files.path:
        yield "event files", f"one file for each event of this VM, in {settings.event_files.path}"
    if settings.recording.path:
        recording = settings.recording
        yield "recording", f"{recording.path}, {recording.files} files of {recording.max_bytes / _MIB:.4g} MiB"
    yield "log", f"{settings.log.level}, {settings.log.format}"


def values(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the settings in force by section and key, as written in the settings file: durations with a unit.

    A secret becomes a boolean: whether it is set.
    """
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
        sections["otlp"]["endpoint"] = origin(settings.otlp.logs_url)
    sections["approval"]["rules"] = policy_values(settings.approval.policy)["rules"]
    return sections


def _approval(settings: Settings) -> Iterator[Line]:
    approval = settings.approval
    takeover = ""
    if approval.takeover_after is not None and approval.coordination is Coordination.LEADER:
        takeover = f"; for source User also the next VM, after each {format_duration(approval.takeover_after)}"
    yield "coordination", _COORDINATIONS[approval.coordination] + takeover
    for number, rule in enumerate(approval.rules, 1):
        yield f"rule {number}", _rule(rule)
    if not approval.rules:
        yield "rules", "none: every event is held"
    if approval.hold_file:
        yield "hold file", f"{approval.hold_file}: holds every event unless the file is known to be absent"


def _rule(rule: Rule) -> str:
    """Return the rule's name and the keys that it sets, as in the settings."""
    asked = (f"{key} {value_text(value)}" for key, value in rule_table(rule).items() if key != "name")
    return f"{rule.name}: {'; '.join(asked)}"


def _destinations(settings: Settings) -> Iterator[Line]:
    yield "prometheus", "/metrics at the address below"
    if settings.event_hubs.configured:
        yield "event_hubs", _event_hubs(settings.event_hubs)
    if settings.otlp.configured:
        yield "otlp", f"{origin(settings.otlp.logs_url)}, within {settings.otlp.timeout:g} s"


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
        return "/-/gate always returns 200: no event type closes it"
    *others, last = gate.event_types
    kinds = f"{', '.join(others)} or {last}" if others else last
    return f"/-/gate returns 503 from {format_duration(gate.lead)} before {kinds} until the event has ended"


def _protection(settings: Settings) -> str:
    if not settings.web.config_file:
        return "without TLS, open to every client"
    web, _, _ = read_web_file(Path(settings.web.config_file))
    if web is None:
        return f"as set in {settings.web.config_file}"
    tls = "TLS" if web.tls is not None else "without TLS"
    required = []
    if web.tls is not None and web.tls.verify_mode is ssl.CERT_REQUIRED:
        required.append("a client certificate")
    if web.users:
        required.append(f"a password ({counted(len(web.users), 'user')})")
    return f"{tls}, {'requires ' + ' and '.join(required) if required else 'open to every client'}"
