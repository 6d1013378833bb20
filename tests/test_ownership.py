"""Files of another user: rejected if they control the agent, contain a secret, or are written to."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from exporter.config.load import ConfigError, load, load_policy
from exporter.files import (
    RotatingFile,
    fault_of,
    make_private,
    narrow,
    open_folder,
    read_capped,
    read_trusted,
    refuse_foreign,
)
from exporter.log.log import Log
from exporter.outbox.errors import OutboxUnwritable
from exporter.outbox.store import Outbox
from exporter.recorder.recorder import RecordingFiles
from exporter.web.config import WebConfig, WebConfigError
from tests.commands.test_cli_secrets import run
from tests.support.certificates import Authority, write
from tests.support.log_reading import logged

pytestmark = pytest.mark.linux("is about owners by number")

STRANGER = 23456
HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
SENTENCE = f"it belongs to user {STRANGER}, who can change it at any time; change its owner to root or to user 0"

if sys.platform != "win32":

    @pytest.fixture(autouse=True)
    def as_root() -> None:
        if os.geteuid() != 0:
            pytest.skip("gives files to another user, which takes root")


def given(path: Path, owner: int = STRANGER) -> Path:
    """Return the path, after making this user its owner."""
    os.chown(path, owner, owner)
    return path


def settings_errors(*words: str) -> str:
    parser_values = dict(word.split("=", 1) for word in words)
    try:
        load(argparse.Namespace(**parser_values), {})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("owner", "user", "refused"),
    [(0, 0, False), (0, 1000, False), (1000, 1000, False), (1000, 0, True), (1000, 1001, True), (65534, 0, True)],
)
def test_only_root_and_the_own_user_are_trusted(tmp_path: Path, owner: int, user: int, refused: bool) -> None:
    """A file of root is trusted for every user, for example in a mounted ConfigMap; a file of `nobody` isn't."""
    path = tmp_path / "file"
    path.write_text("")
    status = given(path, owner).stat()
    os.seteuid(user)
    try:
        assert bool(fault_of(status)) is refused
    finally:
        os.seteuid(0)


def test_link_and_its_target_are_judged(tmp_path: Path) -> None:
    """A link that belongs to another user is rejected for any target, and so is a link to another user's file."""
    (tmp_path / "own").write_text("")
    given(tmp_path / "own", 0)
    (tmp_path / "to-own").symlink_to("own")
    refuse_foreign(tmp_path / "to-own")
    os.lchown(tmp_path / "to-own", STRANGER, STRANGER)
    with pytest.raises(PermissionError):
        refuse_foreign(tmp_path / "to-own")
    given(tmp_path / "own")
    (tmp_path / "to-theirs").symlink_to("own")
    with pytest.raises(PermissionError):
        refuse_foreign(tmp_path / "to-theirs")
    refuse_foreign(tmp_path / "missing")


def test_settings_of_another_user_are_refused(tmp_path: Path) -> None:
    """The exit code is 2, with file, reason, and fix; a policy to review may belong to anyone."""
    path = tmp_path / "config.toml"
    path.write_text('[approval]\nmode = "enforce"\n')
    for command in ("run", "check"):
        given(path)
        code, output = run(command, f"--config.file={path}")
        assert code == 2
        assert f"{path}: cannot be read: {SENTENCE}" in output
    assert load_policy(str(path)).approval.mode == "enforce"
    assert settings_errors(f"config.file={given(path, 0)}") == ""


def test_connection_string_of_another_user_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "connection"
    path.write_text("Endpoint=sb://h.example/;SharedAccessKeyName=n;SharedAccessKey=a2V5;EntityPath=hub")
    flag = f"event_hubs.connection_string_file={path}"
    assert settings_errors(flag) == ""
    given(path)
    assert SENTENCE in settings_errors(flag)
    assert "a2V5" not in settings_errors(flag)


@pytest.mark.parametrize("key", ["certificate", "client_certificate", "client_key"])
def test_certificates_and_keys_of_another_user_are_refused(tmp_path: Path, key: str) -> None:
    """This includes files that a library reads only when the first record is sent."""
    path = tmp_path / "file.pem"
    path.write_text("")
    flags = ["otlp.endpoint=http://127.0.0.1:4318", f"otlp.{key}={path}", "otlp.client_certificate=/etc/c.pem"]
    flags = list({flag.split("=")[0]: flag for flag in reversed(flags)}.values())
    assert settings_errors(*flags) == ""
    given(path)
    assert f"otlp.{key}: {path}: {SENTENCE}" in settings_errors(*flags)


