"""The operator's side: any text as the settings file or the web-config file, and any values in the environment."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from exporter.config.command_line import FlagParser
from exporter.config.load import ConfigError, load
from exporter.config.schema import Settings, catalogue
from exporter.config.sources import add_flags
from exporter.web.config_file import read_web_file
from tests.support.configuration import reader_of, to_toml

NAMES: Final = (
    *sorted(setting.env for setting in catalogue()),
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SERVICE_NAME",
    "OTEL_LOGS_EXPORTER",
    "OTEL_SDK_DISABLED",
)
PARSER: Final = FlagParser(prog="agent")
add_flags(PARSER)
WITH_FILE: Final = PARSER.parse_args(["--config.file=settings.toml"])
NOTHING: Final = PARSER.parse_args([])
FOLDER: Final = tempfile.TemporaryDirectory(prefix="azse-fuzz-")


def _nothing_there(path: str, _limit: int) -> bytes:
    raise FileNotFoundError(2, "No such file or directory", path)


def _judge(error: ConfigError) -> None:
    assert error.errors
    assert all(sentence.isprintable() and len(sentence) < 2_000 for sentence in error.errors), error.errors


def configuration(data: bytes) -> None:
    """Load a settings file: accepted completely or rejected with messages; accepted settings can be written and read
    again."""

    def read(path: str, limit: int) -> bytes:
        return reader_of(data)(path, limit) if path == "settings.toml" else _nothing_there(path, limit)

    try:
        settings = load(WITH_FILE, {}, read)
    except ConfigError as error:
        _judge(error)
        return
    if not settings.secrets and not settings.otlp.headers:
        _same_again(settings)


def _same_again(settings: Settings) -> None:
    text = to_toml(settings).encode()
    again = load(WITH_FILE, {}, reader_of(text))
    assert to_toml(again).encode() == text


def environment(data: bytes) -> None:
    """Load lines of `NUMBER=VALUE`, with the number as the index of the variable."""
    environ: dict[str, str] = {}
    for line in data.split(b"\n")[:8]:
        if line:
            environ[NAMES[line[0] % len(NAMES)]] = line[1:].replace(b"\0", b"").decode("utf-8", "surrogateescape")
    try:
        load(NOTHING, environ, _nothing_there)
    except ConfigError as error:
        _judge(error)


def webconfig(data: bytes) -> None:
    """Load a web-config file: settings or messages, never neither."""
    path = Path(FOLDER.name) / "web.yml"
    path.parent.mkdir(exist_ok=True)  # a process forked from this one may have removed it at its end
    path.write_bytes(data)
    settings, errors, _ = read_web_file(path)
    assert (settings is None) == bool(errors), (settings, errors)
    assert all(len(error) < 5_000 for error in errors)
