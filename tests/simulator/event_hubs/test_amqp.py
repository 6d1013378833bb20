"""The broker's AMQP 1.0 codec: values are read back as written, and no bytes crash it."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.simulator.event_hubs.amqp import (
    MAX_DEPTH,
    Array,
    CodecError,
    Described,
    Int,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
)
from exporter.simulator.event_hubs.frames import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Transfer,
    frame,
    next_frame,
)


def whole(low: int, high: int, kind: type) -> st.SearchStrategy[Any]:
    return st.integers(low, high).map(kind)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
SYMBOLS = st.text(st.characters(max_codepoint=127), max_size=20).map(Symbol)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    whole(-(2**63), 2**63 - 1, int),
    whole(0, 2**8 - 1, UByte),
    whole(0, 2**16 - 1, UShort),
    whole(0, 2**32 - 1, UInt),
    whole(0, 2**64 - 1, ULong),
    whole(-(2**31), 2**31 - 1, Int),
    whole(-(2**63), 2**63 - 1, Timestamp),
    st.floats(allow_nan=False),
    st.uuids(),
    st.binary(max_size=300),
    TEXT,
    SYMBOLS,
)
ARRAYS = st.one_of(
    st.lists(TEXT, max_size=5), st.lists(SYMBOLS, max_size=5), st.lists(whole(0, 2**32 - 1, UInt), max_size=5)
).map(Array)
VALUES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(TEXT | SYMBOLS | st.integers(0, 9), inner, max_size=4),
        st.builds(Described, SYMBOLS | whole(0, 2**64 - 1, ULong), inner),
    ),
    max_leaves=12,
)


def typed(value: Any) -> Any:
    """Return the value with its types: 1, True, and UInt(1) are equal in Python but not in AMQP."""
    if isinstance(value, Described):
        return Described, typed(value.descriptor), typed(value.value)
    if isinstance(value, dict):
        return dict, tuple((typed(key), typed(item)) for key, item in value.items())
    if isinstance(value, list):
        return type(value), tuple(map(typed, value))
    return type(value), value


@given(VALUES, st.binary(max_size=5))
@settings(max_examples=300, deadline=None)
def test_every_value_is_read_back_as_it_was_written(value: Any, rest: bytes) -> None:
    """Encoding and decoding returns the same value of the same AMQP type, and doesn't touch the following bytes."""
    data = encode(value)
    back, end = decode(data + rest)
    assert typed(back) == typed(value)
    assert end == len(data)


@given(st.binary(max_size=80))
@settings(max_examples=500, deadline=None)
def test_any_bytes_give_a_value_or_a_codec_error(data: bytes) -> None:
    """Hostile bytes never raise anything except CodecError."""
    try:
        _value, end = decode(data)
    except CodecError:
        return
    assert 0 < end <= len(data)


@given(VALUES, st.data())
@settings(max_examples=200, deadline=None)
def test_a_truncated_value_is_a_codec_error(value: Any, data: st.DataObject) -> None:
    """A value without its last bytes is never read as a shorter one."""
    encoded = encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CodecError):
        decode(encoded[:cut])


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("40", None),
        ("56 01", True),
        ("43", UInt(0)),
        ("52 ff", UInt(255)),
        ("70 00 00 01 00", UInt(256)),
        ("53 10", ULong(16)),
        ("55 ff", -1),
        ("83 00 00 00 00 00 00 00 01", Timestamp(1)),
        ("a1 02 c3 a9", "é"),
        ("a3 04 24 63 62 73", Symbol("$cbs")),
        ("45", []),
        ("c0 03 02 41 40", [True, None]),
        ("c1 05 02 a1 01 61 41", {"a": True}),
        ("e0 06 02 a1 01 61 01 62", Array(["a", "b"])),
        ("00 53 24 45", Described(ULong(0x24), [])),
    ],
)
def test_the_encodings_of_the_specification_are_read(data: str, value: Any) -> None:
    """Every compact encoding of AMQP 1.0 part 1 that peers use is read."""
    assert typed(decode(bytes.fromhex(data))[0]) == typed(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\xa1\x05ab",
        b"\xa1\x01\xff",
        b"\xa3\x01\xe9",
        b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff",  # a list that announces 4 billion items
        b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40",  # an array of as many nulls, which take no bytes
        b"\xc1\x03\x02\x45\x40",  # a map whose key is a list
        b"\xc1\x02\x01\x40",  # a map with half an entry
        b"\xc0\x03\x01\x41\x40",  # a list longer than its items
        b"\xe0\x04\x01\x00\x53\x24",  # an array of described values
        b"\x00" * 4000,  # descriptors of descriptors of ...
        b"\xd0\x00\x00\x10\x00\x00\x00\x00\x01" * 400,
    ],
)
def test_malformed_values_are_codec_errors(data: bytes) -> None:
    """Wrong sizes, counts, texts, and depths raise CodecError, without allocating what they announce."""
    with pytest.raises(CodecError):
        decode(data)