@pytest.mark.parametrize("name", ["web.yml", "server.crt", "server.key", "ca.crt"])
def test_web_config_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    """This includes the files it names; one that another user replaces later isn't applied."""
    authority = Authority()
    write(tmp_path, "server", *authority.issue("localhost"))
    (tmp_path / "ca.crt").write_text(authority.pem)
    path, lines = tmp_path / "web.yml", "tls_server_config: {cert_file: server.crt, key_file: server.key,"
    path.write_text(f"{lines} client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt}}\n")
    text = io.StringIO()
    log = Log(text)
    web_config = WebConfig(path, log=log)
    before = web_config.current
    given(tmp_path / name)
    os.utime(tmp_path / name, ns=(0, 0))
    web_config.refresh()
    assert web_config.current is before
    assert SENTENCE in logged(log, text)
    with pytest.raises(WebConfigError, match=f"user {STRANGER}"):
        WebConfig(path)


@pytest.mark.parametrize("part", ["", "-wal", "-shm", "-journal"])
def test_outbox_of_another_user_is_not_used(tmp_path: Path, part: str) -> None:
    """The file and its mode don't change. It is used again once its owner is fixed; until then nothing is written."""
    path = tmp_path / "outbox.db"
    with closing(Outbox(path, 1 << 20)):
        pass
    theirs = tmp_path / f"outbox.db{part}"
    theirs.touch()
    theirs.chmod(0o666)
    given(theirs)
    before = theirs.read_bytes()
    with closing(Outbox(path, 1 << 20)) as outbox:
        with pytest.raises(OutboxUnwritable, match=f"user {STRANGER}"):
            outbox.load()
        assert any(f"user {STRANGER}" in note for note in outbox.notes)
        assert (theirs.read_bytes(), theirs.stat().st_mode & 0o777) == (before, 0o666)
        given(theirs, 0)
        assert outbox.load() is None


def test_folder_of_another_user_is_reported(tmp_path: Path) -> None:
    """Another user may replace files in it."""
    assert open_folder(tmp_path) == ""
    assert SENTENCE in open_folder(given(tmp_path))
    with closing(Outbox(tmp_path / "outbox.db", 1 << 20)) as outbox:
        assert any(SENTENCE in note for note in outbox.notes)


def test_recording_and_log_of_another_user_are_not_written(tmp_path: Path) -> None:
    """The owner of such a file could read it."""
    path = tmp_path / "file"
    path.write_text("")
    given(path)
    with pytest.raises(OSError, match=SENTENCE.partition(";")[0]):
        RecordingFiles(path, 1 << 20, 2).write({"at": "2026-01-01T00:00:00Z"}, b"")
    with pytest.raises(OSError, match=SENTENCE.partition(";")[0]):
        RotatingFile(path).write_line(b"line\n")
    with pytest.raises(PermissionError) as caught:
        make_private(path)
    assert caught.value.errno == errno.EPERM
    assert SENTENCE in narrow(path)
    assert path.read_bytes() == b""


def test_other_readers_accept_files_of_any_user(tmp_path: Path) -> None:
    """A recording or scenario to replay may belong to another user."""
    path = tmp_path / "recording.jsonl"
    path.write_text("{}")
    given(path)
    assert read_capped(path, 10) == b"{}"
    with pytest.raises(PermissionError):
        read_trusted(path, 10)


def test_probe_warns_root_about_an_outbox_of_another_user(tmp_path: Path) -> None:
    """The agent may run as that user in its own directory: one warning, with the user's number."""
    path = given(tmp_path) / "outbox.db"
    with closing(Outbox(path, 1 << 20)):
        pass
    given(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA quick_check").fetchone() == ("ok",)
    listen = "--web.listen-address=127.0.0.1:0"
    code, output = run("check", "--probe", f"--outbox.path={path}", "--source.url=http://127.0.0.1:9", listen)
    assert code == 1, "nothing listens there"
    assert f"warn outbox {path} belongs to user {STRANGER} (tested as root)" in " ".join(output.split())
    assert output.count("warn ") == 1
