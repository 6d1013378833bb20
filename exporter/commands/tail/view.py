"""What `tail` shows of the records it reads, and how: filtered, each once, as a timeline or as JSON lines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TextIO

from exporter.commands.tail.outbox import Kept
from exporter.core.folding import alike, folded
from exporter.core.records import Record
from exporter.text.format import clean, counted
from exporter.text.terminal import say
from exporter.text.timeline import record_lines

IDS_KEPT: Final = 200_000
LONGEST: Final = 500


@dataclass(slots=True)
class View:
    """What is shown, and what was not."""

    out: TextIO
    args: argparse.Namespace
    colour: bool = False
    shown: int = 0
    duplicates: int = 0
    foreign: int = 0
    _seen: dict[tuple[str, str], None] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        return self.args.max is not None and self.shown >= self.args.max

    def show(self, record: Record, kept: Kept | None = None) -> None:
        """Prints a record that is wanted and was not printed before."""
        if self.full or not self._wanted(record):
            return
        key = (record.source, record.id)
        if key in self._seen:
            self.duplicates += 1
            return
        self._seen[key] = None
        if len(self._seen) > IDS_KEPT:
            del self._seen[next(iter(self._seen))]
        self.shown += 1
        for text in _as_json(record, kept) if self.args.format == "json" else self._as_text(record, kept):
            say(text, self.out, colour=self.colour)

    def _wanted(self, record: Record) -> bool:
        args = self.args
        vm = record.data.get("vm")
        name = vm.get("name") if isinstance(vm, Mapping) else ""
        if args.vm and not alike(str(name), args.vm):
            return False
        if args.event_id and not folded(record.subject).startswith(folded(args.event_id)):
            return False
        return not args.kind or record.kind in args.kind

    def _as_text(self, record: Record, kept: Kept | None) -> Iterator[str]:
        first, *rest = record_lines(record, self.colour)
        yield first + (f"  [{clean(_standing(kept), LONGEST)}]" if kept and (kept.waiting or kept.parked) else "")
        yield from rest

    def summary(self) -> str:
        parts = [counted(self.shown, "record")]
        if self.duplicates:
            parts.append(f"{self.duplicates} that came again, not shown")
        if self.foreign:
            parts.append(f"{self.foreign} that {'are' if self.foreign > 1 else 'is'} no record of ours, passed over")
        return ", ".join(parts)


def _standing(kept: Kept) -> str:
    parked = [f"parked by {name}: {reason}" for name, reason in kept.parked]
    return "; ".join([*([f"waits for {', '.join(kept.waiting)}"] if kept.waiting else []), *parked])


def _as_json(record: Record, kept: Kept | None) -> Iterator[str]:
    if kept is None or not kept.parked:
        yield record.to_json().decode()
        return
    for destination, reason in kept.parked:
        found = {"destination": destination, "reason": reason, "record": record.to_cloudevent()}
        yield json.dumps(found, ensure_ascii=False, separators=(",", ":"))
