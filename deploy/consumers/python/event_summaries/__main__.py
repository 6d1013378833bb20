"""The command line: `python -m event_summaries --help`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.exceptions import EventHubError

from .consumer import BALANCE_SECONDS, LOG, Consumer, Options, consume
from .store import Busy, Store

VARIABLE: Final = "EVENT_HUBS_CONNECTION_STRING"
UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3}
DONE, FAILED, BAD_USAGE = 0, 1, 2
MAX_SECONDS: Final = 36_500 * 86_400
"""A hundred years: earlier times cannot be represented."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program. Return the exit code: 0 if stopped or done with --once, 1 if it failed, 2 for bad usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("azure").setLevel(logging.ERROR)
    try:
        store = Store(options.state)
    except (Busy, sqlite3.Error) as error:
        parser.error(f"--state {options.state}: {error}")
    wanted = Options(
        begin=options.begin,
        give_up=options.give_up,
        keep=options.keep,
        max_bytes=options.max_size,
        once=options.once,
    )
    consumer = Consumer(store, sys.stdout, wanted)
    try:
        asyncio.run(_run(options, store, consumer, parser))
    except KeyboardInterrupt:
        return DONE
    except (sqlite3.Error, OSError, EventHubError) as error:
        LOG.error("%s: %s", type(error).__name__, str(error)[:300])
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes unwritten output when it exits
        return FAILED
    finally:
        LOG.info("%s", consumer.counts)
        store.close()
    return DONE


async def _run(options: argparse.Namespace, store: Store, consumer: Consumer, parser: argparse.ArgumentParser) -> None:
    further = {"consumer_group": options.group, "checkpoint_store": store, "load_balancing_interval": BALANCE_SECONDS}
    connection_string = os.environ.get(VARIABLE, "")
    if connection_string:
        try:
            client = EventHubConsumerClient.from_connection_string(
                connection_string, eventhub_name=options.hub, **further
            )
        except ValueError:  # its text contains the connection string
            parser.error(f"{VARIABLE} is not a connection string, or has no EntityPath; add --hub")
        await consume(client, consumer)
        return
    if not options.namespace or not options.hub:
        parser.error(f"no credentials; set {VARIABLE}, or --namespace and --hub")
    async with _credential(parser) as credential:
        client = EventHubConsumerClient(options.namespace, options.hub, credential=credential, **further)
        await consume(client, consumer)


def _credential(parser: argparse.ArgumentParser) -> Any:
    try:
        from azure.identity.aio import DefaultAzureCredential  # noqa: PLC0415  # only needed here
    except ImportError:
        parser.error("--namespace needs azure-identity; run pip install azure-identity")
    return DefaultAzureCredential()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m event_summaries",
        description="Read the records of azure-scheduled-events-exporter from Event Hubs and write one summary per "
        "event, as JSON lines on standard output, whenever it changes.",
        epilog=f"Credentials: {VARIABLE} with the claim Listen, or --namespace with the role Azure Event Hubs Data "
        "Receiver.",
    )
    parser.add_argument(
        "--state", type=Path, required=True, metavar="FILE", help="file for records and positions; created if missing"
    )
    parser.add_argument("--namespace", metavar="HOST", help="NAME.servicebus.windows.net, for Microsoft Entra ID")
    parser.add_argument("--hub", metavar="NAME", help="event hub, if the connection string has no EntityPath")
    parser.add_argument("--group", default="$Default", metavar="NAME", help="consumer group (%(default)s)")
    parser.add_argument(
        "--from",
        dest="begin",
        choices=("start", "now"),
        default="start",
        help="where to start without a saved position (%(default)s)",
    )
    parser.add_argument(
        "--give-up", type=_amount("s", "m", "h", "d"), default="1d", metavar="DURATION",
        help="how long after its last record an open event becomes no-end (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", type=_amount("s", "m", "h", "d"), default="30d", metavar="DURATION",
        help="how long to keep an event after its last record; set it above the hub's retention (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-size", type=_amount("B", "KB", "MB", "GB"), default="1GB", metavar="SIZE",
        help="maximum size of FILE; then the oldest events are dropped (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--once", action="store_true", help="read up to the current end of the hub, write the summaries, and exit"
    )
    return parser


def _amount(*units: str) -> Any:
    """Return a converter for texts such as 90s or 1GB."""

    def convert(text: str) -> int:
        found = re.fullmatch(r"(\d{1,6})([A-Za-z]{1,2})", text)
        if found is None or found[2] not in units:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number with a unit ({', '.join(units)})")
        amount = int(found[1]) * UNITS[found[2]]
        if "s" in units and amount > MAX_SECONDS:
            raise argparse.ArgumentTypeError(f"{text!r} is more than a hundred years")
        return amount

    return convert


if __name__ == "__main__":
    sys.exit(main())
