"""The console command: its subcommands, and the exit codes 0 done, 1 failed, 2 bad usage or bad configuration."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from exporter import __version__
from exporter.config.command_line import FlagParser
from exporter.config.load import ConfigError
from exporter.config.sources import add_flags
from exporter.errors import BAD_USAGE, FAILED
from exporter.secrets import redact
from exporter.text.terminal import discard_unwritable, is_reader_gone, prepare, print_error, printable

PROGRAM: Final = "azure-scheduled-events-exporter"


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run the console command.

    Return the exit code. For bad usage argparse itself exits with 2.
    """
    for stream in (sys.stdout, sys.stderr):
        prepare(stream, environ)
    try:
        return _run_command(list(sys.argv[1:] if arguments is None else arguments))
    except OSError as error:
        for stream in (sys.stdout, sys.stderr):
            discard_unwritable(stream)
        if not is_reader_gone(error):
            print_error(printable(redact(f"{PROGRAM}: {error}")))
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run_command(given: Sequence[str]) -> int:
    try:
        args = _parser(given).parse_args(given)
        return _call(args.command, args)
    except ConfigError as error:
        for line in error.errors:
            print_error(printable(redact(f"{PROGRAM}: {line}")))
        return BAD_USAGE
    finally:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()  # here a reader that has closed the pipe can still be handled


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with every command; only the given command gets its flags, so only its modules are imported."""
    parser = FlagParser(
        prog=PROGRAM,
        description="Exports Azure Scheduled Events as Prometheus metrics, OpenTelemetry logs, and Event Hubs "
        "messages.",
        epilog=f"For the flags of a command: {PROGRAM} COMMAND --help",
        arguments="COMMAND [OPTIONS]",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, prog=PROGRAM)
    chosen = next((word for word in given if word in COMMANDS), "")
    for name, (summary, _, _) in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        subparser.set_defaults(command=name)
        if name == chosen:
            add_command_flags(name, subparser)
    return parser


def add_command_flags(name: str, parser: FlagParser) -> None:
    """Add the flags of a command to a parser."""
    if name == "run":
        add_flags(parser)
    else:
        _module_of(name).add_arguments(parser)


def _call(name: str, args: argparse.Namespace) -> int:
    """Run a command; its modules are imported only now, so that `run` doesn't load what other commands need."""
    if name == "run":
        from exporter.commands.stops import leave_on_signal  # noqa: PLC0415  # only for this command

        leave_on_signal()  # the import below takes most of the startup time
    code: int = getattr(_module_of(name), COMMANDS[name][2])(args)
    if name == "run":
        os._exit(code)
    return code


def _module_of(name: str) -> Any:
    return import_module(f"exporter.commands.{COMMANDS[name][1]}")


COMMANDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "run": ("run the agent", "run", "run"),
    "demo": ("run a complete demo on this machine, with a simulated Azure", "demo", "demo"),
    "simulate": ("run only the simulated metadata service", "simulate", "simulate"),
    "replay": ("replay recorded documents and show each decision with its reasons", "replay.command", "replay"),
    "check": ("check the settings; with --probe, also every connection and file", "check.command", "check"),
    "service": ("install, remove, start, or stop the agent as a Windows service", "service.command", "service"),
    "tail": ("read records from Event Hubs or from the outbox", "tail.command", "tail"),
    "requeue": ("send parked records again, even while the agent runs", "requeue", "send_again"),
}
"""For each command: its line in `--help`, its module, and the function there that runs it and returns the exit code."""
