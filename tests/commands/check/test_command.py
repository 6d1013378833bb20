"""`check`: the summary of valid settings, all errors at once, and no secret in any line."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.commands.check.command import add_arguments, check
from exporter.commands.check.files import is_installed, missing_packages
from exporter.commands.check.report import ProbeEnvironment
from exporter.config.command_line import FlagParser
from exporter.config.load import ConfigError, load
from exporter.config.schema import catalogue
from tests.support.certificates import self_signed, write
from tests.support.configuration import CONNECTION, KEY
from tests.support.lines import rejoined
from tests.support.systems import DRIVE

TOKEN = "s3cr3t-bearer-token"
READY = f"{DRIVE}/run/ready/{{event_id}}"
HASH = "$2b$04$abcdefghijklmnopqrstuuTQ0Zz0c8ZqXh4bqkKf1iJ1oYv1G6T2e"


def arguments(*flags: str) -> argparse.Namespace:
    parser = FlagParser(prog="agent")
    add_arguments(parser)
    return parser.parse_args(flags)


def checked(capsys: pytest.CaptureFixture[str], *flags: str, **environ: str) -> str:
    """Return what a check without errors prints."""
    assert check(arguments(*flags), ProbeEnvironment(environ)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return rejoined(out)


def refused(*flags: str, **environ: str) -> str:
    """Return the errors of a check, one on each line."""
    with pytest.raises(ConfigError) as caught:
        check(arguments(*flags), ProbeEnvironment(environ))
    return "\n".join(caught.value.errors)


def a_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of a self-signed certificate and its key."""
    return write(folder, name, *self_signed(name))


@pytest.fixture
def public() -> Iterator[Path]:
    """Create a directory that every user of the machine can search, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="check-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_summary_of_defaults_describes_the_agents_actions(capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys)
    lines = out.splitlines()
    assert lines[0] == "configuration is valid"
    for words in (
        "http://169.254.169.254, api-version 2020-07-01, polled every 1s",
        "dry-run: records what it would approve, and sends nothing",
        "leader: only the first VM in Resources approves",
        "user-initiated: event_type Reboot, Redeploy; event_source User",
        "short-freeze: event_type Freeze; min_duration 0; max_duration 8",
        f"{load(arguments(), {}).outbox.path}, at most 100 MiB",
        "/-/gate returns 503 from 2m before Reboot, Redeploy, Preempt or Terminate until the event has ended",
        "0.0.0.0:10169, without TLS, open to every client",
    ):
        assert any(line.endswith(words) for line in lines), words
    assert "warning" not in out


def test_summary_shows_when_the_gate_closes(capsys: pytest.CaptureFixture[str]) -> None:
    """Without an event type the gate never closes."""
    one = checked(capsys, "--gate.event-types=Reboot", "--gate.lead=5m")
    assert "  gate          /-/gate returns 503 from 5m before Reboot until the event has ended\n" in one
    assert "  gate          /-/gate always returns 200: no event type closes it\n" in checked(
        capsys, "--gate.event-types="
    )


def test_summary_shows_every_setting_with_an_effect(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(
        f"""
