"""Secrets given in the wrong place are rejected or redacted, and never repeated."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from exporter.config.schema import catalogue
from exporter.secrets import redact
from exporter.text.values import describe
from tests.commands.test_cli_secrets import PATHS, TEXT, is_silent_of_the_key, run
from tests.support.configuration import errors

BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDKxABCDEFGHIJK"
PEM = f"-----BEGIN PRIVATE KEY-----\n{BODY}\nQRSTUVWX\n-----END PRIVATE KEY-----\n"
WORD = "kJ8sQp3vTz7LmN2xWc5RbY9dF"
PEMS = {
    "lines": PEM,
    "escaped": PEM.replace("\n", "\\n"),
    "spaces": PEM.replace("\n", " "),
    "rsa": PEM.replace("PRIVATE", "RSA PRIVATE"),
    "no end": PEM.partition("-----END")[0],
    "body alone": BODY + "x" * 40,
}


def silent(output: str) -> bool:
    """Return whether the text contains no part of the key or of the test password."""
    return not any(part in output for part in (BODY[:12], BODY[-12:], "QRSTUVWX", WORD[:10], WORD[-10:]))


@pytest.mark.parametrize("form", PEMS)
@pytest.mark.parametrize("name", [*[s.name for s in catalogue() if not s.secret], "config.file"])
def test_key_in_place_of_a_value_is_rejected_and_not_repeated(name: str, form: str) -> None:
    """Every setting, from flag and environment: exit code 2, and no line of the key."""
    flag = next((s.flag for s in catalogue() if s.name == name), "--config.file")
    variable = f"SCHEDULED_EVENTS_{name.replace('.', '_').upper()}"
    for code, output in (run("check", f"{flag}={PEMS[form]}"), run("check", environ={variable: PEMS[form]})):
        assert code == 2, output
        assert silent(output), output
        assert "this is a key or a certificate" in output or name not in PATHS, output


@pytest.mark.parametrize("form", PEMS)
@pytest.mark.parametrize("kind", ["CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"])
def test_key_in_a_variable_of_opentelemetry_is_rejected(kind: str, form: str) -> None:
    """As for the agent's variables, for all signals and for logs only."""
    for variable in (f"OTEL_EXPORTER_OTLP_{kind}", f"OTEL_EXPORTER_OTLP_LOGS_{kind}"):
        environ = {"SCHEDULED_EVENTS_OTLP_ENDPOINT": "http://127.0.0.1:9", variable: PEMS[form]}
        code, output = run("check", environ=environ)
        assert (code, silent(output)) == (2, True), output


COMMANDS = [
    ("replay", "demo", "--vm"),
    ("replay", "demo", "--format", "json", "--vm"),
    ("replay", "demo", "--start"),
    ("replay", "demo", "--assume-files"),
    ("replay", "demo", "--source.vm-name"),
    ("replay",),
    ("tail", "--outbox", "none.db", "--vm"),
    ("tail", "--outbox", "none.db", "--event-id"),
    ("tail", "--outbox", "none.db", "--event-hubs.consumer-group"),
    ("tail", "--outbox", "none.db", "--max"),
    ("tail", "--outbox", "none.db", "--until-idle"),
    ("tail", "--outbox", "none.db", "--from"),
    ("tail", "--outbox", "none.db", "--kind"),
    ("tail", "--outbox"),
    ("simulate", "--vm"),
    ("simulate", "--fault"),
    ("simulate", "--listen"),
    ("simulate", "--speed"),
    ("simulate", "--scenario"),
    ("demo", "--scenario"),
    ("demo", "--speed"),
    ("demo", "--listen"),
    ("run",),
]


@pytest.mark.parametrize("form", [TEXT, *PEMS.values()])
@pytest.mark.parametrize("words", COMMANDS)
def test_no_argument_accepts_a_secret(words: tuple[str, ...], form: str) -> None:
    """A connection string or a key as any argument of any command: exit code 2, and neither stream contains it."""
    given = (*words[:-1], f"{words[-1]}={form}") if words[-1].startswith("--") else (*words, "--", form)
    code, output = run(*given)
    assert (code, silent(output), is_silent_of_the_key(output)) == (2, True, True), output


@pytest.mark.parametrize("words", COMMANDS)
def test_arguments_are_redacted_before_they_are_cut(words: tuple[str, ...]) -> None:
    """The password is so long that the cut would remove the `@` after it."""
    lengths = (4, 9) if words == ("replay",) else (4, 9, 400)  # no file system takes the longest as a name
    given = [f"{scheme}user:{WORD * length}@h/?token={WORD}" for scheme in ("http://", "") for length in lengths]
    for text in given:
        whole = (*words[:-1], f"{words[-1]}={text}") if words[-1].startswith("--") else (*words, text)
        if not whole[-1].startswith(("--vm", "--source.vm", "--event-id", "--consumer")):
            assert silent(run(*whole)[1]), whole


