"""What the broker stores: event hubs with append-only partitions, bounded in messages, oldest dropped first.

The formats of messages and of positions are those of Event Hubs: AMQP 1.0 part 3, section 3.2, its annotations
`x-opt-…`, and its selector filters.
"""

from __future__ import annotations

import itertools
import re
import threading
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from exporter.simulator.event_hubs.amqp import CodecError, Described, Symbol, Timestamp, ULong, decode, encode

BATCH_FORMAT: Final = 0x80013700  # each data section of such a message is a message: Event Hubs' batch
_ANNOTATIONS, _PROPERTIES, _APPLICATION_PROPERTIES, _DATA, _VALUE = 0x72, 0x73, 0x74, 0x75, 0x77
_HEADER, _FOOTER = 0x70, 0x78
_SECTION_TYPES: Final[dict[int, type]] = {
    _HEADER: list,
    0x71: dict,
    _ANNOTATIONS: dict,
    _PROPERTIES: list,
    _APPLICATION_PROPERTIES: dict,
    _DATA: bytes,
    0x76: list,
    _FOOTER: dict,
}
_SEQUENCE, _OFFSET, _TIME, _KEY = (
    Symbol(f"x-opt-{name}") for name in ("sequence-number", "offset", "enqueued-time", "partition-key")
)
_SELECTOR: Final = re.compile(
    r"\s*amqp\.annotation\.x-opt-(?P<what>offset|sequence-number|enqueued-time)\s*(?P<operator>>=?)\s*'?(?P<value>[^']*?)'?\s*"
)
LATEST: Final = "@latest"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class Message(Struct, frozen=True):
    """An AMQP message as it came. `bare` is what no intermediary may change: from the properties section to the end."""

    annotations: Mapping[Any, Any]
    properties: list[Any]
    application_properties: Mapping[Any, Any]
    data: tuple[bytes, ...]
    value: Any
    bare: bytes

    @property
    def partition_key(self) -> str | None:
        """The sender's annotation; None without one."""
        key = self.annotations.get(_KEY)
        return key.decode("utf-8", "replace") if isinstance(key, bytes) else key if isinstance(key, str) else None

    def property_at(self, index: int) -> Any:
        """A field of the properties section: 0 message-id, 3 subject, 4 reply-to, 5 correlation-id, 6 content-type."""
        return self.properties[index] if index < len(self.properties) else None


def parse_message(payload: bytes) -> Message:
    """An AMQP message from its bytes (part 3, 3.2). Raises `CodecError` for what is none."""
    sections: dict[int, Any] = {}
    data: list[bytes] = []
    position, bare = 0, len(payload)
    while position < len(payload):
        start = position
        section, position = decode(payload, position)
        code = section.descriptor if isinstance(section, Described) else None
        if not isinstance(code, ULong) or not _HEADER <= code <= _FOOTER:
            raise CodecError("a message consists of sections")
        value, kind = section.value, _SECTION_TYPES.get(code)
        if kind is not None and type(value) is not kind:
            raise CodecError("message section of the wrong type")
        if code >= _PROPERTIES:
            bare = min(bare, start)
        if code == _DATA:
            data.append(value)
        else:
            sections[code] = value
    return Message(
        annotations=sections.get(_ANNOTATIONS, {}),
        properties=sections.get(_PROPERTIES, []),
        application_properties=sections.get(_APPLICATION_PROPERTIES, {}),
        data=tuple(data),
        value=sections.get(_VALUE),
        bare=payload[bare:],
    )


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One event in a partition, with what Event Hubs adds to it."""

    hub: str
    partition: str
    sequence_number: int
    offset: str  # opaque text, growing; never equal to the sequence number, so that a mix-up is seen
    enqueued_time: datetime
    partition_key: str | None
    message_id: str | None
    content_type: str | None
    application_properties: dict[str, Any]
    annotations: Mapping[Any, Any] = field(repr=False)
    bare: bytes = field(repr=False)

    @property
    def body(self) -> bytes:
        """The data sections together; the text or bytes of an amqp-value; empty for anything else."""
        message = parse_message(self.bare)
        if isinstance(message.value, str):
            return message.value.encode()
        return message.value if isinstance(message.value, bytes) else b"".join(message.data)

    def payload(self) -> bytes:
        """The message as a receiver gets it: Event Hubs' annotations, then the sender's own sections unchanged."""
        annotations: dict[Any, Any] = {
            **self.annotations,
            _SEQUENCE: self.sequence_number,
            _OFFSET: self.offset,
            _TIME: Timestamp(milliseconds(self.enqueued_time)),
        }
        if self.partition_key is not None:
            annotations[_KEY] = self.partition_key
        return b"\x00\x53\x72" + encode(annotations) + self.bare


def milliseconds(moment: datetime) -> int:
    """AMQP's timestamp of an aware datetime."""
    return (moment - _EPOCH) // _MILLISECOND


class PositionError(ValueError):
    """The filter of a consumer's source is no position of Event Hubs."""


