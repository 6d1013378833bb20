"""The state of the broker: a namespace, its event hubs with append-only partitions, and its connections.

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
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import asdict

from exporter.simulator.event_hubs.amqp import (
    Array,
    CodecError,
    Described,
    Int,
    Symbol,
    Timestamp,
    ULong,
    decode,
    encode,
)
from exporter.simulator.event_hubs.frames import ProtocolError
from exporter.simulator.faults import Faults

if TYPE_CHECKING:
    from exporter.simulator.event_hubs.connection import BrokerConnection

BATCH_FORMAT: Final = 0x80013700  # a batch of Event Hubs: each data section is a message
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
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class AmqpMessage(Struct, frozen=True):
    """An AMQP message as received. `bare` is the part that no intermediary may change: from the properties on."""

    annotations: Mapping[Any, Any]
    properties: list[Any]
    application_properties: Mapping[Any, Any]
    data: tuple[bytes, ...]
    value: Any
    bare: bytes

    @property
    def message_id(self) -> Any:
        """The sender's message id, usually a text; None without one."""
        return self._property(0)

    @property
    def content_type(self) -> Any:
        """The sender's content type, a text; None without one."""
        return self._property(6)

    @property
    def partition_key(self) -> str | None:
        """The annotation of that name; None without one."""
        key = self.annotations.get(_KEY)
        return key.decode("utf-8", "replace") if isinstance(key, bytes) else key if isinstance(key, str) else None

    @property
    def body(self) -> bytes:
        """The joined data sections, or the text or bytes of an amqp-value; empty for anything else."""
        if isinstance(self.value, str):
            return self.value.encode()
        return self.value if isinstance(self.value, bytes) else b"".join(self.data)

    def _property(self, index: int) -> Any:
        return self.properties[index] if index < len(self.properties) else None


def parse_message(payload: bytes) -> AmqpMessage:
    """Parse an AMQP message (part 3, 3.2). Raises `CodecError` if it is invalid."""
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
    return AmqpMessage(
        annotations=sections.get(_ANNOTATIONS, {}),
        properties=sections.get(_PROPERTIES, []),
        application_properties=sections.get(_APPLICATION_PROPERTIES, {}),
        data=tuple(data),
        value=sections.get(_VALUE),
        bare=payload[bare:],
    )


class StoredMessage(AmqpMessage, frozen=True):
    """One event in a partition, with the annotations for receivers: the sender's and those of Event Hubs."""

    partition: str
    sequence_number: int
    offset: str  # opaque text, growing; never equal to the sequence number, so that a mix-up is seen
    enqueued_time: datetime

    def payload(self) -> bytes:
        """Return the message for a receiver: the annotations, then the sender's sections unchanged."""
        return encode(Described(ULong(_ANNOTATIONS), self.annotations)) + self.bare


def milliseconds(moment: datetime) -> int:
    """Return the AMQP timestamp of an aware datetime."""
    return (moment - _EPOCH) // _MILLISECOND


class Partition:
    """An append-only log. A position is the sequence number of the next message to read.

    `readers` are called after each transfer that added messages.
    """

    def __init__(self, partition_id: str) -> None:
        self.id = partition_id
        self.messages: list[StoredMessage] = []
        self.readers: set[Callable[[], None]] = set()
        self._next_offset = 0

    def append(self, message: AmqpMessage, partition_key: str | None, now: datetime) -> None:
        """Store a message; `partition_key` applies if the message has none. `now` is aware."""
        if self.messages:
            now = max(now, self.messages[-1].enqueued_time)  # positions by time require ascending times
        sequence, offset, key = len(self.messages), str(self._next_offset), message.partition_key or partition_key
        added = {_SEQUENCE: sequence, _OFFSET: offset, _TIME: Timestamp(milliseconds(now))}
        annotations = {**message.annotations, **added, **({} if key is None else {_KEY: key})}
        fields = {**asdict(message), "annotations": annotations}
        self.messages.append(
            StoredMessage(partition=self.id, sequence_number=sequence, offset=offset, enqueued_time=now, **fields)
        )
        self._next_offset += len(message.bare) + 64  # an arbitrary overhead: an empty message advances it too

    def description(self) -> dict[str, Any]:
        """Return the fields that `$management` returns for it."""
        last = self.messages[-1] if self.messages else None
        return {
            "partition": self.id,
            "begin_sequence_number": 0,
            "last_enqueued_sequence_number": len(self.messages) - 1,
            "last_enqueued_offset": last.offset if last else "-1",
            "last_enqueued_time_utc": Timestamp(milliseconds(last.enqueued_time) if last else 0),
            "is_partition_empty": last is None,
        }

    def position(self, selector: str | None) -> int:
        """Return the sequence number at which a consumer with this filter starts; None means the oldest message.

        Raises `ProtocolError` for a filter other than Event Hubs' three.
        """
        if selector is None:
            return 0
        if (match := _SELECTOR.fullmatch(selector)) is None:
            raise ProtocolError("com.microsoft:argument-error", "the filter is not a position of Event Hubs")
        what, value = match["what"], match["value"]
        if value == "@latest" and what == "offset":
            return len(self.messages)
        if not re.fullmatch(r"-?\d{1,18}", value):
            raise ProtocolError("com.microsoft:argument-error", "the position is not a number")
        side = bisect_left if match["operator"] == ">=" else bisect_right
        return side(self.messages, int(value), key=_ORDERS[what])


_ORDERS: Final[dict[str, Callable[[StoredMessage], int]]] = {
    "offset": lambda message: int(message.offset),
    "sequence-number": lambda message: message.sequence_number,
    "enqueued-time": lambda message: milliseconds(message.enqueued_time),
}


class Hub(Struct, frozen=True):
    """An event hub: a name and its partitions, "0" to "n-1"."""

    name: str
    created_at: datetime
    partitions: Mapping[str, Partition]
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def description(self) -> dict[str, Any]:
        """Return the fields that `$management` returns for it."""
        return {
            "created_at": Timestamp(milliseconds(self.created_at)),
            "partition_count": Int(len(self.partitions)),
            "partition_ids": Array(self.partitions),
            "georeplication_factor": Int(1),
        }

    def choose(self, partition_key: str | None) -> Partition:
        """Return the key's partition, always the same one; without a key, round robin."""
        number = next(self._count) if partition_key is None else zlib.crc32(partition_key.encode())
        return self.partitions[str(number % len(self.partitions))]


class Namespace:
    """The state that all connections share. The broker's loop writes it; other threads read it holding `changed`."""

    def __init__(self, faults: Faults, max_message_size: int, clock: Callable[[], datetime]) -> None:
        self.faults, self.max_message_size, self._clock = faults, max_message_size, clock
        self.hubs: dict[str, Hub] = {}
        self.connections: set[BrokerConnection] = set()
        self.total_stored = self.total_connections = 0
        self.changed = threading.Condition()

    def create(self, name: str, partitions: int) -> None:
        """Add an empty event hub."""
        with self.changed:
            self.hubs[name] = Hub(name, self._clock(), {str(i): Partition(str(i)) for i in range(partitions)})

    def publish(self, log: Partition, messages: Iterable[AmqpMessage], key: str | None) -> None:
        """Store the messages of one transfer in order, and send them to the consumers of their partition."""
        with self.changed:
            now = self._clock()
            for message in messages:
                log.append(message, key, now)
                self.total_stored += 1
            self.changed.notify_all()
        for pump in list(log.readers):
            pump()