[source]
vm_name = "web_3"
[approval]
mode = "enforce"
takeover_after = "10s"
hold_file = "{DRIVE}/run/hold"
rules = [
  {{ name = "a", event_type = ["Freeze"], min_duration = 1, settle = "30s", require_file = "{READY}" }},
  {{ name = "b", event_type = ["Freeze"], max_duration = 9, when_quiet = true }},
  {{ name = "c", event_type = ["Reboot"], between = "22:00-05:00", days = ["Sun", "Sat"], timezone = "Europe/Berlin" }},
  {{ name = "d", event_type = ["Reboot"], max_resources = 2, days = ["Fri"] }},
  {{ name = "single", event_type = ["Reboot"], max_resources = 1 }},
  {{ name = "e", event_type = ["Reboot"], between = "09:00-17:30", days = ["Mon", "Tue", "Wed"] }},
  {{ name = "f", event_type = ["Reboot"], between = "00:00-24:00" }},
]
[event_hubs]
connection_string = "{CONNECTION};EntityPath=hub"
transport = "websocket"
custom_endpoint = "sb://10.0.0.9"
[otlp]
endpoint = "http://user:{TOKEN}@collector:4318/path-with-{TOKEN}"
headers = {{ authorization = "Bearer {TOKEN}" }}
[records]
scope = "all"
[event_files]
path = "{DRIVE}/run/events"
[recording]
path = "{DRIVE}/var/log/recording"
"""
    )
    config.chmod(0o600)
    out = checked(capsys, f"--config.file={config}", "--web.listen-address=:8080")
    for words in (
        str(config),
        "web_3\n",
        "enforce: APPROVES events that match the rules below",
        "; for source User also the next VM, after each 10s",
        f"a: event_type Freeze; min_duration 1; settle 30s; require_file {READY}\n",
        "b: event_type Freeze; max_duration 9; when_quiet True\n",
        "single: event_type Reboot; max_resources 1\n",
        "c: event_type Reboot; between 22:00-05:00; days Sat, Sun; timezone Europe/Berlin\n",
        "d: event_type Reboot; max_resources 2; between 00:00-24:00; days Fri; timezone UTC\n",
        "e: event_type Reboot; between 09:00-17:30; days Mon, Tue, Wed; timezone UTC\n",
        "f: event_type Reboot; between 00:00-24:00; days Mon, Tue, Wed, Thu, Fri, Sat, Sun; timezone UTC\n",
        f"{DRIVE}/run/hold: holds every event unless the file is known to be absent",
        "hub at contoso.servicebus.windows.net through sb://10.0.0.9 by websocket, with a connection string",
        "http://collector:4318, within 2 s",
        "all events, also of other VMs",
        f"one file for each event of this VM, in {DRIVE}/run/events",
        f"{DRIVE}/var/log/recording, 3 files of 10 MiB",
    ):
        assert words in out, words
    assert "warning: " in out  # the password in the address
    assert TOKEN not in out
    assert KEY not in out


def test_all_errors_of_settings_and_files_are_reported_at_once(tmp_path: Path) -> None:
    """One list with keys: a wrong value, a broken web-config file, missing certificates, a directory as outbox."""
    web = tmp_path / "web.yml"
    web.write_text("tls_server_config:\n  cert_file: none.pem\n  keyfile: x\nbasic_auth_users:\n  bob: plain-text\n")
    config = tmp_path / "agent.toml"
    config.write_text(
        f"""
[source]
poll_interval = "9h"
[otlp]
endpoint = "http://127.0.0.1:4318"
certificate = '{tmp_path / "missing.pem"}'
[outbox]
path = '{tmp_path}'
[web]
config_file = '{web}'
"""
    )
    refusal = refused(f"--config.file={config}")
    for words in (
        f"{config}: [source] poll_interval: expected a duration",
        f"{config}: [otlp] certificate: {tmp_path / 'missing.pem'}: cannot be read: No such file or directory",
        f"{config}: [outbox] path: expected the path of a file, found the directory {tmp_path}",
        f"{web}: tls_server_config.keyfile: unknown key",
        f"{web}: basic_auth_users: entry 1: expected a bcrypt hash",
    ):
        assert words in refusal, words
    assert "plain-text" not in refusal


def test_unusable_certificates_are_errors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A key of another certificate, and files without a certificate, are reported before the first record."""
    ours, theirs = a_pair(tmp_path, "ours"), a_pair(tmp_path, "theirs")
    text_file = tmp_path / "text.pem"
    text_file.write_text("no certificate")
    on = "--otlp.endpoint=https://collector:4318"
    checked(capsys, on, f"--otlp.client-certificate={ours[0]}", f"--otlp.client-key={ours[1]}")
    mixed = refused(on, f"--otlp.client-certificate={ours[0]}", f"--otlp.client-key={theirs[1]}")
    assert f"--otlp.client-certificate: {ours[0]}: does not match the key in {theirs[1]}" in mixed
    alone = refused(on, f"--otlp.client-certificate={ours[0]}")
    assert "or set otlp.client_key" in alone
    assert f"--otlp.certificate: {text_file}: expected CA certificates" in refused(
        on, f"--otlp.certificate={text_file}"
    )
    checked(capsys, f"--otlp.certificate={text_file}")  # not used, so not read
    refusal = refused(on, OTEL_EXPORTER_OTLP_CERTIFICATE="/missing.pem")
    assert refusal.startswith("OTEL_EXPORTER_OTLP_CERTIFICATE: /missing.pem: cannot be read")


