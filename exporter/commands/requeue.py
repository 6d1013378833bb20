"""The command `requeue`: sends parked records again, even while the agent runs.

May import every package except `agent` and `simulator`. Only `cli` imports it, to run the command.
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
from exporter.outbox.queue import requeue
from exporter.secrets import redact
from exporter.text.format import clean, counted
from exporter.text.terminal import print_error, print_line

MAX_SHOWN: Final = 500
"""Maximum length of a printed error, in characters."""
_ADVICE: Final = {
    **dict.fromkeys(("foreign", "gone"), "; use --outbox to name the agent's outbox"),
    "read-only": "; run this command as root or as the agent's user",
    "busy": "; try again",
}
"""By reason."""
EPILOG: Final = """\
A record is parked if a destination rejects it but accepts others. `tail --outbox FILE --parked` shows the parked
records and the reasons. Fix the cause first: a record that is rejected again is parked again.
A running agent sends the records within seconds, a stopped agent after its next start.
Exit codes: 0 success, even if no record is parked; 1 the outbox is not writable; 2 bad usage or settings.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `requeue`."""
    parser.epilog = EPILOG
    records = parser.add_argument_group("records")
    records.add_argument(
        "--outbox", metavar="FILE", type=path_argument, help="Outbox file. Default: outbox.path from the settings."
    )
    records.add_argument(
        "--destination",
        metavar="NAME",
        choices=DESTINATIONS,
        default="",
        help=f"Only records that this destination rejected: {' or '.join(DESTINATIONS)}.",
    )
    add_flags(parser, sections=("outbox",))


def send_again(args: argparse.Namespace) -> int:
    """Run the command.

    Return the exit code. Raises ConfigError.
    """
    path = Path(args.outbox or load(args, environ_of(os.environ, ("outbox",))).outbox.path)
    try:
        counts = requeue(path, args.destination)
    except Failure as failure:
        print_error(clean(redact(f"{failure.detail}{_ADVICE.get(failure.reason, '')}"), MAX_SHOWN))
        return FAILED
    total = sum(counts.values())
    by_destination = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    print_line(f"requeued {counted(total, 'record')}: {by_destination}" if total else "no records are parked")
    return DONE
