"""AMQP 1.0 types and their bytes (OASIS AMQP 1.0, part 1): `encode` and `decode`. No I/O, no state, no dependency.

Python's own types stand for AMQP's most common ones: `None`, `bool`, `int` (long), `float` (double), `str`, `bytes`,
`list`, `dict`, `UUID`. Other widths that Event Hubs uses have a class of their own here, so a value that was read is
written back with the type it had. A byte, short or float is read as Python's own; char and decimals are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from msgspec import Struct


class CodecError(ValueError):
    """The bytes are not AMQP 1.0, or the value has no AMQP type. The connection can't go on."""


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
    """A value with a descriptor (mostly a `ULong` code) that says what it means."""

    descriptor: Any
    value: Any


Writer = Callable[[Any], bytes]
"""A value to its bytes, constructor included."""

_U8, _U16, _U32, _U64 = (struct.Struct(code) for code in (">B", ">H", ">I", ">Q"))
_I8, _I16, _I32, _I64 = (struct.Struct(code) for code in (">b", ">h", ">i", ">q"))
_F32, _F64 = struct.Struct(">f"), struct.Struct(">d")


def encode(value: Any) -> bytes:
    """The value as AMQP bytes. Raises `CodecError` for a type or a number that AMQP can't carry."""
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise CodecError(f"no AMQP type for {type(value).__name__}")
    try:
        return writer(value)
    except (struct.error, UnicodeError, OverflowError) as error:
        raise CodecError(f"value does not fit its AMQP type: {type(error).__name__}") from error


def _small(short: bytes, narrow: struct.Struct, long: bytes, wide: struct.Struct) -> Writer:
    low, high = (0, 255) if narrow is _U8 else (-128, 127)

    def write(value: Any) -> bytes:
        return short + narrow.pack(value) if low <= value <= high else long + wide.pack(value)

    return write


def _sized(short: bytes, long: bytes, raw: Callable[[Any], bytes]) -> Writer:
    def write(value: Any) -> bytes:
        content = raw(value)
        size = len(content)
        return short + _U8.pack(size) + content if size < 256 else long + _U32.pack(size) + content  # noqa: PLR2004  # a byte's range

    return write


def _compound(code: bytes, count: int, content: bytes) -> bytes:
    return code + _U32.pack(len(content) + 4) + _U32.pack(count) + content


def _write_list(value: list[Any]) -> bytes:
    return _compound(b"\xd0", len(value), b"".join(map(encode, value))) if value else b"\x45"


def _write_map(value: dict[Any, Any]) -> bytes:
    content = b"".join(encode(key) + encode(item) for key, item in value.items())
    return _compound(b"\xd1", 2 * len(value), content)


def _write_array(value: Array) -> bytes:
    """Elements of an array share one constructor; only texts and 32-bit numbers are ever needed here."""
    if not value:
        return _compound(b"\xf0", 0, b"")
    wide = _WIDE.get(type(value[0]))
    if wide is None or any(type(item) is not type(value[0]) for item in value):
        raise CodecError("an array holds values of one simple type")
    code, raw = wide
    return _compound(b"\xf0", len(value), code + b"".join(map(raw, value)))


def _write_described(value: Described) -> bytes:
    return b"\x00" + encode(value.descriptor) + encode(value.value)


def _counted(raw: bytes) -> bytes:
    return _U32.pack(len(raw)) + raw


_WIDE: Final[dict[type, tuple[bytes, Writer]]] = {
    str: (b"\xb1", lambda value: _counted(value.encode())),
    Symbol: (b"\xb3", lambda value: _counted(value.encode("ascii"))),
    UInt: (b"\x70", _U32.pack),
    Int: (b"\x71", _I32.pack),
}

_WRITERS: Final[dict[type, Writer]] = {
    type(None): lambda _value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    int: _small(b"\x55", _I8, b"\x81", _I64),
    float: lambda value: b"\x82" + _F64.pack(value),
    str: _sized(b"\xa1", b"\xb1", str.encode),
    bytes: _sized(b"\xa0", b"\xb0", bytes),
    UUID: lambda value: b"\x98" + value.bytes,
    list: _write_list,
    dict: _write_map,
    UByte: lambda value: b"\x50" + _U8.pack(value),
    UShort: lambda value: b"\x60" + _U16.pack(value),
    UInt: _small(b"\x52", _U8, b"\x70", _U32),
    ULong: _small(b"\x53", _U8, b"\x80", _U64),
    Int: _small(b"\x54", _I8, b"\x71", _I32),
    Timestamp: lambda value: b"\x83" + _I64.pack(value),
    Symbol: _sized(b"\xa3", b"\xb3", lambda value: bytes(value.encode("ascii"))),
    Array: _write_array,
    Described: _write_described,
}

