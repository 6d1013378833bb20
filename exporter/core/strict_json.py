"""Strict JSON for input from outside: numbers that fit, repeated fields reported, text that every output can encode."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

INT_LIMIT = 2**63  # the range of SQLite, OTLP, and Prometheus


class Object(dict[str, Any]):
    """A JSON object, and in `repeated` the keys that it contained more than once: their value would be ambiguous."""

    repeated: tuple[str, ...] = ()


def repeated_in(value: object) -> tuple[str, ...]:
    """Return the keys that a JSON object contained more than once; empty for anything that `loads` did not make."""
    return value.repeated if isinstance(value, Object) else ()


def object_of(pairs: list[tuple[str, Any]]) -> Object:
    """Return the object of these pairs, for `json.loads` (`object_pairs_hook`)."""
    made = Object(pairs)
    if len(made) != len(pairs):
        made.repeated = tuple(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return made


class UnrepresentableNumber(dict[str, Any]):
    """A number that no output can represent. It has the type of no field, so it's mistyped wherever it occurs."""


def integer(text: str) -> int | UnrepresentableNumber:
    """Return an integer if it fits into 64 bits, else an `UnrepresentableNumber`."""
    value = int(text) if len(text) <= 20 else INT_LIMIT  # noqa: PLR2004  # 20 characters hold every 64-bit integer
    return value if -INT_LIMIT <= value < INT_LIMIT else UnrepresentableNumber(number=text)


def number(text: str) -> float | UnrepresentableNumber:
    """Return a number if it's finite, else an `UnrepresentableNumber`."""
    value = float(text)
    return value if math.isfinite(value) else UnrepresentableNumber(number=text)


def constant(text: str) -> Any:
    """Raise ValueError: NaN and Infinity are not JSON."""
    raise ValueError(f"{text} is not JSON")


def loads(text: str) -> Any:
    """Parse strict JSON; objects are `Object`s. Raises ValueError or RecursionError."""
    return json.loads(text, object_pairs_hook=object_of, parse_int=integer, parse_float=number, parse_constant=constant)


def encodable(value: Any, depth: int = 64) -> Any:
    """Return `value` as JSON that every output can encode.

    Lone surrogates, NUL, NaN, other types, and everything below `depth` levels are replaced.
    """
    if type(value) is str and value.isascii() and "\x00" not in value:
        return value  # nearly always, and much cheaper
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        if not depth:
            return "…"
        return {
            key if type(key) is str and key.isascii() and "\x00" not in key else _name(key): encodable(item, depth - 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [encodable(item, depth - 1) for item in value] if depth else "…"
    return encodable(str(value))


def _name(key: Any) -> str:
    return str(encodable(key if isinstance(key, str) else str(key)))
