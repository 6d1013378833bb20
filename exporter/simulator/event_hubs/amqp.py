"""AMQP 1.0 types and their bytes (OASIS AMQP 1.0, part 1): `encode` and `decode`. No I/O, no state, no dependency.

Python's types represent AMQP's most common ones: `None`, `bool`, `int` (long), `float` (double), `str`, `bytes`,
`list`, `dict`, `UUID`. Other widths that Event Hubs uses have a class here, so a decoded value is encoded with its
original type, in the widest encoding. Byte, short, float, char, and decimals are rejected: no supported client sends
them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import UUID

from msgspec import Struct


class CodecError(ValueError):
    """The bytes are not AMQP 1.0, or the value has no AMQP type. The connection must end."""


class UByte(int):
    """ubyte, 8 bits."""


class UShort(int):
    """ushort, 16 bits."""


class UInt(int):
    """uint, 32 bits."""


class ULong(int):
    """ulong, 64 bits."""


class Int(int):
    """int, 32 bits, signed. Plain Python integers are long, 64 bits."""


class Timestamp(int):
    """timestamp: milliseconds since 1970-01-01T00:00:00Z."""


class Symbol(str):
    """symbol: ASCII text from a closed domain, such as an error condition."""

    __slots__ = ()


class Array(list[Any]):
    """array: any number of values of one type."""


class Described(Struct, frozen=True):
    """A value with a descriptor (usually a `ULong` code) that defines its meaning."""

    descriptor: Any
    value: Any


_U8, _U16, _U32, _U64 = (struct.Struct(code) for code in (">B", ">H", ">I", ">Q"))
_I8, _I32, _I64, _F64 = (struct.Struct(code) for code in (">b", ">i", ">q", ">d"))
_SMALL_ULONG: Final = 256


def encode(value: Any) -> bytes:
    """Return the value as AMQP bytes. Raises `CodecError` for a type or number that AMQP can't represent."""
    if type(value) not in _WRITERS:
        raise CodecError(f"no AMQP type for {type(value).__name__}")
    code, content = _WRITERS[type(value)]
    try:
        return code + content(value)
    except (struct.error, UnicodeError, OverflowError) as error:
        raise CodecError(f"value does not fit its AMQP type: {type(error).__name__}") from error


def _counted(content: bytes) -> bytes:
    return _U32.pack(len(content)) + content


def _compound(count: int, items: Iterable[bytes]) -> bytes:
    return _counted(_U32.pack(count) + b"".join(items))


def _array(value: Array) -> bytes:
    """Elements of an array share one constructor."""
    kinds = {type(item) for item in value}
    if len(kinds) > 1 or not kinds <= _WRITERS.keys():
        raise CodecError("an array holds values of one type")
    code, content = _WRITERS[kinds.pop()] if kinds else (b"", bytes)
    return _compound(len(value), [code, *map(content, value)])


def _described(value: Described) -> bytes:
    """Encode the descriptor as a small ulong: Azure's Python SDK reads it as one, regardless of its constructor."""
    descriptor = value.descriptor
    is_small = type(descriptor) is ULong and descriptor < _SMALL_ULONG
    return (b"\x53" + _U8.pack(descriptor) if is_small else encode(descriptor)) + encode(value.value)


_WRITERS: Final[dict[type, tuple[bytes, Callable[[Any], bytes]]]] = {
    # For each type, the constructor of its widest encoding and the function that encodes the value.
    type(None): (b"\x40", lambda _value: b""),
    bool: (b"\x56", _U8.pack),
    int: (b"\x81", _I64.pack),
    float: (b"\x82", _F64.pack),
    str: (b"\xb1", lambda value: _counted(value.encode())),
    bytes: (b"\xb0", _counted),
    UUID: (b"\x98", lambda value: value.bytes),
    list: (b"\xd0", lambda value: _compound(len(value), map(encode, value))),
    dict: (b"\xd1", lambda value: _compound(2 * len(value), (encode(key) + encode(value[key]) for key in value))),
    UByte: (b"\x50", _U8.pack),
    UShort: (b"\x60", _U16.pack),
    UInt: (b"\x70", _U32.pack),
    ULong: (b"\x80", _U64.pack),
    Int: (b"\x71", _I32.pack),
    Timestamp: (b"\x83", _I64.pack),
    Symbol: (b"\xb3", lambda value: _counted(value.encode("ascii"))),
    Array: (b"\xf0", _array),
    Described: (b"\x00", _described),
}

