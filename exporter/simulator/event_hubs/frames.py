"""AMQP 1.0 frames and performatives (OASIS AMQP 1.0, parts 2 and 3), as values.

Azure's Python SDK up to 5.15.1 fails with "list index out of range" on a peer that leaves out trailing null fields,
which AMQP allows. So every frame written here has all fields of its type, null or not.
"""

from __future__ import annotations

import struct
from types import UnionType
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from exporter.simulator.event_hubs.amqp import CodecError, Described, Symbol, UByte, UInt, ULong, UShort, decode, encode

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_SIZE: Final = 8
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
AMQP_FRAME, SASL_FRAME = 0, 1
MAX_FRAME_SIZE: Final = 65535
"""Bytes, as offered by the real service, so that a batch arrives in several frames."""
TRANSFER_OVERHEAD: Final = 128
"""Bytes: maximum size of a transfer without its payload: the frame header and the fields."""

SENDER, RECEIVER = False, True  # AMQP's `role`
SETTLED: Final = UByte(1)  # snd-settle-mode

_FRAME = struct.Struct(">IBBH")


class ProtocolError(Exception):
    """A violation of AMQP, which ends the connection, or a request for an invalid link, which detaches the link.

    `condition` is AMQP's error condition.
    """

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


class Open(NamedTuple):
    """Opens a connection (part 2, 2.7.1)."""

    container_id: str
    hostname: str | None = None
    max_frame_size: UInt | None = None
    channel_max: UShort | None = None
    idle_time_out: UInt | None = None
    outgoing_locales: Any = None
    incoming_locales: Any = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Begin(NamedTuple):
    """Begins a session on a channel (part 2, 2.7.2)."""

    remote_channel: UShort | None
    next_outgoing_id: UInt
    incoming_window: UInt
    outgoing_window: UInt
    handle_max: UInt | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Attach(NamedTuple):
    """Attaches a link to a session (part 2, 2.7.3)."""

    name: str
    handle: UInt
    role: bool
    snd_settle_mode: UByte | None = None
    rcv_settle_mode: UByte | None = None
    source: Described | None = None
    target: Described | None = None
    unsettled: dict[Any, Any] | None = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: UInt | None = None
    max_message_size: ULong | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Flow(NamedTuple):
    """Updates the windows of a session, and with a handle the credit of a link (part 2, 2.7.4)."""

    next_incoming_id: UInt | None
    incoming_window: UInt
    next_outgoing_id: UInt
    outgoing_window: UInt
    handle: UInt | None = None
    delivery_count: UInt | None = None
    link_credit: UInt | None = None
    available: UInt | None = None
    drain: bool | None = None
    echo: bool | None = None
    properties: dict[Any, Any] | None = None


class Transfer(NamedTuple):
    """Carries a message or a part of one (part 2, 2.7.5)."""

    handle: UInt
    delivery_id: UInt | None = None
    delivery_tag: bytes | None = None
    message_format: UInt | None = None
    settled: bool | None = None
    more: bool | None = None
    rcv_settle_mode: UByte | None = None
    state: Described | None = None
    resume: bool | None = None
    aborted: bool | None = None
    batchable: bool | None = None


class Disposition(NamedTuple):
    """Reports the outcome of deliveries (part 2, 2.7.6)."""

    role: bool
    first: UInt
    last: UInt | None = None
    settled: bool | None = None
    state: Described | None = None
    batchable: bool | None = None


class Detach(NamedTuple):
    """Detaches a link (part 2, 2.7.7)."""

    handle: UInt
    closed: bool | None = None
    error: Described | None = None


class End(NamedTuple):
    """Ends a session (part 2, 2.7.8)."""

    error: Described | None = None


class Close(NamedTuple):
    """Closes a connection (part 2, 2.7.9)."""

    error: Described | None = None


class SaslMechanisms(NamedTuple):
    """The mechanisms that the server offers (part 5, 5.3.3.1)."""

    mechanisms: Any


class SaslInit(NamedTuple):
    """The mechanism that the client has chosen (part 5, 5.3.3.2)."""

    mechanism: Symbol
    initial_response: bytes | None = None
    hostname: str | None = None


