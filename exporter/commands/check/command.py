"""`check`: the whole configuration, its files included, with every error at once; with `--probe`, what it points at."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import Final

from exporter.commands.check.event_files import open_to_writers
from exporter.commands.check.files import file_errors, missing_packages, readable_secrets
from exporter.commands.check.probe import run_probes
from exporter.commands.check.report import Finding, ProbeEnvironment, Timeouts, Verdict
from exporter.commands.check.summary import summary
from exporter.commands.stops import left_on_stop
from exporter.config.load import ConfigError, load
from exporter.config.schema import Settings
from exporter.config.sources import add_flags
from exporter.exit_codes import DONE, FAILED
from exporter.log.libraries import captured_libraries
from exporter.log.log import Log
from exporter.secrets import Secret, Sieve
from exporter.text.terminal import say

_SHORTEST_HIDDEN: Final = 4
"""Characters: a shorter secret would blank out half of every sentence."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `check`: those of `run`, and `--probe`."""
    parser.add_argument(
        "--probe",
        action="store_true",
        help="Also try the metadata service, each configured destination, the outbox and the address to listen on, for "
        f"at most {Timeouts().total:g} s. Approves and publishes nothing; asking for events switches Scheduled Events "
        "on for the VM, as any reader does. Exit code 1 if anything fails.",
    )
    add_flags(parser)


def check(args: argparse.Namespace, environment: ProbeEnvironment | None = None) -> int:
    """Run the command. Returns the exit code, 1 when a probe failed. Raises `ConfigError` with all errors.

    `environment` is what lies outside of the settings, by default that of this process.
    """
    if environment is None:
        environment = ProbeEnvironment(os.environ)
    settings = validated(args, environment)
    _print("configuration is valid", settings.secrets)
    for name, text in summary(settings):
        _print(f"  {name:<13} {text}", settings.secrets)
    doubts = (*readable_secrets(settings, environment), *open_to_writers(settings), *missing_packages(settings))
    for warning in (*settings.warnings, *doubts):
        _print(f"warning: {warning}", settings.secrets)
    if not args.probe:
        return DONE
    _print("", ())
    total = environment.timeouts.total
    _print(f"probing, for at most {total:g} s; nothing is approved or published", settings.secrets)
    with left_on_stop(), captured_libraries(Log(None)):
        findings = run_probes(settings, environment)
    print_findings(findings, settings.secrets)
    return FAILED if any(finding.verdict is Verdict.FAIL for finding in findings) else DONE


def validated(args: argparse.Namespace, environment: ProbeEnvironment) -> Settings:
    """The settings. Raises `ConfigError` with the errors of the settings and of all files that they name."""
    errors: tuple[str, ...] = ()
    settings = Settings()
    try:
        settings = load(args, environment.environ, mounts=environment.mounts)
    except ConfigError as error:
        errors = error.errors
    errors += tuple(error for error in file_errors(args, environment.environ) if error not in errors)
    if errors:
        raise ConfigError(errors)
    return settings


def print_findings(findings: Iterable[Finding], secrets: Iterable[Secret]) -> None:
    """Print one line for each finding, without any of these secrets."""
    for finding in findings:
        _print(f"{finding.verdict:<5} {finding.topic:<11} {finding.sentence}", secrets)


def _print(text: str, secrets: Iterable[Secret]) -> None:
    """One line, without any secret in it, whoever wrote it."""
    say(Sieve(secrets, _SHORTEST_HIDDEN)(text))