MAX_DEPTH: Final = 32
"""Deep enough for any message, shallow enough that hostile bytes never reach Python's recursion limit."""

Reader = Callable[[bytes, int, int], tuple[Any, int]]
"""A function of bytes, the position after the constructor, and the depth; returns the value and the next position."""


def decode(data: bytes, position: int = 0) -> tuple[Any, int]:
    """Return the value at `position` and the position of the next one. Raises `CodecError` for anything else."""
    try:
        return _read(data, position, 0)
    except CodecError:
        raise
    except (IndexError, struct.error, UnicodeError, TypeError, ValueError) as error:
        raise CodecError(f"not an AMQP value: {type(error).__name__}") from error


def _read(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise CodecError("nested too deeply")
    code = data[position]
    reader = _READERS.get(code)
    if reader is None:
        raise CodecError(f"no such AMQP type: 0x{code:02x}")
    return reader(data, position + 1, depth)


def _constant(value: Any) -> Reader:
    return lambda _data, position, _depth: (value, position)


def _fixed(layout: struct.Struct, kind: Callable[[Any], Any]) -> Reader:
    return lambda data, position, _depth: (kind(layout.unpack_from(data, position)[0]), position + layout.size)


def _variable(length: struct.Struct, kind: Callable[[bytes], Any]) -> Reader:
    def read(data: bytes, position: int, _depth: int) -> tuple[Any, int]:
        start = position + length.size
        end = start + length.unpack_from(data, position)[0]
        if end > len(data):
            raise CodecError("value ends too early")
        return kind(data[start:end]), end

    return read


def _items(layout: struct.Struct, kind: Callable[[list[Any]], Any]) -> Reader:
    """Return a reader of a list, a map, or an array, whose items share one constructor before the first."""

    def read(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        place = position + 2 * layout.size
        end = position + layout.size + layout.unpack_from(data, position)[0]
        count = layout.unpack_from(data, position + layout.size)[0]
        # Checked before allocating: every item takes at least a byte, except in an array of nulls.
        if end > len(data) or place > end or count > end - place or depth > MAX_DEPTH:
            raise CodecError("compound with a wrong size or count")
        item: Reader = _read
        if kind is Array and place < end:
            if data[place] not in _READERS or data[place] == 0:
                raise CodecError("array of a type that is not supported")
            item, place = _READERS[data[place]], place + 1
        values = []
        for _ in range(count):
            value, place = item(data, place, depth + 1)
            values.append(value)
        if place != end:
            raise CodecError("compound whose size disagrees with its content")
        return kind(values), end

    return read


def _map(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _read_described(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    descriptor, position = _read(data, position, depth + 1)
    value, position = _read(data, position, depth + 1)
    return Described(descriptor, value), position


def _symbol(raw: bytes) -> Symbol:
    return Symbol(raw.decode("ascii"))


_READERS: Final[dict[int, Reader]] = {
    0x00: _read_described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: lambda _data, position, _depth: ([], position),  # a new list each time
    0x50: _fixed(_U8, UByte),
    0x52: _fixed(_U8, UInt),
    0x53: _fixed(_U8, ULong),
    0x54: _fixed(_I8, Int),
    0x55: _fixed(_I8, int),
    0x56: _fixed(_U8, bool),
    0x60: _fixed(_U16, UShort),
    0x70: _fixed(_U32, UInt),
    0x71: _fixed(_I32, Int),
    0x80: _fixed(_U64, ULong),
    0x81: _fixed(_I64, int),
    0x82: _fixed(_F64, float),
    0x83: _fixed(_I64, Timestamp),
    0x98: _fixed(struct.Struct(">16s"), lambda raw: UUID(bytes=raw)),
    0xA0: _variable(_U8, bytes),
    0xA1: _variable(_U8, bytes.decode),
    0xA3: _variable(_U8, _symbol),
    0xB0: _variable(_U32, bytes),
    0xB1: _variable(_U32, bytes.decode),
    0xB3: _variable(_U32, _symbol),
    0xC0: _items(_U8, list),
    0xC1: _items(_U8, _map),
    0xD0: _items(_U32, list),
    0xD1: _items(_U32, _map),
    0xE0: _items(_U8, Array),
    0xF0: _items(_U32, Array),
}
