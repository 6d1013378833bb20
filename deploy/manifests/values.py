"""Reading values.yaml with its comments: description, default, and JSON Schema of each key.

The comment above a key is its description. A line `@schema {…}` in it adds to the schema that follows from the default:
a mapping permits only the keys that it shows, and every other value has the type of its default. `{is: …}` names one of
Kubernetes' grammars instead, for values that become part of an object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from exporter.config.schema import SECTIONS, Setting, settings_of
from exporter.config.types import Choice, Integer, Size, Words
from exporter.core.hours import DAYS
from exporter.core.policy import Rule

ANNOTATION: Final = "@schema "
SET_BY_THE_CHART: Final = frozenset(
    {
        "source.node_name",
        "approval.mode",
        "approval.hold_file",
        "event_hubs.connection_string_file",
        "outbox.path",
        "event_files.path",
        "web.listen_address",
        "web.config_file",
        "log.format",
    }
)
"""Settings that `settings` doesn't permit, because other values set them by environment, which takes precedence."""
_NAME: Final = {"type": "string", "maxLength": 253, "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"}
_LABEL: Final = {"type": "string", "maxLength": 63, "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"}
_IN_A_SECRET: Final = {"type": "string", "maxLength": 253, "pattern": "^[-A-Za-z0-9_]([-A-Za-z0-9_.]*[-A-Za-z0-9_])?$"}
GRAMMARS: Final[dict[str, dict[str, Any]]] = {
    "name": _NAME,
    "labels": {"type": "object", "additionalProperties": _LABEL},
    "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    "secret": {
        "type": "object",
        "additionalProperties": False,
        "properties": {"name": _NAME, "key": _IN_A_SECRET},
    },
}
"""Kubernetes' grammars by their name in `@schema {is: …}`. The templates check keys, because Helm prints a key that the
schema rejects, and it may be a secret."""
_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True)
class Value:
    """A key of values.yaml: `path` is dotted, `children` are a mapping's keys, `extra` is what follows `@schema`."""

    path: str
    default: Any
    description: str
    extra: dict[str, Any]
    children: tuple[Value, ...]
    block: bool
    """Whether a mapping is written with one line for each key: then each key has its own row in the table."""

    def walk(self) -> Iterator[Value]:
        """Return this value and all values below it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.walk()


def read(text: str) -> tuple[Value, ...]:
    """Return the keys of values.yaml in the order of the file. Raises ValueError for an invalid comment."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        raise ValueError("values.yaml: not a mapping")
    return _children(node, text.splitlines(), "")


def _children(node: yaml.MappingNode, lines: list[str], prefix: str) -> tuple[Value, ...]:
    return tuple(_value(key, value, lines, prefix) for key, value in node.value)


def _value(key: yaml.ScalarNode, node: yaml.Node, lines: list[str], prefix: str) -> Value:
    path = f"{prefix}{key.value}"
    own_line = not lines[key.start_mark.line][: key.start_mark.column].strip()
    description, extra = _comment(lines, key.start_mark.line, path) if own_line else ("", {})
    default = yaml.safe_load(yaml.serialize(node))
    whole = {"properties", "additionalProperties", "settings", "is"} & set(extra)
    inside = isinstance(node, yaml.MappingNode) and not whole
    children = _children(node, lines, f"{path}.") if inside and isinstance(node, yaml.MappingNode) else ()
    return Value(path, default, description, extra, children, not getattr(node, "flow_style", False))


def _comment(lines: list[str], line: int, path: str) -> tuple[str, dict[str, Any]]:
    """Return the description and the `@schema` mapping of the comment that ends above `line`."""
    words: list[str] = []
    extra: dict[str, Any] = {}
    first = line
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    for text in (entry.lstrip().removeprefix("#").strip() for entry in lines[first:line]):
        if not text.startswith(ANNOTATION):
            words.append(text)
            continue
        found = yaml.safe_load(text.removeprefix(ANNOTATION))
        if not isinstance(found, dict):
            raise ValueError(f"{path}: {ANNOTATION.strip()} must be followed by a mapping")
        extra |= found
    return " ".join(words), extra


