"""The console command: its subcommands, and the exit codes 0 done, 1 failed, 2 bad usage or bad configuration."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from exporter import __version__
from exporter.config.command_line import FlagParser
from exporter.config.load import ConfigError
from exporter.config.sources import add_flags
from exporter.exit_codes import BAD_USAGE, FAILED
from exporter.secrets import redact
from exporter.text.terminal import complain, discard_unwritable, is_reader_gone, prepare, printable

PROGRAM: Final = "azure-scheduled-events-exporter"

Command = Callable[[argparse.Namespace], int]
"""Runs a command. Returns the exit code."""


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run the console command. Returns the exit code; for bad usage argparse itself exits with 2."""
    for stream in (sys.stdout, sys.stderr):
        prepare(stream, environ)
    try:
        return _run_command(list(sys.argv[1:] if arguments is None else arguments))
    except OSError as error:
        for stream in (sys.stdout, sys.stderr):
            discard_unwritable(stream)
        if not is_reader_gone(error):
            complain(printable(redact(f"{PROGRAM}: {error}")))
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run_command(given: Sequence[str]) -> int:
    try:
        args = _parser(given).parse_args(given)
        command: Command = args.command
        return command(args)
    except ConfigError as error:
        for line in error.errors:
            complain(printable(redact(f"{PROGRAM}: {line}")))
        return BAD_USAGE
    finally:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()  # here it can still be told that nobody reads


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """A parser with every command; only the one that was given gets its flags, so only its modules are imported."""
    parser = FlagParser(
        prog=PROGRAM,
        description="Tells operators what Azure is about to do to their VM: scheduled events as Prometheus metrics, "
        "OpenTelemetry logs and Event Hubs messages.",
        epilog=f"The flags of a command: {PROGRAM} COMMAND --help",
        takes="COMMAND [OPTIONS]",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, prog=PROGRAM)
    chosen = next((word for word in given if word in COMMANDS), "")
    for name, (summary, command, add_command_flags) in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        subparser.set_defaults(command=command)
        if name == chosen:
            add_command_flags(subparser)
    return parser


# Each command imports what it needs when it runs: `run` pays for nothing that only the others use.


def _run(args: argparse.Namespace) -> NoReturn:
    from exporter.commands.stops import leave_on_signal  # noqa: PLC0415  # only for this command

    leave_on_signal()  # the imports below take the most of a start
    from exporter.commands.run import run  # noqa: PLC0415  # only for this command

    os._exit(run(args))


def _demo_flags(parser: FlagParser) -> None:
    from exporter.commands.demo import add_arguments  # noqa: PLC0415  # only for this command

    add_arguments(parser)


def _demo(args: argparse.Namespace) -> int:
    from exporter.commands.demo import demo  # noqa: PLC0415  # only for this command

    return demo(args)


def _simulate_flags(parser: FlagParser) -> None:
    from exporter.commands.simulate import add_arguments  # noqa: PLC0415  # only for this command

    add_arguments(parser)


def _simulate(args: argparse.Namespace) -> int:
    from exporter.commands.simulate import simulate  # noqa: PLC0415  # only for this command

    return simulate(args)


def _replay_flags(parser: FlagParser) -> None:
    from exporter.commands.replay.command import add_arguments  # noqa: PLC0415  # only for this command

    add_arguments(parser)


def _replay(args: argparse.Namespace) -> int:
    from exporter.commands.replay.command import replay  # noqa: PLC0415  # only for this command

    return replay(args)


def _check_flags(parser: FlagParser) -> None:
    from exporter.commands.check.command import add_arguments  # noqa: PLC0415  # only for this command

    add_arguments(parser)


def _check(args: argparse.Namespace) -> int:
    from exporter.commands.check.command import check  # noqa: PLC0415  # only for this command

    return check(args)


def _tail_flags(parser: FlagParser) -> None:
    from exporter.commands.tail.command import add_arguments  # noqa: PLC0415  # only for this command

    add_arguments(parser)


def _tail(args: argparse.Namespace) -> int:
    from exporter.commands.tail.command import tail  # noqa: PLC0415  # only for this command

    return tail(args)


def _requeue_flags(parser: FlagParser) -> None:
    from exporter.commands.requeue import add_arguments  # noqa: PLC0415  # only for this command

    add_arguments(parser)


def _requeue(args: argparse.Namespace) -> int:
    from exporter.commands.requeue import send_again  # noqa: PLC0415  # only for this command

    return send_again(args)


def _service_flags(parser: FlagParser) -> None:
    from exporter.commands.service.command import add_arguments  # noqa: PLC0415  # only for this command

    add_arguments(parser)


def _service(args: argparse.Namespace) -> int:
    from exporter.commands.service.command import service  # noqa: PLC0415  # only for this command

    return service(args)


COMMANDS: Final[Mapping[str, tuple[str, Command, Callable[[FlagParser], None]]]] = {
    "run": ("the agent", _run, add_flags),
    "demo": ("the whole of it on this machine, with nothing installed beside it", _demo, _demo_flags),
    "simulate": ("the simulated metadata service alone", _simulate, _simulate_flags),
    "replay": ("recorded documents through the same core: what would be decided, and why", _replay, _replay_flags),
    "check": ("validate the configuration, and with --probe what it points at", _check, _check_flags),
    "service": ("the agent as a Windows service: install, remove, start, stop, run", _service, _service_flags),
    "tail": ("read the records back from Event Hubs or from the outbox", _tail, _tail_flags),
    "requeue": ("send parked records again, also while the agent runs", _requeue, _requeue_flags),
}
"""Each command: its line in `--help`, what runs it, and what adds its flags to a parser."""
