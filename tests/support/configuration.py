"""What the tests of the settings share: a parser, a settings file by text, and the errors of a load."""

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
    """A parser with every setting's flag."""
    made = FlagParser(prog="agent")
    add_flags(made)
    return made


def read(path: str, limit: int) -> bytes:
    """Files are named as a person would name them, so that the words of an error do not depend on the machine."""
    return read_capped(str(DATA / path), limit)


def reader_of(content: bytes) -> ReadFile:
    """Reads this content, whatever the path."""

    def read_content(path: str, limit: int) -> bytes:
        del path
        if len(content) > limit:
            raise TooLarge(limit)
        return content

    return read_content


def loaded(*flags: str, environ: Mapping[str, str] | None = None, toml: str | None = None) -> Settings:
    """Settings from flags, variables and the text of a file named `settings.toml`."""
    if toml is None:
        return load(parser().parse_args(flags), environ or {}, read)
    arguments = parser().parse_args(["--config.file=settings.toml", *flags])
    return load(arguments, environ or {}, reader_of(toml.encode()))


def errors(*flags: str, environ: Mapping[str, str] | None = None, toml: str | None = None) -> tuple[str, ...]:
    """The sentences with which a load is refused."""
    with pytest.raises(ConfigError) as caught:
        loaded(*flags, environ=environ, toml=toml)
    return caught.value.errors


def refused(*flags: str) -> str:
    """What is printed when the command line is refused, with exit code 2."""
    out = io.StringIO()
    with redirect_stderr(out), pytest.raises(SystemExit) as caught:
        parser().parse_args(flags)
    assert caught.value.code == 2
    return out.getvalue()


def to_toml(settings: Settings) -> str:
    """The settings as a TOML file, secrets as a placeholder."""
    blocks = []
    for section in SECTIONS:
        values = getattr(settings, section)
        lines = [f"{key} = {setting.kind.show(getattr(values, key))}" for key, setting in settings_of(section).items()]
        if section == "approval":
            lines.append("rules = [" + "".join(f"\n  {_inline(rule_table(rule))}," for rule in values.rules) + "]")
        blocks.append("\n".join((f"[{section}]", *lines)))
    return "\n\n".join(blocks) + "\n"


def _inline(table: Mapping[str, Any]) -> str:
    """A table of JSON values as TOML, on one line."""
    return "{ " + ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items()) + " }"
