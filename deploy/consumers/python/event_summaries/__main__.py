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
"""A hundred years: further back than that there is no time to count from."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program. Exit code 0: told to stop, or done with --once; 1: it failed; 2: it can't be run so."""
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # at its end Python flushes what nobody took
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
        except ValueError:  # its text holds the connection string
            parser.error(f"{VARIABLE} is no connection string, or names no event hub: give --hub")
        await consume(client, consumer)
        return
    if not options.namespace or not options.hub:
        parser.error(f"set {VARIABLE}, or give --namespace and --hub")
    async with _credential(parser) as credential:
        client = EventHubConsumerClient(options.namespace, options.hub, credential=credential, **further)
        await consume(client, consumer)


def _credential(parser: argparse.ArgumentParser) -> Any:
    try:
        from azure.identity.aio import DefaultAzureCredential  # noqa: PLC0415  # only where it is needed
    except ImportError:
        parser.error("--namespace needs azure-identity: pip install azure-identity")
    return DefaultAzureCredential()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m event_summaries",
        description="Reads the records of azure-scheduled-events-exporter from Event Hubs and writes one summary per "
        "event, as JSON lines on standard output, whenever it changes.",
        epilog=f"Credentials: {VARIABLE} with the claim Listen, or --namespace with the role Azure Event Hubs Data "
        "Receiver.",
    )
    parser.add_argument(
        "--state", type=Path, required=True, metavar="FILE", help="records and positions; made if absent"
    )
    parser.add_argument("--namespace", metavar="HOST", help="NAME.servicebus.windows.net, for Microsoft Entra ID")
    parser.add_argument("--hub", metavar="NAME", help="the event hub, where the connection string names none")
    parser.add_argument("--group", default="$Default", metavar="NAME", help="consumer group (%(default)s)")
    parser.add_argument(
        "--from",
        dest="begin",
        choices=("start", "now"),
        default="start",
        help="where to begin the first time (%(default)s)",
    )
    parser.add_argument(
        "--give-up", type=_amount("s", "m", "h", "d"), default="1d", metavar="DURATION",
        help="an event is no-end when nobody closed it for so long (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", type=_amount("s", "m", "h", "d"), default="30d", metavar="DURATION",
        help="how long an event is kept after its last record; longer than the hub keeps messages (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-size", type=_amount("B", "KB", "MB", "GB"), default="1GB", metavar="SIZE",
        help="of FILE; the oldest events are dropped beyond it (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--once", action="store_true", help="read what is there now, write its summaries and end")
    return parser


def _amount(*units: str) -> Any:
    """A converter of texts such as 90s or 1GB."""

    def convert(text: str) -> int:
        found = re.fullmatch(r"(\d{1,6})([A-Za-z]{1,2})", text)
        if found is None or found[2] not in units:
            raise argparse.ArgumentTypeError(f"{text!r} is no number with one of {', '.join(units)}")
        amount = int(found[1]) * UNITS[found[2]]
        if "s" in units and amount > MAX_SECONDS:
            raise argparse.ArgumentTypeError(f"{text!r} is more than a hundred years")
        return amount

    return convert


if __name__ == "__main__":
    sys.exit(main())