def test_nesting_is_bounded() -> None:
    """Values nest up to a depth that never exhausts Python's stack."""
    value: Any = None
    for _ in range(MAX_DEPTH):
        value = [value]
    assert decode(encode(value))[0] == value
    with pytest.raises(CodecError):
        decode(encode([value]))


@pytest.mark.parametrize("value", [object(), {1}, UInt(-1), UByte(256), 2**63, Symbol("é"), "\ud800", Array([1, "a"])])
def test_values_without_an_amqp_type_are_refused(value: Any) -> None:
    """Encoding never writes a different value."""
    with pytest.raises(CodecError):
        encode(value)


PERFORMATIVES: list[tuple[Performative, int]] = [
    (Open("c"), 10),
    (Begin(None, UInt(0), UInt(1), UInt(1)), 8),
    (Attach("l", UInt(0), True), 14),
    (Flow(None, UInt(1), UInt(0), UInt(1)), 11),
    (Transfer(UInt(0)), 11),
    (Disposition(True, UInt(0)), 6),
    (Detach(UInt(0)), 3),
    (End(), 1),
    (Close(), 1),
]


@pytest.mark.parametrize(("performative", "fields"), PERFORMATIVES)
def test_every_performative_is_written_with_all_its_fields(performative: Performative, fields: int) -> None:
    """Azure's Python SDK fails on frames without their trailing nulls, so all are written."""
    described, _ = decode(frame(0, performative)[8:])
    assert len(described.value) == fields == len(get_type_hints(type(performative)))


@pytest.mark.parametrize("performative", [performative for performative, _ in PERFORMATIVES])
def test_trailing_nulls_may_be_missing(performative: Performative) -> None:
    """A peer may omit trailing nulls, as AMQP allows."""
    described, _ = decode(frame(0, performative)[8:])
    fields = list(described.value)
    while fields and fields[-1] is None:
        fields.pop()
    content = encode(Described(described.descriptor, fields))
    buffer = bytearray((8 + len(content)).to_bytes(4, "big") + b"\x02\x00\x00\x07" + content + b"rest")
    received = next_frame(buffer)
    assert received is not None
    assert (received.channel, received.performative) == (7, performative)


@pytest.mark.parametrize(
    "fields",
    [
        [],  # mandatory fields missing
        ["l", UInt(0), None],
        [b"l", UInt(0), True],
        ["l", 0, True],  # a long instead of a uint
        ["l", UInt(0), True, *[None] * 12],  # one field too many
    ],
)
def test_fields_of_the_wrong_type_are_codec_errors(fields: list[Any]) -> None:
    """After the frame reader, every field has the type of its definition."""
    content = encode(Described(ULong(0x12), fields))
    with pytest.raises(CodecError):
        next_frame(bytearray((8 + len(content)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + content))


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_frame_content_gives_a_frame_or_a_codec_error(content: bytes) -> None:
    """A frame with a valid header and random content never raises anything except CodecError."""
    buffer = bytearray((8 + len(content)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + content)
    try:
        received = next_frame(buffer)
    except CodecError:
        return
    assert received is not None
    assert not buffer
