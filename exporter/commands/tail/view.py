"""Printing records: filtered, each once, as a timeline or as JSON lines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Final, TextIO

from msgspec import Struct, field

from exporter.commands.tail.outbox import Entry
from exporter.core.document import alike, folded
from exporter.core.records import Record
from exporter.text.format import clean, counted
from exporter.text.terminal import say, tell
from exporter.text.timeline import record_lines

REMEMBERED_IDS: Final = 200_000
MAX_SHOWN: Final = 500
"""Characters of what an entry waits for."""


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
            say(_as_json(record, entry), self.out)
            return
        waits = f"[{clean(_delivery(entry), MAX_SHOWN)}]" if entry and (entry.waiting or entry.parked) else ""
        for text in record_lines(record, waits):
            tell(text, self.out)

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