# -- the schema


def schema(values: tuple[Value, ...]) -> str:
    """Return the text of values.schema.json, which permits only the keys of values.yaml, each with its type."""
    document = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$comment": "generated by `make generate` from values.yaml and exporter/config/schema.py",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            **{_name(value): _schema_of(value) for value in values},
            "global": {"type": "object", "description": "Values of a parent chart for all its charts. Ignored."},
            "enabled": {"type": "boolean", "description": "For `condition` in a parent chart. Ignored."},
        },
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _name(value: Value) -> str:
    return value.path.rpartition(".")[2]


def _schema_of(value: Value) -> dict[str, Any]:
    described = {"description": value.description} if value.description else {}
    extra = dict(value.extra)
    if extra.pop("settings", False):
        return {**described, "type": "object", **_settings(), **extra}
    grammar = GRAMMARS[extra.pop("is")] if "is" in extra else {"type": _TYPES[type(value.default)]}
    made: dict[str, Any] = {**described, **grammar}
    if value.children:
        made |= {
            "additionalProperties": False,
            "properties": {_name(child): _schema_of(child) for child in value.children},
        }
    return made | extra


def _settings() -> dict[str, Any]:
    """Return the schema of the agent's settings by section, without secrets and the settings that the chart sets."""
    sections: dict[str, Any] = {}
    for section in SECTIONS:
        keys = {
            key: _setting(setting)
            for key, setting in settings_of(section).items()
            if not setting.secret and setting.name not in SET_BY_THE_CHART
        }
        if section == "approval":
            keys["rules"] = {"type": "array", "items": _rule()}
        if keys:
            sections[section] = {"type": "object", "additionalProperties": False, "properties": keys}
    return {"additionalProperties": False, "properties": sections}


def _setting(setting: Setting) -> dict[str, Any]:
    made: dict[str, Any] = {"description": setting.help}
    match setting.kind:
        case Choice(words):
            return {**made, "enum": [str(word) for word in words]}
        case Size(minimum, maximum):
            size = {"pattern": "^[0-9]+ ?([kKMGT]?B|[KMGT]iB)?$", "minimum": minimum, "maximum": maximum}
            return {**made, "type": ["integer", "string"], **size}
        case Integer(minimum, maximum):
            return {**made, "type": "integer", "minimum": minimum, "maximum": maximum}
        case Words():
            return {**made, "type": "array", "items": {"type": "string"}}
        case _:
            return {**made, "type": "string"}


def _rule() -> dict[str, Any]:
    """Return the schema of a rule. It checks names and types of keys only; the agent checks the rest."""
    keys: dict[str, Any] = {}
    for name, kind in Rule.__annotations__.items():  # as they are written
        if name == "hours":  # one value, of three keys
            text = {"type": "string"}
            keys |= {"between": text, "days": {"type": "array", "items": {"enum": [*DAYS]}}, "timezone": text}
        elif name == "settle":
            keys[name] = {"type": "string"}
        elif kind.startswith("tuple"):
            keys[name] = {"type": "array", "items": {"type": "string"}}
        else:
            keys[name] = {"type": {"str": "string", "bool": "boolean"}.get(kind, "integer")}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["name", "event_type"],
        "properties": keys,
    }


# -- the table


def table(values: tuple[Value, ...]) -> str:
    """Return all values as a Markdown table for the chart's README."""
    lines = ["| value | default | meaning |", "| --- | --- | --- |"]
    for top in values:
        for value in top.walk():
            if not value.description:
                continue
            shown = "" if value.block and value.children else f"`{json.dumps(value.default, ensure_ascii=False)}`"
            meaning = re.sub(r"(?<!\\)\|", r"\\|", value.description)
            lines.append(f"| `{value.path}` | {shown} | {meaning} |")
    return "\n".join(lines) + "\n"
