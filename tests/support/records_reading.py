"""The guarantees of every record for its consumers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

KNOWN: Final = ("notice_seconds", "seconds", "document_incarnation")
"""Numbers that may be -1 and are known: a `NotBefore` that passed a second ago, a clock that was set back by one, and
Azure's own number, which a simulator may begin anywhere."""


def unknown_value_fields(data: Mapping[str, Any]) -> list[str]:
    """Return the places in a record's data, except for Azure's own object, with -1 or an empty text instead of null."""
    return list(_unknown({name: value for name, value in data.items() if name != "event"}, "data"))


def _unknown(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name not in KNOWN or item == "":
                yield from _unknown(item, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _unknown(item, f"{place}[{number}]")
    elif value in (-1, ""):
        yield place
