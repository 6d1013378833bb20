"""Reads the response of `/api/v1/status` as a strict consumer does, and checks it against its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final

import jsonschema

from exporter.core.snapshot import Gate, Status
from exporter.core.state import Instant
from exporter.page.status import status_body, status_value
from exporter.page.view import render_page

SCHEMA: Final[Mapping[str, Any]] = json.loads(
    files("exporter").joinpath("schema", "status.v1.json").read_text(encoding="utf-8")
)
VALIDATOR: Final = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
LARGEST: Final = 3 << 20
"""The maximum size of a response in bytes, for any document of at most 4 MiB."""


def read_status(body: bytes) -> dict[str, Any]:
    """Return the response's object. It is strict JSON in UTF-8, of a bounded size, and valid against the schema."""
    assert len(body) < LARGEST
    assert body.endswith(b"}\n")
    value = json.loads(body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_refused)
    assert isinstance(value, dict)
    for text in _texts({name: item for name, item in value.items() if name != "events"}):
        text.encode("utf-8")
        assert "\0" not in text
    VALIDATOR.validate(value)
    return value


def answered(
    status: Status, now: Instant, *, version: str = "1.2.3", gate: Gate | None = None, **given: Any
) -> dict[str, Any]:
    """Return the response for this status. The page made from it is the same as the page made from the value."""
    made = status_value(status, now, version, gate=gate, **given)
    read = read_status(status_body(made))
    assert render_page(read) == render_page(made), "the page shows what is not in the answer"
    return read


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def _refused(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