class SaslOutcome(NamedTuple):
    """Whether the client was authenticated; code 0 if so (part 5, 5.3.3.5)."""

    code: UByte
    additional_data: bytes | None = None


Performative = tuple[Any, ...]
"""One of the frames above."""


class Frame(NamedTuple):
    """One frame as received. `performative` is None for the empty frame that keeps a connection alive."""

    kind: int
    channel: int
    performative: Performative | None
    payload: bytes


_KINDS: Final[dict[int, type[Performative]]] = {
    0x10: Open,
    0x11: Begin,
    0x12: Attach,
    0x13: Flow,
    0x14: Transfer,
    0x15: Disposition,
    0x16: Detach,
    0x17: End,
    0x18: Close,
    0x40: SaslMechanisms,
    0x41: SaslInit,
    0x44: SaslOutcome,
}
_CODES: Final = {kind: ULong(code) for code, kind in _KINDS.items()}


def _allowed(hint: Any) -> tuple[type, ...] | None:
    """Return the Python types that a field may have; None for any."""
    if hint is Any:
        return None
    parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return tuple(getattr(part, "__origin__", part) for part in parts)


# Reading and writing both use the annotations above as the types of fields.
_TYPES: Final[dict[type, tuple[tuple[type, ...] | None, ...]]] = {
    kind: tuple(_allowed(hint) for hint in get_type_hints(kind).values()) for kind in _KINDS.values()
}


def next_frame(buffer: bytearray) -> Frame | None:
    """Remove and return the first frame of `buffer`; None while incomplete. Raises `CodecError` if it is invalid."""
    if len(buffer) < HEADER_SIZE:
        return None
    size, offset, kind, channel = _FRAME.unpack_from(buffer)
    if not HEADER_SIZE <= 4 * offset <= size <= MAX_FRAME_SIZE or kind not in (AMQP_FRAME, SASL_FRAME):
        raise CodecError("bad frame header")
    if len(buffer) < size:
        return None
    content = bytes(buffer[4 * offset : size])
    del buffer[:size]
    if not content:
        return Frame(kind, channel, None, b"")
    described, end = decode(content)
    if not (isinstance(described, Described) and isinstance(described.value, list)):
        raise CodecError("a frame holds a performative")
    code = described.descriptor
    shape = _KINDS.get(code) if isinstance(code, ULong) else None
    if shape is None:
        raise CodecError("no such performative")
    types = _TYPES[shape]
    fields = described.value + [None] * (len(types) - len(described.value))
    if len(fields) > len(types):
        raise CodecError(f"too many fields for {shape.__name__.lower()}")
    for value, allowed in zip(fields, types, strict=True):
        if allowed is not None and type(value) not in allowed:
            raise CodecError(f"field of the wrong type in {shape.__name__.lower()}")
    return Frame(kind, channel, shape(*fields), content[end:])


def frame(channel: int, performative: Performative, payload: bytes = b"", kind: int = AMQP_FRAME) -> bytes:
    """Return the frame's bytes, with every field written. Plain integers get the type of their field."""
    values = [
        value if value is None or allowed is None or type(value) in allowed else allowed[0](value)
        for value, allowed in zip(performative, _TYPES[type(performative)], strict=True)
    ]
    content = encode(Described(_CODES[type(performative)], values)) + payload
    return _FRAME.pack(HEADER_SIZE + len(content), 2, kind, channel) + content


def error(condition: str, description: str) -> Described:
    """Return an AMQP error: a symbolic condition and a description."""
    return Described(ULong(0x1D), [Symbol(condition), description, None])


def source(address: str) -> Described:
    """Return the broker's source terminus with all eleven fields."""
    return Described(ULong(0x28), [address, *[None] * 10])


def target(address: str) -> Described:
    """Return the broker's target terminus with all seven fields."""
    return Described(ULong(0x29), [address, *[None] * 6])


ACCEPTED: Final = Described(ULong(0x24), [])
RELEASED: Final = Described(ULong(0x26), [])
MODIFIED: Final = Described(ULong(0x27), [True, False, None])


def rejected(condition: str, description: str) -> Described:
    """Return the outcome of a message that the receiver rejects permanently."""
    return Described(ULong(0x25), [error(condition, description)])
