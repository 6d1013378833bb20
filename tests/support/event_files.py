"""Event files as a reader finds them: complete JSON, each valid against its schema."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import jsonschema


def _schema(name: str) -> Mapping[str, Any]:
    schema = json.loads(files("exporter").joinpath("schema", f"{name}.v1.json").read_text(encoding="utf-8"))
    assert isinstance(schema, dict)
    return schema


EVENT_FILE_SCHEMA: Final = _schema("event_file")
STATUS_FILE_SCHEMA: Final = _schema("event_files_status")
SCHEMAS: Final = (EVENT_FILE_SCHEMA, STATUS_FILE_SCHEMA)
EVENT_FILE, STATUS_FILE = (
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()) for schema in SCHEMAS
)


def read(path: Path) -> Mapping[str, Any]:
    """Return the content of one file, checked against its schema. Raises OSError if there is none."""
    text = _content(path).decode("utf-8")
    assert text.endswith("}\n")
    value = json.loads(text)
    (STATUS_FILE if path.name == "status.json" else EVENT_FILE).validate(value)
    assert isinstance(value, dict)
    return value


def _content(path: Path) -> bytes:
    """Return the content of the file. On Windows it can't be opened at the moment in which it is replaced."""
    for _ in range(100):
        with contextlib.suppress(PermissionError):
            return path.read_bytes()
        time.sleep(0.01)
    return path.read_bytes()


def names(folder: Path) -> set[str]:
    """Return every file of the folder."""
    return {path.name for path in folder.iterdir()}


def events(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the events' files, by event id, without one that is removed during the read."""
    found = {}
    for path in folder.glob("*.json"):
        if path.name != "status.json":
            with contextlib.suppress(FileNotFoundError):
                value = read(path)
                found[value["event_id"]] = value
    return found
