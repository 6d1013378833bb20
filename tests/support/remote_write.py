"""Samples of any time for a real Prometheus, sent with its remote write protocol, version 1.0.

A request is a Protocol Buffers message in a block of snappy. Both are encoded here by hand, the block without any
compression: https://prometheus.io/docs/specs/prw/remote_write_spec/ and snappy's format_description.txt.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final

import httpx

Sample = tuple[Mapping[str, str], float, float]
"""Labels with `__name__`, the value, and the time in seconds since the epoch."""

_HEADERS: Final = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_LITERAL_OF_FOUR_BYTES: Final = 63 << 2


def write(http: httpx.Client, samples: Iterable[Sample]) -> None:
    """Store samples. Raises httpx.HTTPStatusError if Prometheus rejects one, such as one older than its series."""
    series = b"".join(_field(1, _series(*sample)) for sample in samples)
    if series:
        http.post("/api/v1/write", content=_snappy(series), headers=_HEADERS).raise_for_status()


def _series(labels: Mapping[str, str], value: float, at: float) -> bytes:
    named = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, text.encode())) for name, text in sorted(labels.items())
    )
    return named + _field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(round(at * 1000)))


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _snappy(content: bytes) -> bytes:
    return _varint(len(content)) + bytes([_LITERAL_OF_FOUR_BYTES]) + struct.pack("<I", len(content) - 1) + content
