"""Recordings of an agent, as it writes them, made without the time that they cover."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from exporter.config.load import policy_values
from exporter.core.policy import Policy
from exporter.core.records import timestamp
from exporter.recorder.recorder import RecordingFiles
from tests.support.factories import as_started, azure_event

BEGIN: Final = datetime(2026, 3, 1, tzinfo=UTC)
NAME: Final = "web-1"
VM: Final = {"name": NAME, "id": "5c7f1d3e-1c1a-4a3e-9d57-0d1f4c1f2b11"}
NOTICE: Final = timedelta(minutes=15)
MINUTE: Final = timedelta(minutes=1)


@dataclass(slots=True)
class Recording:
    """Writes the lines of an agent that polls once a second, and advances in time as requested."""

    path: Path
    max_bytes: int = 256 << 10
    files: int = 100
    at: datetime = BEGIN
    number: int = 1
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    _files: RecordingFiles = field(init=False)

    def __post_init__(self) -> None:
        self._files = RecordingFiles(self.path, self.max_bytes, self.files)

    @property
    def paths(self) -> list[str]:
        """Return all files, in the order of the folder."""
        return [str(path) for path in self.path.parent.iterdir() if path.name.startswith(self.path.name)]

    def line(self, body: bytes = b"", **values: Any) -> None:
        self._files.write(values, body)

    def began(self, policy: Policy, boot: str = "boot-1") -> None:
        """Start the agent."""
        self.line(at=timestamp(self.at), began={"version": "1.0.0", "boot": boot, "policy": policy_values(policy)})
        self.known()

    def known(self) -> None:
        """Make this VM known with the first document."""
        self.line(at=timestamp(self.at), vm=VM)
        self.read()

    def ended(self) -> None:
        self.line(at=timestamp(self.at), ended={})
        self.at += timedelta(seconds=10)

    def read(self) -> None:
        """Read the document in a poll."""
        document = {"DocumentIncarnation": self.number, "Events": list(self.events.values())}
        self.line(json.dumps(document).encode(), read_at=timestamp(self.at))

    def stay(self, length: timedelta) -> None:
        """Read the same document for this long: a line a minute."""
        end = self.at + length
        while self.at < end:
            step = min(MINUTE, end - self.at)
            self.at += step
            self.line(read_at=timestamp(self.at), same=round(step.total_seconds()))

    def change(self, events: Mapping[str, dict[str, Any]]) -> None:
        """Change the document to these events, a second later."""
        self.at += timedelta(seconds=1)
        self.number += 1
        self.events = dict(events)
        self.read()

    def fail(self, length: timedelta) -> None:
        """Fail every poll for this long; then read the same document."""
        end = self.at + length
        while self.at < end:
            self.at += timedelta(seconds=5)
            self.line(at=timestamp(self.at), failure="timeout")
        self.at += timedelta(seconds=1)
        self.read()

    def sent(self, event_id: str, status: int = 200) -> None:
        self.line(at=timestamp(self.at), post=event_id, sent=True)
        self.line(at=timestamp(self.at + timedelta(milliseconds=40)), post=event_id, status=status)

    def event(self, event_id: str, kind: str, source: str = "Platform", duration: int = 5, *names: str) -> None:
        """Announce an event."""
        fields = {"EventSource": source, "DurationInSeconds": duration}
        item = azure_event(event_id, kind, list(names) or [NAME], self.at + NOTICE, **fields)
        self.change({**self.events, event_id: item})

    def start(self, event_id: str) -> None:
        self.change({**self.events, event_id: as_started(self.events[event_id])})

    def go(self, event_id: str) -> None:
        self.change({key: item for key, item in self.events.items() if key != event_id})

    def close(self) -> None:
        self._files.close()


def recorded_days(path: Path, policy: Policy, days: int) -> Recording:
    """Record days of an agent with this policy: on each an event, at times an outage or a restart, in several files."""
    recording = Recording(path)
    recording.began(policy)
    for day, (kind, source, duration, names) in zip(range(days), _kinds(), strict=False):
        end = BEGIN + timedelta(days=day + 1)
        event_id = f"{day:08d}-0000-4000-8000-000000000000"
        recording.stay(timedelta(hours=8 + day % 9))
        recording.event(event_id, kind, source, duration, *names)
        recording.stay(NOTICE)
        recording.start(event_id)
        recording.stay(MINUTE)
        recording.go(event_id)
        if day % 5 == 1:
            recording.fail(timedelta(minutes=3))
        if day % 7 == 3:
            recording.ended()
            recording.began(policy, f"boot-{day}")
        recording.stay(end - recording.at)
    recording.ended()
    recording.close()
    return recording


def _kinds() -> Iterator[tuple[str, str, int, tuple[str, ...]]]:
    while True:
        yield "Freeze", "Platform", 5, ()
        yield "Freeze", "Platform", 9, ()
        yield "Reboot", "User", -1, ()
        yield "Reboot", "Platform", -1, ()
        yield "Redeploy", "Platform", -1, ()
        yield "Preempt", "Platform", -1, ()
        yield "Terminate", "Platform", -1, ("web-2",)