URLS = [
    *(
        f"http://127.0.0.1:9/?{name}={WORD}"
        for name in ("token", "code", "key", "auth", "sv=1&se", "x-honeycomb-team", "subscription-key", "jwt")
    ),
    f"http://127.0.0.1:9/#{WORD}",
    f"nohost:9/%3Ftoken%3D{WORD}",
    f"user:{WORD}@h:4318",
    f"//user:{WORD}@h:4318",
    f"http:/user:{WORD}@h:4318",
    f"http//user:{WORD}@h:4318",
    f"http:\\\\user:{WORD}@h",
    f"http://user:{WORD[:12]} {WORD[12:]}@h",
    f"http://user:{WORD[:12]}/{WORD[12:]}@h?x",
    f"http://user:{WORD[:12]}#{WORD[12:]}@h",
    f"http://user:{WORD[:12]}@{WORD[12:]}@h?x",
    f"http://us er:{WORD}@h",
    f"http://user%3A{WORD}%40h/?x",
    f"'http://user:{WORD}@h'",
    f"http://{WORD}:@h?x",
    f"bearer:{WORD}",
    f"PrimaryKey={WORD}",
    f"Shared%41ccessKey={WORD}",
    f"SharedAccessKey%253D{WORD}",
    f"SharedAccess Key={WORD}",
    f"SharedAccessKey\u200b={WORD}",
    f"\uff33haredAccessKey={WORD}",
    f"SharedAccessKeyName=R;SharedAccessKey={WORD[:12]};{WORD[12:]}",
]


@pytest.mark.parametrize("text", URLS)
@pytest.mark.parametrize("name", ["otlp.endpoint", "source.url", "event_hubs.custom_endpoint", "web.listen_address"])
def test_errors_about_an_address_repeat_no_credential(name: str, text: str) -> None:
    """Neither the text before an `@` nor the text after `?` or `#`, whatever its name."""
    setting = next(s for s in catalogue() if s.name == name)
    section, _, key = name.partition(".")
    output = " ".join(errors(f"{setting.flag}={text}") + errors(environ={setting.env: text}))
    output += " ".join(errors(toml=f"[{section}]\n{key} = {json.dumps(text)}\n"))
    assert silent(output), output


PASSWORDS = [
    f"{WORD[:10]}{middle}{WORD[-10:]}" for middle in ("x", "@", "/", "?", "#", " ", ":", "@/", "/@", "\\", "%40")
]
JWT = f"eyJhbGciOiJIUzI1NiJ9.{WORD}.{WORD}"


@pytest.mark.parametrize("name", [*PATHS, "config.file"])
@pytest.mark.parametrize(
    "text",
    [
        *(f"http://user:{password}@h/x" for password in PASSWORDS),
        f"http://{WORD}@h/x",
        f"https://h/x?token={WORD}",
        f"http:\\\\user:{WORD}@h\\x",
        f"http%3A%2F%2Fuser%3A{WORD}%40h",
        f"https://h/{WORD}",
        JWT,
        f"/run/{JWT}",
    ],
)
def test_url_or_token_as_a_path_is_rejected_and_not_repeated(name: str, text: str) -> None:
    """Whatever the password contains: exit code 2, and the type of the secret."""
    flag = next((s.flag for s in catalogue() if s.name == name), "--config.file")
    code, output = run("check", f"{flag}={text}")
    assert (code, silent(output)) == (2, True), output
    assert ("this is a token, not a path" if "eyJ" in text else "this is a URL, not a path") in output


@pytest.mark.parametrize(
    "words", [("replay",), ("tail", "--outbox"), ("simulate", "--scenario"), ("demo", "--scenario")]
)
@pytest.mark.parametrize("text", [*(f"http://user:{password}@h/x" for password in PASSWORDS), JWT])
def test_url_or_token_as_a_path_of_a_command_is_not_repeated(words: tuple[str, ...], text: str) -> None:
    code, output = run(*words, text)
    assert (code, silent(output)) == (2, True), output