@pytest.mark.parametrize(("encoding", "found"), [("utf-16", "UTF-16"), ("utf-8-sig", "a byte order mark")])
def test_certificate_that_openssl_ignores_is_an_error(tmp_path: Path, encoding: str, found: str) -> None:
    """OpenSSL reads PEM as ASCII: in PowerShell's default encodings it misses the first certificate, or all."""
    good = a_pair(tmp_path, "good")
    saved = tuple(path.with_suffix(f".{encoding}") for path in good)
    for path, copy in zip(good, saved, strict=True):
        copy.write_text(path.read_text(encoding="ascii"), encoding=encoding)
    expected = f"expected ASCII, found {found}; in PowerShell save it with `Set-Content -Encoding Ascii`"
    on = "--otlp.endpoint=https://collector:4318"
    assert refused(on, f"--otlp.certificate={saved[0]}") == f"--otlp.certificate: {saved[0]}: {expected}"
    pair = refused(on, f"--otlp.client-certificate={good[0]}", f"--otlp.client-key={saved[1]}")
    assert pair == f"--otlp.client-key: {saved[1]}: {expected}"
    hub = refused(
        f"--event-hubs.certificate={saved[0]}",
        SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING=CONNECTION,
        SCHEDULED_EVENTS_EVENT_HUBS_EVENT_HUB="hub",
    )
    assert hub == f"--event-hubs.certificate: {saved[0]}: {expected}"


@pytest.mark.linux("checks file modes")
def test_world_readable_secrets_are_warned_about(capsys: pytest.CaptureFixture[str], public: Path) -> None:
    """No warning if the file or a parent directory is private, nor in Kubernetes."""
    certificate, key = a_pair(public, "web")
    web = public / "web.yml"
    web.write_text(
        f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\nbasic_auth_users:\n  bob: {HASH}\n"
    )
    secret = public / "connection"
    secret.write_text(f"{CONNECTION};EntityPath=hub")
    config = public / "agent.toml"
    config.write_text(f'[otlp]\nendpoint = "https://c:4318"\nheaders = {{ authorization = "Bearer {TOKEN}" }}\n')
    for path in (key, web, secret, config):
        path.chmod(0o644)
    flags = (
        f"--config.file={config}",
        f"--web.config.file={web}",
        f"--event-hubs.connection-string-file={secret}",
    )
    out = checked(capsys, *flags)
    for path, what in (
        (config, "a secret"),
        (secret, "the connection string"),
        (web, "password hashes"),
        (key, "a private key"),
    ):
        assert any(line.startswith(f"warning: {path}: contains {what}") for line in out.splitlines()), path
    assert f"warning: {certificate}" not in out
    assert "TLS, requires a password (1 user)\n" in out
    for word in (TOKEN, KEY, HASH):
        assert word not in out
    assert "warning" not in checked(capsys, *flags, KUBERNETES_SERVICE_HOST="10.0.0.1")
    public.chmod(0o700)
    assert "warning" not in checked(capsys, *flags)
    public.chmod(0o755)
    for path in (key, web, secret, config):
        path.chmod(stat.S_IRUSR)
    assert "warning" not in checked(capsys, *flags)


