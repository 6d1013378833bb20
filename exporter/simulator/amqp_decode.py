"""Bytes to AMQP 1.0 values (OASIS AMQP 1.0, part 1). Any bytes: a value or a `CodecError`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from exporter.simulator.amqp import (
    Array,
    Byte,
    Char,
    CodecError,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

# Deep enough for any message, shallow enough that hostile bytes never reach Python's recursion limit.
MAX_DEPTH: Final = 32

Reader = Callable[[bytes, int, int], tuple[Any, int]]

_U8, _U16, _U32, _U64 = (struct.Struct(code) for code in (">B", ">H", ">I", ">Q"))
_I8, _I16, _I32, _I64 = (struct.Struct(code) for code in (">b", ">h", ">i", ">q"))
_F32, _F64 = struct.Struct(">f"), struct.Struct(">d")


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


def _opaque(size: int, kind: Callable[[bytes], Any]) -> Reader:
    return lambda data, position, _depth: (kind(_take(data, position, size)), position + size)


def _bounds(layout: struct.Struct, data: bytes, position: int) -> tuple[int, int, int]:
    """Count, first byte and end of a compound. A count beyond its own bytes is refused before anything is allocated."""
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


def _text(raw: bytes) -> str:
    return raw.decode("utf-8")


def _symbol(raw: bytes) -> Symbol:
    return Symbol(raw.decode("ascii"))


def _char(point: int) -> Char:
    return Char(chr(point))


def _same(value: Any) -> Any:
    return value


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


_READERS: Final[dict[int, Reader]] = {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: lambda _data, position, _depth: ([], position),
    0x50: _fixed(_U8, UByte),
    0x51: _fixed(_I8, Byte),
    0x52: _fixed(_U8, UInt),
    0x53: _fixed(_U8, ULong),
    0x54: _fixed(_I8, Int),
    0x55: _fixed(_I8, _same),
    0x56: _fixed(_U8, bool),
    0x60: _fixed(_U16, UShort),
    0x61: _fixed(_I16, Short),
    0x70: _fixed(_U32, UInt),
    0x71: _fixed(_I32, Int),
    0x72: _fixed(_F32, Float),
    0x73: _fixed(_U32, _char),
    0x74: _opaque(4, Decimal),
    0x80: _fixed(_U64, ULong),
    0x81: _fixed(_I64, _same),
    0x82: _fixed(_F64, _same),
    0x83: _fixed(_I64, Timestamp),
    0x84: _opaque(8, Decimal),
    0x94: _opaque(16, Decimal),
    0x98: _opaque(16, _uuid),
    0xA0: _variable(_U8, bytes),
    0xA1: _variable(_U8, _text),
    0xA3: _variable(_U8, _symbol),
    0xB0: _variable(_U32, bytes),
    0xB1: _variable(_U32, _text),
    0xB3: _variable(_U32, _symbol),
    0xC0: _list(_U8),
    0xC1: _map(_U8),
    0xD0: _list(_U32),
    0xD1: _map(_U32),
    0xE0: _array(_U8),
    0xF0: _array(_U32),
}
