"""`tail`: its flags, what goes together, the loops that read from Event Hubs or the outbox, and what they print."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

from exporter.commands.replay.entries import is_plausible_time, read_time
from exporter.commands.stops import interrupted_on_stop
from exporter.commands.tail.records import OutboxReader, record_of
from exporter.config.command_line import add_format, duration_argument
from exporter.config.load import ConfigError, load
from exporter.config.schema import EventHubsSettings
from exporter.config.sources import add_flags, environ_of
from exporter.config.types import path_argument, word_argument
from exporter.core.records import KINDS, Record
from exporter.errors import DONE, FAILED, Failure
from exporter.log.log import Log, captured_libraries
from exporter.secrets import redact
from exporter.text.format import clean, counted, parse_duration
from exporter.text.terminal import print_error, print_wrapped
from exporter.text.values import describe

if TYPE_CHECKING:
    from exporter.sinks.event_hubs.consumer import EventHubsReader
import json
from collections.abc import Mapping
from typing import TextIO

from msgspec import Struct, field

from exporter.commands.tail.records import Entry
from exporter.core.document import alike, folded
from exporter.text.terminal import print_line
from exporter.text.timeline import record_lines

TICK_SECONDS: Final = 0.1
"""How long one read from the hub waits."""
QUIET_SECONDS: Final = 0.3
"""Partitions are read concurrently: what comes until so long a pause is sorted by time before it is shown,"""
MAX_HELD_SECONDS: Final = 2.0
MAX_HELD_RECORDS: Final = 5_000
"""but held for no longer, and no more of it."""
FOLLOW_SECONDS: Final = 0.5
"""Between two reads of an outbox that is followed."""
MAX_SHOWN: Final = 500
"""Characters of an error, and of what an entry waits for."""
MAX_DIGITS: Final = 12
EPILOG: Final = """\
Without --outbox the records are read from Event Hubs, by the settings of `run`; the credential needs the claim Listen.
Nothing is kept there: a consumer group's positions are neither used nor moved. Both message formats are understood;
what is none of our messages is counted. A record that arrived twice is shown once.
Ctrl-C ends it. Exit code 0: ended as asked; 1: could not be read; 2: bad usage or settings.
"""

Begin = datetime | Literal["start", "now"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `tail`."""
    parser.epilog = EPILOG
    read = parser.add_argument_group("what is read")
    read.add_argument(
        "--outbox",
        metavar="FILE",
        nargs="?",
        const="",
        type=path_argument,
        help="Read the outbox (this file, or that of the settings) instead of Event Hubs; also while the agent runs.",
    )
    read.add_argument(
        "--follow",
        action="store_true",
        help="With --outbox: go on with what is still to come, also in a file that is still to come.",
    )
    read.add_argument(
        "--parked", action="store_true", help="With --outbox: only records that a destination refused, and why."
    )
    read.add_argument(
        "--from",
        dest="begin",
        metavar="start|now|TIME",
        type=begin_argument,
        help="Where to begin; TIME is an instant (RFC 3339), or how long ago, such as 1h. Default: now for Event Hubs, "
        "start for the outbox.",
    )
    read.add_argument(
        "--until-idle", metavar="DURATION", type=duration_argument, help="End when nothing came for so long: 5s."
    )
    read.add_argument("--max", metavar="N", type=_positive, help="End after so many records.")
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--vm", metavar="NAME", type=word_argument, default="", help="Only records of this VM.")
    shown.add_argument(
        "--event-id",
        metavar="ID",
        type=word_argument,
        default="",
        help="Only records of this event; the beginning of its id will do.",
    )
    shown.add_argument(
        "--kind", metavar="KIND", action="append", choices=KINDS, help="Only this kind; may be repeated."
    )
    add_format(parser.add_argument_group("output"))
    add_flags(parser, sections=("event_hubs", "outbox"))


