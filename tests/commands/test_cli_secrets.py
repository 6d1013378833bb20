"""A connection string given as a path is identified as such, and its key is never printed."""

from __future__ import annotations

import contextlib
import io
import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.cli import main
from exporter.commands.check.report import ProbeEnvironment
from exporter.config.schema import EventHubsSettings, Settings, catalogue
from exporter.log.log import Log
from exporter.secrets import Secret, is_connection_string
from tests.support.configuration import errors
from tests.support.log_reading import logged

KEY = "aB3/kq+Zm9vYmFyYmF6cXV4aGlkZGVuIHRva2Vu/9xQ="
TEXT = f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=send;SharedAccessKey={KEY}"
TOKEN = f"SharedAccessSignature sr=contoso.servicebus.windows.net&sig={urllib.parse.quote(KEY, safe='')}&se=1&skn=send"
SENTENCE = "this is a connection string, not a path"
FORMS = {
    "plain": TEXT,
    "lower": TEXT.replace("SharedAccessKey", "sharedaccesskey").replace("Endpoint", "endpoint"),
    "upper": TEXT.replace("SharedAccessKey", "SHAREDACCESSKEY"),
    "encoded": urllib.parse.quote(TEXT, safe=""),
    "signature": f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessSignature={TOKEN}",
    "token": TOKEN,
    "quoted": f'"{TEXT}"',
    "key first": f"SharedAccessKey={KEY};SharedAccessKeyName=send;Endpoint=sb://contoso.servicebus.windows.net/",
}
PATHS = [
    "approval.hold_file",
    "event_hubs.connection_string_file",
    "otlp.certificate",
    "otlp.client_certificate",
    "otlp.client_key",
    "outbox.path",
    "recording.path",
    "web.config_file",
]


def run(*words: str, environ: Mapping[str, str] | None = None) -> tuple[int | str | None, str]:
    """Return the exit code and the output of both streams."""
    said = io.StringIO()
    before = dict(os.environ)
    os.environ.update(environ or {})
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return main(words), said.getvalue()
    except SystemExit as end:
        return end.code, said.getvalue()
    finally:
        os.environ.clear()
        os.environ.update(before)


def is_silent_of_the_key(said: str) -> bool:
    """Return whether the text contains no usable part of the key, in any spelling."""
    plain = urllib.parse.unquote(urllib.parse.unquote(said)).lower()
    return not any(KEY[at : at + 8].lower() in plain for at in range(len(KEY) - 8))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize("name", [*PATHS, "config.file"])
def test_connection_string_as_a_path_is_identified_and_not_printed(command: str, name: str, form: str) -> None:
    """Every path setting rejects it with exit code 2, from flag and environment, without the key."""
    flag = next((s.flag for s in catalogue() if s.name == name), "--config.file")
    code, said = run(command, f"{flag}={FORMS[form]}")
    assert (code, f"{flag}: {SENTENCE}" in said) == (2, True), said
    assert is_silent_of_the_key(said)
    variable = f"SCHEDULED_EVENTS_{name.replace('.', '_').upper()}"
    code, said = run(command, environ={variable: FORMS[form]})
    assert (code, f"{variable}: {SENTENCE}" in said) == (2, True), said
    assert is_silent_of_the_key(said)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "words",
    [
        ("tail", "--outbox"),
        ("tail", "--outbox", "--outbox.path"),
        ("tail", "--config.file"),
        ("tail", "--event-hubs.connection-string-file"),
        ("replay",),
        ("replay", "--config.file"),
        ("simulate", "--scenario"),
        ("demo", "--scenario"),
    ],
)
def test_every_command_rejects_a_connection_string(words: tuple[str, ...], form: str) -> None:
    """Also for a command's own path arguments: exit code 2, the explanation, and no key."""
    inputs = ("live-migration",) if words == ("replay", "--config.file") else ()
    code, said = run(*words, FORMS[form], *inputs)
    assert (code, SENTENCE in said) == (2, True), said
    assert is_silent_of_the_key(said)


def test_file_and_variables_of_opentelemetry_reject_a_connection_string() -> None:
    """In the settings file, in a rule's require_file, and in OTEL_EXPORTER_OTLP_CERTIFICATE."""
    rule = f'[{{ name = "a", event_type = ["Freeze"], require_file = "/{TEXT}" }}]'
    toml = f'[outbox]\npath = "{TEXT}"\n[approval]\nrules = {rule}\n[otlp]\nendpoint = "http://127.0.0.1:4318"\n'
    sentences = errors(toml=toml, environ={"OTEL_EXPORTER_OTLP_CERTIFICATE": TEXT})
    assert [SENTENCE in error for error in sentences] == [True] * 3, sentences
    assert is_silent_of_the_key(" ".join(sentences))


@pytest.mark.parametrize("name", [s.name for s in catalogue() if not s.secret and s.name not in PATHS])
def test_other_settings_reject_a_connection_string(name: str) -> None:
    """As a name or an address it would be published: it's rejected, and not printed."""
    setting = next(s for s in catalogue() if s.name == name)
    sentences = errors(f"{setting.flag}={TEXT}")
    assert sentences
    assert is_silent_of_the_key(" ".join(sentences))


@pytest.mark.parametrize("path", ["/run/credentials/azse/event-hubs", "shared-access-key.txt", "C:\\keys\\endpoint=1"])
def test_path_named_after_a_key_is_accepted(path: str) -> None:
    """Only the file's name resembles a secret."""
    assert not is_connection_string(path)


def test_usage_errors_and_unreadable_files_do_not_print_secrets(tmp_path: Path) -> None:
    """An unknown flag or command, a password in an address, and a key in a file of another format."""
    holder = tmp_path / "connection"
    holder.write_text(TEXT)
    for words in (
        ("run", TEXT),
        (TEXT,),
        ("run", f"--wrong={TEXT}"),
        ("tail", "--from", TEXT),
        ("replay", f"https://user:{KEY}@example.com/recording.jsonl"),
        ("tail", "--outbox", f"https://user:{KEY}@example.com/outbox.db"),
        ("tail", "--outbox", str(holder)),
        ("check", f"--config.file={holder}"),
        ("check", f"--web.config.file={holder}"),
        ("replay", str(holder)),
        ("simulate", "--scenario", str(holder)),
        ("check", "--config.file", f"{tmp_path}/https:/user:{KEY}@host/settings.toml"),
    ):
        code, said = run(*words)
        assert code in (0, 1, 2)
        assert is_silent_of_the_key(said), (words, said)


def test_repr_log_and_summary_contain_no_key() -> None:
    """Objects with settings print without the secret, and the log hides it percent-encoded too."""
    from exporter.sinks.event_hubs.address import Address  # azure's SDK is loaded for this test alone

    secret = Secret(TEXT + ";EntityPath=hub")
    settings = replace(Settings(), event_hubs=EventHubsSettings(connection_string=secret))
    address = Address(settings.event_hubs)
    said = io.StringIO()
    log = Log(said, hide=(Secret(KEY),))
    encoded = urllib.parse.quote(KEY, safe="")
    log.warn(
        "odd", whole=TEXT, part=f"the key {KEY}", encoded=f"the key {encoded}", lower=encoded.replace("%2F", "%2f")
    )
    held = ProbeEnvironment(environ={"SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": TEXT})
    assert is_silent_of_the_key(f"{settings!r} {address!r} {held!r}")
    assert is_silent_of_the_key(logged(log, said))
