"""`tail`: its flags, how they combine, the loops that read from Event Hubs or the outbox, and the output."""

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
from exporter.text.timeline import print_record

TICK_SECONDS: Final = 0.1
"""How long one read from the event hub waits."""
QUIET_SECONDS: Final = 0.3
"""Partitions are read concurrently: records are held back until a pause of this length, then sorted by time,"""
MAX_HELD_SECONDS: Final = 2.0
MAX_HELD_RECORDS: Final = 5_000
"""but never for longer than this, and never more of them."""
FOLLOW_SECONDS: Final = 0.5
"""Interval between two reads of a followed outbox."""
MAX_SHOWN: Final = 500
"""Maximum length of a printed error or delivery state, in characters."""
MAX_DIGITS: Final = 12
EPILOG: Final = """\
Without --outbox, tail reads from Event Hubs with the settings of `run`. The credential needs the Listen claim.
It doesn't use or change the consumer group's checkpoints. It reads both message formats, and counts messages that
aren't records. Duplicates are hidden. Press Ctrl-C to stop.
Exit codes: 0 success; 1 the source is not readable; 2 bad usage or settings.
"""

Begin = datetime | Literal["start", "now"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `tail`."""
    parser.epilog = EPILOG
    read = parser.add_argument_group("source")
    read.add_argument(
        "--outbox",
        metavar="FILE",
        nargs="?",
        const="",
        type=path_argument,
        help="Read the outbox instead of Event Hubs, even while the agent runs. Default FILE: outbox.path.",
    )
    read.add_argument(
        "--follow",
        action="store_true",
        help="With --outbox: wait for new records, and for the file if it doesn't exist yet.",
    )
    read.add_argument(
        "--parked", action="store_true", help="With --outbox: only records that a destination rejected, with reasons."
    )
    read.add_argument(
        "--from",
        dest="begin",
        metavar="start|now|TIME",
        type=begin_argument,
        help="Where to start. TIME is a time (RFC 3339) or an age, for example 1h. Default: now for Event Hubs, start "
        "for the outbox.",
    )
    read.add_argument(
        "--until-idle", metavar="DURATION", type=duration_argument, help="Stop if no record arrives for this long: 5s."
    )
    read.add_argument("--max", metavar="N", type=_positive, help="Stop after N records.")
    shown = parser.add_argument_group("filters")
    shown.add_argument("--vm", metavar="NAME", type=word_argument, default="", help="Only records of this VM.")
    shown.add_argument(
        "--event-id",
        metavar="ID",
        type=word_argument,
        default="",
        help="Only records of this event. A prefix of the id is enough.",
    )
    shown.add_argument(
        "--kind", metavar="KIND", action="append", choices=KINDS, help="Only records of this kind. May be repeated."
    )
    add_format(parser.add_argument_group("output"))
    add_flags(parser, sections=("event_hubs", "outbox"))


def begin_argument(text: str) -> Begin:
    """Return where to start: a keyword, or the time of an RFC 3339 text or of an age.

    Raises `argparse.ArgumentTypeError`.
    """
    words: dict[str, Begin] = {"start": "start", "now": "now"}
    instant = words.get(text) or read_time(text)
    if instant is None:
        with contextlib.suppress(ValueError, OverflowError):
            instant = is_plausible_time(datetime.now(UTC) - timedelta(seconds=parse_duration(text)))
    if instant is None:
        raise argparse.ArgumentTypeError(
            "expected start, now, a time, for example 2026-03-02T09:00:00Z, or an age, for example 1h, "
            f"found {describe(text)}"
        )
    return instant


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive integer, found {describe(text)}")
    return int(text)


def tail(args: argparse.Namespace) -> int:
    """Run the command.

    Return the exit code. Raises ConfigError, also for flags and settings that can't be combined.
    """
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
    """Print a note that isn't an error to standard error."""
    print_wrapped(redact(text), sys.stderr, hang=2)


def _check(args: argparse.Namespace, hubs: EventHubsSettings) -> None:
    """Raise `ConfigError` if flags and settings can't be combined."""
    if args.outbox is not None:
        return
    if wrong := [flag for flag in ("--follow", "--parked") if getattr(args, flag[2:])]:
        raise ConfigError((f"{' and '.join(wrong)}: only valid with --outbox; add --outbox",))
    if not hubs.configured:
        how = (
            "set connection_string in the settings file or the environment, use --event-hubs.connection-string-file or "
            "--event-hubs.fully-qualified-namespace, or read the outbox with --outbox"
        )
        raise ConfigError((f"event_hubs: not configured; {how}",))


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
            _note(f"{reader.path} does not exist yet; waiting for it")
            announced = True
        # A file that is created from now on has no records from before the start.
        skips = False
        view.foreign = reader.foreign
        idle = args.until_idle is not None and time.monotonic() - last_record_at >= args.until_idle
        if idle or not args.follow:
            return
        time.sleep(FOLLOW_SECONDS)


# -- Event Hubs


def _read_hub(args: argparse.Namespace, hubs: EventHubsSettings, view: View) -> None:
    from exporter.sinks.event_hubs.consumer import EventHubsReader  # noqa: PLC0415  # saves 120 ms for --outbox

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
    """Show the messages of all partitions until the view is full or nothing arrives for `until_idle` seconds.

    Messages that arrive close together are shown in the order of their times. None for `until_idle`: no limit.
    """
    held: list[Record] = []
    held_since = last_message_at = time.monotonic()
    failing = ""
    while not view.full:
        message, now = reader.get(TICK_SECONDS), time.monotonic()
        if isinstance(message, Failure):
            if message.reason != failing:
                print_error(f"{message.reason}: {clean(redact(message.detail), MAX_SHOWN)}; retrying")
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
            for each in sorted(held, key=lambda record: record.time):  # stable: one event's records arrived in order
                view.show(each)
            held.clear()
        if until_idle is not None and not held and quiet_seconds >= until_idle:
            return


# -- what is shown

REMEMBERED_IDS: Final = 200_000


class View(Struct):
    """Filters and prints records to `out`, and counts records shown, duplicates, and foreign messages."""

    out: TextIO
    args: argparse.Namespace
    shown: int = 0
    duplicates: int = 0
    foreign: int = 0
    _seen: dict[tuple[str, str], None] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether `--max` records were shown."""
        return self.args.max is not None and self.shown >= self.args.max

    def show(self, record: Record, entry: Entry | None = None) -> None:
        """Print a record unless it's filtered out or a duplicate. `entry` has its delivery state (outbox only)."""
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
        delivery = [f"waiting for {', '.join(entry.waiting)}"] if entry and entry.waiting else []
        delivery += [f"parked by {name}: {reason}" for name, reason in entry.parked] if entry else []
        print_record(record, self.out, f"[{clean('; '.join(delivery), MAX_SHOWN)}]" if delivery else "")

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
        """Return the counts as text."""
        parts = [counted(self.shown, "record")]
        if self.duplicates:
            parts.append(f"{counted(self.duplicates, 'duplicate')} hidden")
        if self.foreign:
            parts.append(f"{counted(self.foreign, 'message')} skipped: not in a format of this program")
        return ", ".join(parts)


def _as_json(record: Record, entry: Entry | None) -> str:
    """Return the record as it was sent; a parked one also has the attribute `parked`: destinations and reasons."""
    text = record.to_json().decode()
    if entry is None or not entry.parked:
        return text
    parked = "; ".join(f"{name}: {reason}" for name, reason in entry.parked)
    return json.dumps({**json.loads(text), "parked": parked}, ensure_ascii=False, separators=(",", ":"))