def begin_argument(text: str) -> Begin:
    """Where to begin: one of the words, an instant (RFC 3339), or how long ago."""
    words: dict[str, Begin] = {"start": "start", "now": "now"}
    instant = words.get(text) or read_time(text)
    if instant is None:
        with contextlib.suppress(ValueError, OverflowError):
            instant = is_plausible_time(datetime.now(UTC) - timedelta(seconds=parse_duration(text)))
    if instant is None:
        raise argparse.ArgumentTypeError(
            "expected start, now, a time such as 2026-03-02T09:00:00Z or how long ago, such as 1h, "
            f"found {describe(text)}"
        )
    return instant


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive integer, found {describe(text)}")
    return int(text)


def tail(args: argparse.Namespace) -> int:
    """Run the command; its exit code. Raises ConfigError for what does not go together."""
    sections = ("outbox",) if args.outbox is not None else ("event_hubs", "outbox")
    settings = load(args, environ_of(os.environ, sections))
    _check(args, settings.event_hubs)
    out = sys.stdout
    view = View(out, args)
    try:
        with interrupted_on_stop(), captured_libraries(Log(None)):  # what the SDK logs is in the `Failure`
            if args.outbox is not None:
                _read_outbox(args, OutboxReader(args.outbox or settings.outbox.path, wait_for_file=args.follow), view)
            else:
                _read_hub(args, settings.event_hubs, view)
    except KeyboardInterrupt:
        pass
    except Failure as error:
        print_error(clean(redact(error.detail or error.reason), MAX_SHOWN))
        return FAILED
    _note(view.summary())
    return DONE


def _note(text: str) -> None:
    """Something beside the records, which is no error, to standard error."""
    print_wrapped(redact(text), sys.stderr, hang=2)


def _check(args: argparse.Namespace, hubs: EventHubsSettings) -> None:
    """Whether flags and settings go together. Raises `ConfigError` if not."""
    errors = []
    if args.outbox is None:
        errors += [f"{flag}: only with --outbox" for flag in ("--follow", "--parked") if getattr(args, flag[2:])]
        if not hubs.configured:
            errors.append(
                "nothing to read: configure Event Hubs as for `run` (connection_string in the settings or the "
                "environment, --event-hubs.connection-string-file or --event-hubs.fully-qualified-namespace), or "
                "give --outbox"
            )
    if errors:
        raise ConfigError(tuple(errors))


# -- the outbox


def _read_outbox(args: argparse.Namespace, reader: OutboxReader, view: View) -> None:
    begin: Begin = args.begin or "start"
    skips = begin == "now"
    last_record_at = time.monotonic()
    announced = False
    while True:
        for entry in reader.new():
            last_record_at = time.monotonic()
            in_range = not isinstance(begin, datetime) or entry.record.time >= begin
            if in_range and not skips and (entry.parked or not args.parked):
                view.show(entry.record, entry)
            if view.full:
                return
        if reader.file_missing and not announced:
            _note(f"{reader.path} is not there yet; waiting for it")
            announced = True
        # A file that is created only now has nothing from before the start.
        skips = False
        view.foreign = reader.foreign
        idle = args.until_idle is not None and time.monotonic() - last_record_at >= args.until_idle
        if idle or not args.follow:
            return
        time.sleep(FOLLOW_SECONDS)


# -- Event Hubs


def _read_hub(args: argparse.Namespace, hubs: EventHubsSettings, view: View) -> None:
    from exporter.sinks.event_hubs.consumer import EventHubsReader  # noqa: PLC0415  # 120 ms that the outbox does not need

    begin: Begin = args.begin or "now"
    try:
        reader = EventHubsReader(hubs, begin)
    except ValueError as error:
        raise ConfigError((str(error),)) from error
    try:
        partitions = reader.open()
        since = begin if isinstance(begin, str) else f"{begin:%Y-%m-%d %H:%M:%SZ}"
        _note(
            f"reading event hub {hubs.event_hub} from {since}, consumer group {hubs.consumer_group}, "
            f"{counted(partitions, 'partition')}"
        )
        _show_in_order(reader, view, args.until_idle)
    finally:
        reader.close()