@pytest.mark.parametrize("name", PATHS)
def test_user_and_password_without_a_scheme_are_not_shown(tmp_path: Path, name: str) -> None:
    """Such a text can be a path: it's accepted, and the part that looks like a password is redacted."""
    setting = next(s for s in catalogue() if s.name == name)
    outbox = f"--outbox.path={tmp_path}/o.db" if name != "outbox.path" else "--"
    for password in (WORD, f"{WORD[:10]}@{WORD[-10:]}", f"{WORD[:10]}/{WORD[-10:]}"):
        assert silent(output := run("check", f"{setting.flag}=user:{password}@h:4318", outbox)[1]), output


def test_errors_show_values_that_are_not_credentials() -> None:
    """Scheme and host of a URL, and plain values, are shown unchanged."""
    assert describe("http://127.0.0.1:9/v1/x") == '"http://127.0.0.1:9/v1/x"'
    assert describe(f"http://u:{WORD}@collector:4318/?a={WORD}").endswith('collector:4318/?<secret>"')
    assert describe("2 minutes") == '"2 minutes"'


@pytest.mark.parametrize(
    "text",
    [
        *(f"{begin} {PEM} {end}" for begin in ("", "key:") for end in ("", PEM)),
        json.dumps({"key": PEM}),
        f"PrimaryKey={WORD}",
        f"secondary_key: {WORD}",
        f"bearer:{WORD}",
        f"Shared%41ccessKey={WORD}",
        f"/srv/http:/{WORD}@host/x",
        f"/srv/user:{WORD}@host:4318",
        f"https://h/x?token={WORD}",
    ],
)
def test_keys_in_foreign_text_are_redacted(text: str) -> None:
    """PEM blocks to their end, and names of keys in other spellings."""
    assert silent(redact(text)), redact(text)


def test_redaction_time_of_keys_is_linear() -> None:
    """Text with many starts of keys, users, or queries is searched in linear time."""
    began = time.process_time()
    for seed in ("-----BEGIN", "MII", "a:", "a:b@", ":/a?", "?token", "%41", "&key", "-----BEGIN X-----END"):
        assert len(redact(seed * 30_000)) > 0
    assert time.process_time() - began < 60


WEB = {
    "alias": f"basic_auth_users:\n  prom: *{WORD}\n",
    "tag": f"basic_auth_users:\n  prom: !{WORD} x\n",
    "tag handle": f"basic_auth_users:\n  prom: !{WORD}!{WORD} x\n",
    "anchor": f"basic_auth_users:\n  a: &{WORD} x\n  b: &{WORD} y\n",
    "user": f"basic_auth_users:\n  {WORD}: x\n",
    "user with colon": f"basic_auth_users:\n  'a:{WORD}': x\n",
    "key": f"{WORD}: 1\n",
    "inner key": f"tls_server_config:\n  {WORD}: 1\n",
    "header": f"http_server_config:\n  headers:\n    {WORD}: x\n",
    "version": f"tls_server_config:\n  cert_file: c\n  key_file: k\n  min_version: {WORD}\n",
    "cipher": f"tls_server_config:\n  cert_file: c\n  key_file: k\n  cipher_suites: [{WORD}]\n",
    "key file": "tls_server_config:\n  cert_file: c\n  key_file: |\n    " + PEM.replace("\n", "\n    ") + "\n",
    "key file, one line": f"tls_server_config:\n  cert_file: c\n  key_file: {json.dumps(PEM)}\n",
    "certificate file": f"tls_server_config:\n  key_file: c\n  cert_file: {json.dumps(PEM.replace(chr(10), ' '))}\n",
    "connection string": f"tls_server_config:\n  key_file: c\n  cert_file: {json.dumps(TEXT)}\n",
    "flow": f"basic_auth_users:\n  prom: @{WORD}\n",
    "open": f'basic_auth_users:\n  prom: "{WORD}\n',
}


@pytest.mark.parametrize("case", WEB)
def test_web_config_errors_repeat_nothing_of_the_file(tmp_path: Path, case: str) -> None:
    """They contain file, line or key, and the expected value; never a misplaced password."""
    path = tmp_path / "web.yml"
    path.write_text(WEB[case])
    code, output = run("check", f"--web.config.file={path}")
    assert (code, silent(output), is_silent_of_the_key(output)) == (2, True, True), output
    assert f"{path}: " in output
    assert "expected" in output or "this is" in output


def test_line_break_in_a_file_name_forges_no_line(tmp_path: Path) -> None:
    """A settings file's name can't forge a line on standard error."""
    for words in (("check", f"--config.file={tmp_path}/a\nforged"), ("run", f"--config.file={tmp_path}/a\x85forged")):
        code, output = run(*words)
        assert code == 2
        assert "forged" not in output
