"""`check`: the whole configuration, its files included, with every error at once; with `--probe`, what it points at."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import Final

from exporter.commands.check.files import file_errors, missing_packages, readable_secrets
from exporter.commands.check.probe import run_probes
from exporter.commands.check.report import Finding, Patience, Verdict, World
from exporter.commands.check.summary import Line, summary
from exporter.config.load import ConfigError, load
from exporter.config.schema import Settings
from exporter.config.sources import add_flags
from exporter.log.libraries import captured_libraries
from exporter.log.log import Log
from exporter.secrets import Secret, Sieve
from exporter.text.terminal import say

_SHORTEST_HIDDEN: Final = 4
"""Characters: a shorter secret would blank out half of every sentence."""
_TOTAL: Final = Patience().total


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `check`: those of `run`, and `--probe`."""
    parser.add_argument(
        "--probe",
        action="store_true",
        help="Also try the metadata service, each configured destination, the outbox and the address to listen on, for "
        f"at most {_TOTAL:g} s. Approves and publishes nothing; asking for events switches Scheduled Events on for "
        "the VM, as any reader does. Exit code 1 if anything fails.",
    )
    add_flags(parser)


def check(args: argparse.Namespace, world: World | None = None) -> int:
    """Prints what was found; answers 0 or, when a probe failed, 1. Raises `ConfigError` with all errors."""
    if world is None:
        world = World(os.environ)
    settings = validated(args, world)
    _say("configuration is valid", settings.secrets)
    _say_lines(summary(settings), settings.secrets)
    for warning in (*settings.warnings, *readable_secrets(settings, world), *missing_packages(settings)):
        _say(f"warning: {warning}", settings.secrets)
    if not args.probe:
        return 0
    _say("", ())
    _say(f"probing, for at most {world.patience.total:g} s; nothing is approved or published", settings.secrets)
    with captured_libraries(Log(None)):
        findings = run_probes(settings, world)
    _say_findings(findings, settings.secrets)
    return 1 if any(finding.verdict is Verdict.FAIL for finding in findings) else 0


def validated(args: argparse.Namespace, world: World) -> Settings:
    """The settings; `ConfigError` with the errors of the settings and of all files that they name."""
    errors: tuple[str, ...] = ()
    settings = Settings()
    try:
        settings = load(args, world.environ, mounts=world.mounts)
    except ConfigError as error:
        errors = error.errors
    errors += tuple(error for error in file_errors(args, world.environ) if error not in errors)
    if errors:
        raise ConfigError(errors)
    return settings


def _say_lines(lines: Iterable[Line], secrets: Iterable[Secret]) -> None:
    for name, text in lines:
        _say(f"  {name:<13} {text}", secrets)


def _say_findings(findings: Iterable[Finding], secrets: Iterable[Secret]) -> None:
    for finding in findings:
        _say(f"{finding.verdict:<5} {finding.topic:<11} {finding.sentence}", secrets)


def _say(text: str, secrets: Iterable[Secret]) -> None:
    """One line, without any secret in it, whoever wrote it."""
    say(Sieve(secrets, _SHORTEST_HIDDEN)(text))