def test_summary_shows_the_protection_of_the_endpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An optional client certificate leaves the endpoint open."""
    certificate, key = a_pair(tmp_path, "web")
    web = tmp_path / "web.yml"

    def web_line(client_auth_type: str) -> str:
        pair = f"cert_file: {certificate}, key_file: {key}, client_ca_file: {certificate}"
        web.write_text(f"tls_server_config: {{{pair}, client_auth_type: {client_auth_type}}}\n")
        lines = checked(capsys, f"--web.config.file={web}").splitlines()
        return next(line for line in lines if line.split()[:1] == ["web"])

    assert web_line("RequireAndVerifyClientCert").endswith("TLS, requires a client certificate")
    assert web_line("VerifyClientCertIfGiven").endswith("TLS, open to every client")


def test_missing_extra_is_a_warning() -> None:
    """The warning for an identity without its package contains the command; nothing else needs an extra."""
    by_identity = load(arguments("--event-hubs.fully-qualified-namespace=a.example", "--event-hubs.event-hub=h"), {})
    (sentence,) = missing_packages(by_identity, lambda package: package != "azure.identity")
    assert "pip install 'azure-scheduled-events-exporter[identity]'" in sentence
    assert missing_packages(by_identity, lambda _: True) == []
    assert missing_packages(load(arguments(), {}), lambda _: False) == []
    assert (is_installed("exporter"), is_installed("exporter.nothing"), is_installed("nothing.at.all")) == (
        True,
        False,
        False,
    )


def test_exit_code_is_0_for_valid_settings_and_2_for_others(tmp_path: Path) -> None:
    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "SCHEDULED"))}
        command = [sys.executable, "-m", "exporter", "check", *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=environ)

    good = run(f"--outbox.path={tmp_path}/outbox.db")
    assert (good.returncode, good.stderr) == (0, "")
    bad = run("--approval.mode=maybe", f"--web.config.file={tmp_path / 'none.yml'}")
    assert bad.returncode == 2
    assert bad.stdout == ""
    assert "--approval.mode: expected one of" in bad.stderr
    assert str(tmp_path / "none.yml") in bad.stderr


# -- as JSON


def as_json(capsys: pytest.CaptureFixture[str], *flags: str, code: int = 0, **environ: str) -> dict[str, Any]:
    """Return the object that `--format json` prints."""
    assert check(arguments("--format", "json", *flags), ProbeEnvironment(environ)) == code
    out, err = capsys.readouterr()
    assert err == ""
    (line,) = out.splitlines()
    recorded: dict[str, Any] = json.loads(line)
    assert list(recorded) == ["valid", "errors", "warnings", "settings", "summary", "findings"]
    return recorded


def test_json_contains_settings_summary_and_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    """Settings are listed by section and key as in the file; without a probe there are no findings."""
    recorded = as_json(
        capsys, "--outbox.max-bytes=64MiB", "--gate.event-types=Rebooot", "--approval.takeover-after=90s"
    )
    assert (recorded["valid"], recorded["errors"], recorded["findings"]) == (True, [], None)
    names = {f"{section}.{key}" for section, keys in recorded["settings"].items() for key in keys}
    assert names == {setting.name for setting in catalogue()} | {"approval.rules"}
    assert recorded["settings"]["outbox"]["max_bytes"] == 64 << 20
    assert recorded["settings"]["approval"]["takeover_after"] == "1m30s"
    assert recorded["settings"]["gate"]["event_types"] == ["Rebooot"]
    assert [rule["name"] for rule in recorded["settings"]["approval"]["rules"]] == ["user-initiated", "short-freeze"]
    assert 'did you mean "Reboot"?' in recorded["warnings"][0]
    assert recorded["summary"]["approval"] == "dry-run: records what it would approve, and sends nothing"


def test_json_of_invalid_settings_contains_every_error_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """The same sentences as on standard error in the text format."""
    flags = ("--outbox.max-bytes=1", "--approval.mode=yes")
    recorded = as_json(capsys, *flags, code=2)
    assert recorded["errors"] == refused(*flags).split("\n")
    assert (recorded["valid"], recorded["settings"], recorded["findings"]) == (False, None, None)


def test_json_of_a_failed_probe_contains_findings_and_exits_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A finding has the verdict, topic, and sentence of its line."""
    flags = (f"--outbox.path={tmp_path / 'outbox.db'}", "--web.listen-address=127.0.0.1:0")
    recorded = as_json(capsys, "--probe", "--source.url=http://127.0.0.1:1", *flags, code=1)
    assert {each["topic"]: each["verdict"] for each in recorded["findings"]}["metadata"] == "fail"
    assert all(each.keys() == {"verdict", "topic", "sentence"} for each in recorded["findings"])


def test_json_contains_no_secret(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A connection string and headers are shown as booleans, a collector without user and path."""
    recorded = as_json(
        capsys,
        f"--otlp.endpoint=http://user:{TOKEN}@127.0.0.1:4318/path-with-{TOKEN}",
        f"--outbox.path={tmp_path / 'outbox.db'}",
        SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING=f"{CONNECTION};EntityPath=hub",
        SCHEDULED_EVENTS_OTLP_HEADERS=f"authorization=Bearer%20{TOKEN}",
    )
    assert recorded["settings"]["event_hubs"]["connection_string"] is True
    assert recorded["settings"]["otlp"]["headers"] is True
    assert recorded["settings"]["otlp"]["endpoint"] == "http://127.0.0.1:4318"
    assert TOKEN not in json.dumps(recorded)
    assert KEY not in json.dumps(recorded)