def _show_in_order(reader: EventHubsReader, view: View, until_idle: float | None) -> None:
    """Show the messages of all partitions, in the order of their times as far as that needs no waiting, until the view
    is full or nothing has come for `until_idle` seconds."""
    held: list[Record] = []
    held_since = last_message_at = time.monotonic()
    failing = ""
    while not view.full:
        message, now = reader.get(TICK_SECONDS), time.monotonic()
        if isinstance(message, Failure):
            if message.reason != failing:
                print_error(f"{message.reason}: {clean(redact(message.detail), MAX_SHOWN)}; trying again")
            failing = message.reason
        elif message is not None:
            last_message_at, failing = now, ""
            record = record_of(message.body, message.properties, message.message_id, message.enqueued)
            held_since = held_since if held else now
            view.foreign += record is None
            held += [record] if record is not None else []
        last_message_at = last_message_at if reader.caught_up else now
        quiet_seconds = now - last_message_at
        is_late = now - held_since >= MAX_HELD_SECONDS or len(held) >= MAX_HELD_RECORDS
        if held and (quiet_seconds >= QUIET_SECONDS or is_late):
            for each in sorted(held, key=lambda record: record.time):  # stable: one event's records came in their order
                view.show(each)
            held.clear()
        if until_idle is not None and not held and quiet_seconds >= until_idle:
            return


# -- what is shown

REMEMBERED_IDS: Final = 200_000


class View(Struct):
    """Prints to `out` what `args` ask for, and counts what it shows and what not."""

    out: TextIO
    args: argparse.Namespace
    shown: int = 0
    duplicates: int = 0
    foreign: int = 0
    _seen: dict[tuple[str, str], None] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """As many records were shown as were asked for."""
        return self.args.max is not None and self.shown >= self.args.max

    def show(self, record: Record, entry: Entry | None = None) -> None:
        """Print a record, unless it is filtered out or was printed before. `entry` is where it is in the outbox."""
        if self.full or not self._wanted(record):
            return
        key = (record.source, record.id)
        if key in self._seen:
            self.duplicates += 1
            return
        self._seen[key] = None
        if len(self._seen) > REMEMBERED_IDS:
            del self._seen[next(iter(self._seen))]
        self.shown += 1
        if self.args.format == "json":
            print_line(_as_json(record, entry), self.out)
            return
        waits = f"[{clean(_delivery(entry), MAX_SHOWN)}]" if entry and (entry.waiting or entry.parked) else ""
        for text in record_lines(record, waits):
            print_wrapped(text, self.out)

    def _wanted(self, record: Record) -> bool:
        args = self.args
        vm = record.data.get("vm")
        name = vm.get("name") if isinstance(vm, Mapping) else ""
        if args.vm and not alike(str(name), args.vm):
            return False
        if args.event_id and not folded(record.subject).startswith(folded(args.event_id)):
            return False
        return not args.kind or record.kind in args.kind

    def summary(self) -> str:
        """How many records were shown and not shown, for a person."""
        parts = [counted(self.shown, "record")]
        if self.duplicates:
            parts.append(f"{self.duplicates} that came again, not shown")
        if self.foreign:
            parts.append(f"{self.foreign} that {'are' if self.foreign > 1 else 'is'} no record of ours, passed over")
        return ", ".join(parts)


def _delivery(entry: Entry) -> str:
    parked = [f"parked by {name}: {reason}" for name, reason in entry.parked]
    return "; ".join([*([f"waits for {', '.join(entry.waiting)}"] if entry.waiting else []), *parked])


def _as_json(record: Record, entry: Entry | None) -> str:
    """The record as it was sent; a parked one with an extension attribute that says by which destination, and why."""
    text = record.to_json().decode()
    if entry is None or not entry.parked:
        return text
    parked = "; ".join(f"{name}: {reason}" for name, reason in entry.parked)
    return json.dumps({**json.loads(text), "parked": parked}, ensure_ascii=False, separators=(",", ":"))