MAX_DEPTH: Final = 32
"""Deep enough for any message, shallow enough that hostile bytes never reach Python's recursion limit."""

Reader = Callable[[bytes, int, int], tuple[Any, int]]
"""Bytes, position behind the constructor and depth to the value, and the position behind it."""


def decode(data: bytes, position: int = 0) -> tuple[Any, int]:
    """The value that starts at `position`, and where the next one starts. Raises `CodecError` for anything else."""
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


def _take(data: bytes, position: int, size: int) -> bytes:
    chunk = data[position : position + size]
    if len(chunk) != size:
        raise CodecError("value ends too early")
    return chunk


def _constant(value: Any) -> Reader:
    return lambda _data, position, _depth: (value, position)


def _fixed(layout: struct.Struct, kind: Callable[[Any], Any]) -> Reader:
    size = layout.size
    return lambda data, position, _depth: (kind(layout.unpack_from(data, position)[0]), position + size)


def _variable(length: struct.Struct, kind: Callable[[bytes], Any]) -> Reader:
    width = length.size

    def read(data: bytes, position: int, _depth: int) -> tuple[Any, int]:
        size = length.unpack_from(data, position)[0]
        start = position + width
        return kind(_take(data, start, size)), start + size

    return read


def _bounds(layout: struct.Struct, data: bytes, position: int) -> tuple[int, int, int]:
    """Count, first byte and end of a compound. A count beyond its bytes is an error before anything is allocated."""
    size = layout.unpack_from(data, position)[0]
    count = layout.unpack_from(data, position + layout.size)[0]
    start, end = position + 2 * layout.size, position + layout.size + size
    if end > len(data) or start > end or count > end - start:
        raise CodecError("compound with a wrong size or count")
    return count, start, end


def _items(data: bytes, start: int, end: int, count: int, depth: int) -> list[Any]:
    values = []
    position = start
    for _ in range(count):
        value, position = _read(data, position, depth + 1)
        values.append(value)
    if position != end:
        raise CodecError("compound whose size disagrees with its content")
    return values


def _list(layout: struct.Struct) -> Reader:
    def read(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        count, start, end = _bounds(layout, data, position)
        return _items(data, start, end, count, depth), end

    return read


def _map(layout: struct.Struct) -> Reader:
    def read(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        count, start, end = _bounds(layout, data, position)
        if count % 2:
            raise CodecError("map with an odd number of items")
        flat = _items(data, start, end, count, depth)
        return dict(zip(flat[::2], flat[1::2], strict=True)), end

    return read


def _array(layout: struct.Struct) -> Reader:
    def read(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        count, start, end = _bounds(layout, data, position)
        if start == end:
            return Array(), end
        if depth > MAX_DEPTH or data[start] not in _READERS or data[start] == 0:
            raise CodecError("array of a type that is not supported")
        reader, cursor, values = _READERS[data[start]], start + 1, Array()
        for _ in range(count):
            value, cursor = reader(data, cursor, depth + 1)
            values.append(value)
        if cursor != end:
            raise CodecError("array whose size disagrees with its content")
        return values, end

    return read


def _described(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    descriptor, position = _read(data, position, depth + 1)
    value, position = _read(data, position, depth + 1)
    return Described(descriptor, value), position


def _symbol(raw: bytes) -> Symbol:
    return Symbol(raw.decode("ascii"))


_READERS: Final[dict[int, Reader]] = {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: lambda _data, position, _depth: ([], position),
    0x50: _fixed(_U8, UByte),
    0x51: _fixed(_I8, int),
    0x52: _fixed(_U8, UInt),
    0x53: _fixed(_U8, ULong),
    0x54: _fixed(_I8, Int),
    0x55: _fixed(_I8, int),
    0x56: _fixed(_U8, bool),
    0x60: _fixed(_U16, UShort),
    0x61: _fixed(_I16, int),
    0x70: _fixed(_U32, UInt),
    0x71: _fixed(_I32, Int),
    0x72: _fixed(_F32, float),
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
    0xC0: _list(_U8),
    0xC1: _map(_U8),
    0xD0: _list(_U32),
    0xD1: _map(_U32),
    0xE0: _array(_U8),
    0xF0: _array(_U32),
}
