"""The command `requeue`: sends parked records again, also while the agent runs.

May import every room but `agent` and `simulator`; nothing imports it but `cli`, which loads it when it is given.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from exporter.config.load import load
from exporter.config.sources import add_flags, environ_of
from exporter.config.types import path_argument
from exporter.core.snapshot import DESTINATIONS
from exporter.errors import DONE, FAILED, Failure
from exporter.outbox.errors import OutboxUnwritable
from exporter.outbox.queue import requeue
from exporter.secrets import redact
from exporter.text.format import clean, counted
from exporter.text.terminal import print_error, print_line

MAX_SHOWN: Final = 500
"""Characters of an error."""
EPILOG: Final = """\
A record is parked if a destination refuses it while it accepts others. `tail --outbox FILE --parked` shows which ones,
and why. Fix the cause first: a record that is refused again is parked again.
A running agent sends the records within seconds, a stopped one after its next start.
Exit code 0: done, also if no record is parked; 1: the outbox can't be written; 2: bad usage or settings.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `requeue`."""
    parser.epilog = EPILOG
    records = parser.add_argument_group("what is sent again")
    records.add_argument(
        "--outbox", metavar="FILE", type=path_argument, help="The outbox. Default: that of the settings."
    )
    records.add_argument(
        "--destination",
        metavar="NAME",
        choices=DESTINATIONS,
        default="",
        help=f"Only what this destination refused: {' or '.join(DESTINATIONS)}.",
    )
    add_flags(parser, sections=("outbox",))


def send_again(args: argparse.Namespace) -> int:
    """Run the command; its exit code. Raises ConfigError."""
    path = Path(args.outbox or load(args, environ_of(os.environ, ("outbox",))).outbox.path)
    try:
        counts = requeue(path, args.destination)
    except Failure as failure:
        print_error(clean(redact(f"{path}: {failure.detail}{_advice(failure)}"), MAX_SHOWN))
        return FAILED
    total = sum(counts.values())
    by_destination = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    print_line(f"{counted(total, 'record')} to send again: {by_destination}" if total else "no record is parked")
    return DONE


def _advice(failure: Failure) -> str:
    if not isinstance(failure, OutboxUnwritable):
        return "; give the agent's outbox with --outbox"
    return {
        "gone": "; give the agent's outbox with --outbox",
        "read-only": "; run the command as root or as the agent's user",
        "busy": "; try again",
    }.get(failure.reason, "")
