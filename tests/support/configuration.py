"""What the tests of the settings share: a parser, a settings file by text, and the errors of a load."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from exporter.config.load import ConfigError, load
from exporter.config.schema import Settings
from exporter.config.sources import FlagParser, add_flags, read_capped

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


def loaded(*flags: str, environ: Mapping[str, str] | None = None, toml: str | None = None) -> Settings:
    """Settings from flags, variables and the text of a file named `settings.toml`."""
    if toml is None:
        return load(parser().parse_args(flags), environ or {}, read)
    arguments = parser().parse_args(["--config.file=settings.toml", *flags])
    return load(arguments, environ or {}, lambda _, limit: (toml or "").encode()[: limit + 1])


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
