"""Shared code for the tests of the settings: a parser, a settings file from text, and the errors of a load."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from exporter.config.command_line import FlagParser
from exporter.config.load import ConfigError, load
from exporter.config.rules import rule_table
from exporter.config.schema import SECTIONS, Settings, settings_of
from exporter.config.sources import ReadFile, add_flags
from exporter.files import TooLarge, read_capped

DATA = Path(__file__).parents[1] / "testdata" / "config"
KEY = "Zm9vYmFyYmF6cXV4"
CONNECTION = f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=send;SharedAccessKey={KEY}"


def parser() -> FlagParser:
    """Return a parser with every setting's flag."""
    made = FlagParser(prog="agent")
    add_flags(made)
    return made


def read(path: str, limit: int) -> bytes:
    """Paths that look the same on every machine, so that the text of an error doesn't depend on it."""
    return read_capped(str(DATA / path), limit)


def reader_of(content: bytes) -> ReadFile:
    """A reader that returns this content for every path."""

    def read_content(path: str, limit: int) -> bytes:
        del path
        if len(content) > limit:
            raise TooLarge(limit)
        return content

    return read_content


def loaded(*flags: str, environ: Mapping[str, str] | None = None, toml: str | None = None) -> Settings:
    """Return settings from flags, variables, and the text of a file named `settings.toml`."""
    if toml is None:
        return load(parser().parse_args(flags), environ or {}, read)
    arguments = parser().parse_args(["--config.file=settings.toml", *flags])
    return load(arguments, environ or {}, reader_of(toml.encode()))


def errors(*flags: str, environ: Mapping[str, str] | None = None, toml: str | None = None) -> tuple[str, ...]:
    """Return the messages with which a load fails."""
    with pytest.raises(ConfigError) as caught:
        loaded(*flags, environ=environ, toml=toml)
    return caught.value.errors


def refused(*flags: str) -> str:
    """Return the output for a rejected command line, which ends with exit code 2."""
    out = io.StringIO()
    with redirect_stderr(out), pytest.raises(SystemExit) as caught:
        parser().parse_args(flags)
    assert caught.value.code == 2
    return out.getvalue()


def to_toml(settings: Settings) -> str:
    """Return the settings as a TOML file, with secrets as a placeholder."""
    blocks = []
    for section in SECTIONS:
        values = getattr(settings, section)
        lines = [f"{key} = {setting.kind.show(getattr(values, key))}" for key, setting in settings_of(section).items()]
        if section == "approval":
            lines.append("rules = [" + "".join(f"\n  {_inline(rule_table(rule))}," for rule in values.rules) + "]")
        blocks.append("\n".join((f"[{section}]", *lines)))
    return "\n\n".join(blocks) + "\n"


def _inline(table: Mapping[str, Any]) -> str:
    """Return a table of JSON values as TOML, on one line."""
    return "{ " + ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items()) + " }"
