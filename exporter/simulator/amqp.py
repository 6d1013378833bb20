"""AMQP 1.0 types and their bytes (OASIS AMQP 1.0, part 1); `amqp_decode` reads them. No I/O, no state, no dependency.

Python's own types stand for AMQP's most common ones: `None`, `bool`, `int` (long), `float` (double), `str`, `bytes`,
`list`, `dict`, `UUID`. AMQP's other widths have a class of their own here, so a value that was read is written back
with the type it had. Decimals are kept as their opaque bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID


class CodecError(ValueError):
    """The bytes are not AMQP 1.0, or the value has no AMQP type. The peer's fault; the connection can't go on."""


class UByte(int):
    """ubyte, 8 bits."""


class UShort(int):
    """ushort, 16 bits."""


class UInt(int):
    """uint, 32 bits."""


class ULong(int):
    """ulong, 64 bits."""


class Byte(int):
    """byte, 8 bits, signed."""


class Short(int):
    """short, 16 bits, signed."""


class Int(int):
    """int, 32 bits, signed. Plain Python integers are long, 64 bits."""


class Timestamp(int):
    """timestamp: milliseconds since 1970-01-01T00:00:00Z."""


class Float(float):
    """float, 32 bits. Plain Python floats are double."""


class Char(str):
    """char: one Unicode character."""

    __slots__ = ()


class Symbol(str):
    """symbol: ASCII text from a closed domain, such as an error condition."""

    __slots__ = ()


class Decimal(bytes):
    """decimal32, decimal64 or decimal128 by its length (4, 8 or 16), uninterpreted."""

    __slots__ = ()


class Array(list[Any]):
    """array: any number of values of one type."""


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor (mostly a `ULong` code) that says what it means."""

    descriptor: Any
    value: Any


Writer = Callable[[Any], bytes]

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
        return short + _U8.pack(size) + content if size < 256 else long + _U32.pack(size) + content  # noqa: PLR2004 - a byte's range

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


def _write_decimal(value: Decimal) -> bytes:
    code = {4: b"\x74", 8: b"\x84", 16: b"\x94"}.get(len(value))
    if code is None:
        raise CodecError("a decimal has 4, 8 or 16 bytes")
    return code + value


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
    Byte: lambda value: b"\x51" + _I8.pack(value),
    Short: lambda value: b"\x61" + _I16.pack(value),
    Int: _small(b"\x54", _I8, b"\x71", _I32),
    Float: lambda value: b"\x72" + _F32.pack(value),
    Timestamp: lambda value: b"\x83" + _I64.pack(value),
    Char: lambda value: b"\x73" + _U32.pack(ord(value)),
    Symbol: _sized(b"\xa3", b"\xb3", lambda value: bytes(value.encode("ascii"))),
    Decimal: _write_decimal,
    Array: _write_array,
    Described: _write_described,
}
