"""`check`: the whole configuration, its files included, with every error at once; with `--probe`, what it points at."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import asdict

from exporter.commands.check.event_files import open_to_writers
from exporter.commands.check.files import exposed_folders, file_errors, missing_packages, readable_secrets
from exporter.commands.check.probe import run_probes
from exporter.commands.check.report import Finding, ProbeEnvironment, Timeouts, Verdict
from exporter.commands.check.summary import summary, values
from exporter.commands.stops import left_on_stop
from exporter.config.command_line import add_format
from exporter.config.load import ConfigError, load
from exporter.config.schema import Settings
from exporter.config.sources import add_flags
from exporter.errors import BAD_USAGE, DONE, FAILED
from exporter.log.log import Log, captured_libraries
from exporter.secrets import Sieve, redact
from exporter.text.terminal import say, tell

SUMMARY_HANG: Final = 16
WARNING_HANG: Final = 9
FINDING_HANG: Final = 18
"""Where a line goes on: behind its label."""
NOTHING: Final[Mapping[str, object]] = {
    "valid": False,
    "errors": [],
    "warnings": [],
    "settings": None,
    "summary": None,
    "findings": None,
}
"""What `--format json` says where the configuration is not valid. `findings` is null without a probe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `check`: those of `run`, and `--probe`."""
    checking = parser.add_argument_group("checking")
    checking.add_argument(
        "--probe",
        action="store_true",
        help="Also try the metadata service, each configured destination, the outbox and the address to listen on, for "
        f"at most {Timeouts().total:g} s. Approves and publishes nothing; asking for events switches Scheduled Events "
        "on for the VM, as any reader does. Exit code 1 if anything fails.",
    )
    add_format(checking)
    add_flags(parser)


def check(args: argparse.Namespace, environment: ProbeEnvironment | None = None) -> int:
    """Run the command. Returns the exit code, 1 when a probe failed. Raises `ConfigError` with all errors.

    `environment` is what lies outside of the settings, by default that of this process.
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
        tell("configuration is valid")
        for name, text in lines:
            tell(sieve(f"  {name:<13} {text}"), hang=SUMMARY_HANG)
        for warning in warnings:
            tell(sieve(f"warning: {warning}"), hang=WARNING_HANG)
    if args.probe and not as_json:
        tell("")
        tell(f"probing, for at most {environment.timeouts.total:g} s; nothing is approved or published")
    findings: tuple[Finding, ...] = ()
    if args.probe:
        with left_on_stop(), captured_libraries(Log(None)):
            findings = tuple(run_probes(settings, environment))
    if as_json:
        told = {"valid": True, "warnings": list(warnings), "settings": values(settings), "summary": dict(lines)}
        probed = [asdict(finding) for finding in findings] if args.probe else None
        _print_json({**NOTHING, **told, "findings": probed}, sieve)
    else:
        print_findings(findings, sieve)
    return FAILED if any(finding.verdict is Verdict.FAIL for finding in findings) else DONE


def validated(args: argparse.Namespace, environment: ProbeEnvironment) -> Settings:
    """The settings. Raises `ConfigError` with the errors of the settings and of all files that they name."""
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
    """Print one line for each finding, without a secret."""
    for finding in findings:
        tell(sieve(f"{finding.verdict:<5} {finding.topic:<11} {finding.sentence}"), hang=FINDING_HANG)


def _print_json(told: Mapping[str, object], sieve: Sieve) -> None:
    """The whole of it as one JSON object on one line, without any secret in a text of it."""
    say(json.dumps(_sifted(told, sieve), ensure_ascii=False))


def _sifted(value: object, sieve: Sieve) -> object:
    """The value with every text in it sifted: in JSON a secret may be written otherwise."""
    if isinstance(value, str):
        return sieve(value)
    if isinstance(value, Mapping):
        return {name: _sifted(item, sieve) for name, item in value.items()}
    return [_sifted(item, sieve) for item in value] if isinstance(value, list) else value