class Partition:
    """An append-only log. Positions are sequence numbers of the next message to read."""

    def __init__(self, hub: str, partition_id: str, max_messages: int) -> None:
        self.hub, self.id = hub, partition_id
        self.messages: list[StoredMessage] = []
        self.next_sequence = 0
        self._max_messages = max_messages
        self._next_offset = 0

    @property
    def first_sequence(self) -> int:
        """The sequence number of the oldest message that is kept."""
        return self.next_sequence - len(self.messages)

    def append(self, message: Message, partition_key: str | None, now: datetime) -> None:
        """Store a message, with its own partition key or else this one. `now` is aware."""
        if self.messages:
            now = max(now, self.messages[-1].enqueued_time)  # positions by time need an order that never goes back
        message_id, content_type = message.property_at(0), message.property_at(6)
        self.messages.append(
            StoredMessage(
                hub=self.hub,
                partition=self.id,
                sequence_number=self.next_sequence,
                offset=str(self._next_offset),
                enqueued_time=now,
                partition_key=message.partition_key or partition_key,
                message_id=None if message_id is None else str(message_id),
                content_type=None if content_type is None else str(content_type),
                application_properties={str(key): value for key, value in message.application_properties.items()},
                annotations=message.annotations,
                bare=message.bare,
            )
        )
        self.next_sequence += 1
        self._next_offset += len(message.bare) + 64  # 64: any overhead does, an empty message must move it too

    def trim(self) -> None:
        """Drop the oldest messages beyond the bound."""
        del self.messages[: -self._max_messages]

    def read(self, sequence: int) -> StoredMessage | None:
        """The first message at or after the sequence number that is still kept."""
        index = max(sequence - self.first_sequence, 0)
        return self.messages[index] if index < len(self.messages) else None

    def position(self, selector: str | None) -> int:
        """Where a consumer begins whose source has this filter: a sequence number; without one, the oldest message.

        Raises `PositionError` for a filter that is none of Event Hubs' three.
        """
        if selector is None:
            return self.first_sequence
        match = _SELECTOR.fullmatch(selector)
        if match is None:
            raise PositionError("the filter is not a position of Event Hubs")
        what, value, inclusive = match["what"], match["value"], match["operator"] == ">="
        if value == LATEST and what == "offset":
            return self.next_sequence
        if not re.fullmatch(r"-?\d{1,18}", value):
            raise PositionError("the position is not a number")
        side = bisect_left if inclusive else bisect_right
        return self.first_sequence + side(self.messages, int(value), key=_ORDERS[what])


_ORDERS: Final[dict[str, Callable[[StoredMessage], int]]] = {
    "offset": lambda message: int(message.offset),
    "sequence-number": lambda message: message.sequence_number,
    "enqueued-time": lambda message: milliseconds(message.enqueued_time),
}


@dataclass(frozen=True, slots=True)
class Hub:
    """An event hub: a name and its partitions, "0" to "n-1"."""

    name: str
    created_at: datetime
    partitions: Mapping[str, Partition]
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def choose(self, partition_key: str | None) -> Partition:
        """The key's partition, always the same one; without a key, round robin."""
        number = next(self._count) if partition_key is None else zlib.crc32(partition_key.encode())
        return self.partitions[str(number % len(self.partitions))]


class Store:
    """All event hubs. The broker's loop writes; any thread may read and wait."""

    def __init__(self, *, max_messages: int, clock: Callable[[], datetime]) -> None:
        self._max_messages, self._clock = max_messages, clock
        self._changed = threading.Condition()
        self._stored = 0
        self.hubs: dict[str, Hub] = {}

    def create(self, name: str, partitions: int) -> None:
        """A new, empty event hub. Raises ValueError for a name or number that can't be one."""
        if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,254}[A-Za-z0-9])?", name):
            raise ValueError(f"not the name of an event hub: {name!r}")
        if not 1 <= partitions <= 1024:  # noqa: PLR2004  # the service's own largest number
            raise ValueError(f"an event hub has 1 to 1024 partitions, not {partitions}")
        logs = {str(i): Partition(name, str(i), self._max_messages) for i in range(partitions)}
        with self._changed:
            self.hubs[name] = Hub(name, self._clock(), logs)

    def delete(self, name: str) -> None:
        """Delete an event hub and its messages. Raises KeyError when there is none of that name."""
        with self._changed:
            del self.hubs[name]

    def append(self, hub: Hub, partition: Partition | None, messages: Iterable[Message], key: str | None) -> Partition:
        """Store messages that came in one transfer: all in one partition, in order. Returns the partition."""
        events = list(messages)
        key = key or next((event.partition_key for event in events if event.partition_key), None)
        with self._changed:
            log = partition or hub.choose(key)
            now = self._clock()
            for event in events:
                log.append(event, key, now)
            log.trim()
            self._stored += len(events)
            self._changed.notify_all()
        return log

    def snapshot(self, hub: str | None) -> list[StoredMessage]:
        """What is kept now, partition by partition, in order. Raises KeyError for an unknown event hub."""
        with self._changed:
            hubs = [self.hubs[hub]] if hub is not None else list(self.hubs.values())
            return [message for stored in hubs for log in stored.partitions.values() for message in log.messages]

    def wait(self, count: int, timeout: float) -> None:
        """Returns when `count` messages were ever stored. Raises TimeoutError after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._stored >= count, timeout):
                raise TimeoutError(f"{self._stored} of {count} messages stored after {timeout:g} s")
