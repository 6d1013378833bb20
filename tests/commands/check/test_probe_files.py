"""The probes of this machine: the outbox, other files, and the listen address."""

from __future__ import annotations

import dataclasses
import errno
import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from exporter.commands.check.disk import probe_hold_file, probe_outbox, probe_recorder, reason
from exporter.commands.check.files import exposed_folders, readable_secrets
from exporter.commands.check.metadata import probe_metadata
from exporter.commands.check.probe import probe_web, run_probes
from exporter.commands.check.report import FindingVerdict
from exporter.config.schema import Settings
from exporter.core.state import State
from exporter.core.state_codec import dump_state
from exporter.outbox.store import Outbox
from exporter.simulator.metadata.service import MetadataService
from exporter.web.config import WebConfig
from exporter.web.responses import WebResponse
from exporter.web.server import WebServer
from exporter.windows import access
from tests.commands.check.test_command import a_pair
from tests.support.configuration import loaded
from tests.support.factories import service_of
from tests.support.ports import reserved_port, silent_port
from tests.support.probing import (
    ENVIRONMENT,
    SHORT_TIMEOUTS,
    findings_of,
    printed_line,
    run_check,
    sentence_of,
    settings_for,
)
from tests.support.raw_server import RawServer, answers
from tests.support.raw_server import ok as http_ok

OK, WARN, FAIL = FindingVerdict.OK, FindingVerdict.WARN, FindingVerdict.FAIL


service = service_of("live-migration", speed=1000)


# --- the outbox and other files


def outbox_at(path: Path, *flags: str) -> Settings:
    return loaded(f"--outbox.path={path}", *flags)


def test_new_outbox_is_ok_and_not_created(tmp_path: Path) -> None:
    findings = findings_of(probe_outbox, outbox_at(tmp_path / "a" / "b" / "outbox.db"))
    sentence_of(findings, OK, "outbox", "can be created")
    assert list(tmp_path.iterdir()) == []


def test_path_through_a_file_is_a_failure_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sentence_of(
        findings_of(probe_outbox, outbox_at(tmp_path / "file" / "outbox.db")),
        FAIL,
        "outbox",
        "a part of its path is a file",
    )
    recorder = loaded(f"--recording.path={tmp_path}/file/recording")
    sentence_of(
        findings_of(probe_recorder, recorder), FAIL, "recording", "a part of its path is a file", "(recording.path)"
    )
    sentence_of(findings_of(probe_recorder, loaded(f"--recording.path={tmp_path}/recording")), OK, "recording")


@pytest.mark.linux("/proc is a directory in which no user can create a file")
def test_outbox_in_a_directory_of_the_kernel_is_a_failure_with_its_setting() -> None:
    """Not even root can create a file there."""
    sentence_of(findings_of(probe_outbox, outbox_at(Path("/proc/outbox.db"))), FAIL, "outbox", "(outbox.path)")


@pytest.mark.linux("creates a symbolic link and a named pipe")
def test_recording_path_of_a_link_or_pipe_is_a_failure(tmp_path: Path) -> None:
    """The agent doesn't write to it."""
    (tmp_path / "link").symlink_to(tmp_path / "recording")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        sentence_of(
            findings_of(probe_recorder, loaded(f"--recording.path={tmp_path}/{name}")),
            FAIL,
            "recording",
            "is not a regular file",
        )


def test_full_and_read_only_disks_have_different_findings(tmp_path: Path) -> None:
    """Each file system is really mounted."""
    disk = f"mount -t tmpfs -o size=64k none {tmp_path}"
    flags = ("--source.url=http://127.0.0.1:1", f"--outbox.path={tmp_path}/outbox.db")
    sentence = printed_line(
        run_check(*flags, isolated="-rmn", before=f"{disk} && head -c 64k /dev/zero >{tmp_path}/fill"), "outbox"
    )
    assert sentence.startswith("fail outbox")
    assert "has no space left: free some" in sentence
    sentence = printed_line(
        run_check(*flags, isolated="-rmn", before=f"{disk} && mount -o remount,ro {tmp_path}"), "outbox"
    )
    assert "is on a read-only file system: mount a writable volume there" in sentence


def test_directory_or_port_reserved_for_root_is_a_failure_for_other_users(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    flags = ("--source.url=http://127.0.0.1:1", "--web.listen-address=0.0.0.0:81", f"--outbox.path={folder}/outbox.db")
    process = run_check(*flags, isolated="-Un")  # user 65534, without any capability
    assert process.returncode == 1
    sentence = f"fail outbox {folder} is not writable for this user: make the agent's user the owner of the directory"
    assert sentence in printed_line(process, "outbox")
    assert "cannot listen on 0.0.0.0:81: Permission denied: choose another" in printed_line(process, "web")


def test_outbox_limit_larger_than_the_disk_is_a_warning(tmp_path: Path) -> None:
    findings = findings_of(probe_outbox, outbox_at(tmp_path / "outbox.db", f"--outbox.max-bytes={2**40}"))
    assert [finding.verdict for finding in findings] == [OK, WARN]
    assert "outbox.max_bytes is 1048576 MiB, but" in findings[1].sentence


def test_outbox_of_a_running_agent_is_ok_and_unchanged(tmp_path: Path) -> None:
    """After the agent has stopped, the probe reads the outbox without changing it."""
    path = tmp_path / "outbox.db"
    outbox = Outbox(path, 1 << 20, ("otlp",))
    sentence_of(findings_of(probe_outbox, outbox_at(path)), OK, "outbox", "an agent is running on it")
    outbox.commit(State(birth=datetime.now(UTC), vm_id="vm-1"), [])
    outbox.close()
    before = {entry.name: entry.stat().st_mtime_ns for entry in tmp_path.iterdir()}
    sentence_of(findings_of(probe_outbox, outbox_at(path)), OK, "outbox", "is writable", "0 undelivered")
    assert {entry.name: entry.stat().st_mtime_ns for entry in tmp_path.iterdir()} == before


@pytest.mark.linux("makes a symbolic link")
def test_probe_follows_a_link_to_the_outbox(tmp_path: Path) -> None:
    """The agent follows the link too, and locks its target."""
    (tmp_path / "link.db").symlink_to(tmp_path / "outbox.db")
    outbox = Outbox(tmp_path / "outbox.db", 1 << 20, ("otlp",))
    settings = outbox_at(tmp_path / "link.db")
    sentence_of(findings_of(probe_outbox, settings), OK, "outbox", "an agent is running on it")
    outbox.close()
    sentence_of(findings_of(probe_outbox, settings), OK, "outbox", "is writable", "0 undelivered")


def test_outbox_of_another_vm_is_a_warning(tmp_path: Path, service: MetadataService) -> None:
    """The vmId differs from Azure's; it's also read from the journal that a crash left."""
    path = tmp_path / "outbox.db"
    outbox = Outbox(path, 1 << 20)
    outbox.commit(State(birth=datetime.now(UTC), vm_id="another-vm"), [])
    for name in ("outbox.db", "outbox.db-wal"):
        (tmp_path / name.replace("outbox", "crashed")).write_bytes((tmp_path / name).read_bytes())
    outbox.close()
    assert (tmp_path / "crashed.db-wal").stat().st_size
    for name in ("outbox.db", "crashed.db"):
        settings = settings_for(service.url, f"--outbox.path={tmp_path}/{name}")
        findings = run_probes(settings, ENVIRONMENT, {"metadata": probe_metadata, "outbox": probe_outbox})
        assert [finding.verdict for finding in findings if finding.topic == "outbox"] == [OK, WARN]
        assert any("belongs to another VM" in finding.sentence for finding in findings)


def test_file_of_another_format_is_a_warning_and_unchanged(tmp_path: Path) -> None:
    """The warning for a foreign, corrupt, or nonsensical file describes what the agent will do."""
    path = tmp_path / "outbox.db"
    path.write_bytes(b"not a database at all" * 1000)
    sentence_of(
        findings_of(probe_outbox, outbox_at(path)), WARN, "outbox", "is corrupt: when the agent starts, it renames"
    )
    assert path.read_bytes() == b"not a database at all" * 1000
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    sentence_of(findings_of(probe_outbox, outbox_at(foreign)), WARN, "outbox", "is foreign", "correct outbox.path")
    nonsensical = tmp_path / "nonsensical.db"
    outbox = Outbox(nonsensical, 1 << 20)
    outbox.commit(State(birth=datetime.now(UTC)), [])
    outbox.close()
    text = dump_state(State(birth=datetime.now(UTC))).replace('"version":1', '"version":99')
    with sqlite3.connect(nonsensical) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'state'", (text,))
    db.close()
    sentence_of(findings_of(probe_outbox, outbox_at(nonsensical)), WARN, "outbox", "is corrupt")


def test_hold_file_is_ok_only_if_verifiably_absent(tmp_path: Path) -> None:
    """Anything but absence from an existing directory is a warning that every event is held."""
    path = tmp_path / "hold"
    settings = loaded(f"--approval.hold-file={path}")
    sentence_of(findings_of(probe_hold_file, settings), OK, "hold_file", "does not exist")
    path.touch()
    sentence_of(findings_of(probe_hold_file, settings), WARN, "hold_file", "every event is held until it is removed")
    below = loaded(f"--approval.hold-file={path}/hold")
    sentence_of(findings_of(probe_hold_file, below), WARN, "hold_file", "cannot be checked", "every event is held")
    astray = loaded(f"--approval.hold-file={tmp_path}/missing/hold")
    sentence_of(findings_of(probe_hold_file, astray), WARN, "hold_file", "is missing", "every event is held")


@pytest.mark.parametrize(
    ("winerror", "number", "words"),
    [
        (5, errno.EACCES, "is not writable for this user"),
        (19, errno.EACCES, "write-protected"),
        (32, errno.EACCES, "is open exclusively in another program"),
        (53, errno.ENOENT, "cannot be created: correct the path"),
        (112, errno.ENOSPC, "has no space left"),
        (1117, errno.EINVAL, ""),
    ],
)
def test_sentence_follows_the_windows_error(winerror: int, number: int, words: str) -> None:
    """Python maps three of these to a denied permission."""
    assert words in reason(number, winerror)
    assert bool(words) == bool(reason(number, winerror))


@pytest.mark.windows
def test_on_windows_shared_outbox_directory_is_a_warning(tmp_path: Path) -> None:
    """No warning for a private directory, or one that the agent will create."""
    (tmp_path / "shared").mkdir(mode=0o755)
    settings = outbox_at(tmp_path / "shared" / "o.db")
    _, finding = findings_of(probe_outbox, settings)
    assert finding.verdict is WARN
    for words in ("can be read by", "S-1-1-0", "icacls"):
        assert words in finding.sentence
    (finding,) = findings_of(probe_outbox, outbox_at(tmp_path / "made" / "o.db"))
    assert finding.verdict is OK


@pytest.mark.windows
def test_on_windows_readable_secret_is_reported_with_the_command_that_protects_it(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)
    path = tmp_path / "shared" / "connection"
    path.write_text(
        "Endpoint=sb://c.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=aDEyMzQ1Njc4OTA=;EntityPath=e",
        encoding="ascii",
    )
    settings = loaded(f"--event-hubs.connection-string-file={path}")
    (warning,) = readable_secrets(settings, ENVIRONMENT)
    assert "contains the connection string and can be read by" in warning
    assert f'`icacls "{path}" /reset`, then `icacls "{path}" /inheritance:r /grant:r "*S-1-5-80-' in warning
    access.protect_file(path)
    assert readable_secrets(settings, ENVIRONMENT) == []


@pytest.mark.windows
@pytest.mark.parametrize("path", [r"Q:\hold", r"\\nosuch\share\hold"])
def test_on_windows_a_hold_file_on_a_missing_drive_or_share_holds(path: str) -> None:
    sentence_of(
        findings_of(probe_hold_file, loaded(f"--approval.hold-file={path}")), WARN, "hold_file", "every event is held"
    )


@pytest.mark.windows
@pytest.mark.parametrize("is_there", [True, False])
def test_on_windows_world_writable_directories_are_reported(tmp_path: Path, is_there: bool) -> None:
    """The agent approves nothing that depends on a file there, so the operator must know why."""
    folders = {name: tmp_path / name for name in ("hold", "ready", "events", "settings")}
    for folder in folders.values():
        folder.mkdir()
        access.protect_folder(folder, [(access.current_user(), access.FULL), (access.EVERYONE, access.MODIFY)])
    if is_there:
        (folders["hold"] / "hold").touch()
    path = folders["settings"] / "config.toml"
    path.write_text(
        f"[approval]\nhold_file = '{folders['hold']}\\hold'\n"
        "rules = [{ name = 'prepared', event_type = ['Reboot'], "
        f"require_file = '{folders['ready']}\\{{event_id}}\\x' }}]\n"
        f"[event_files]\npath = '{folders['events']}'\n",
        encoding="utf-8",
    )
    settings = loaded(f"--config.file={path}")
    warnings = list(exposed_folders(settings))
    for words, warning in zip(
        (
            f"approval.hold_file: {folders['hold']} can be changed by ",
            f'rule "prepared": require_file: {folders["ready"]} can be changed by ',
            f"event_files.path: {folders['events']} can be changed by ",
            f"config.file: {folders['settings']} can be changed by ",
        ),
        warnings,
        strict=True,
    ):
        assert warning.startswith(words)
        assert access.EVERYONE in warning
    (finding,) = findings_of(probe_hold_file, settings)
    assert finding.verdict is WARN
    assert f"{folders['hold']} can be changed by " in finding.sentence
    assert "every event is held" in finding.sentence
    for folder in folders.values():
        access.protect_folder(folder, [(access.current_user(), access.FULL)])
    assert list(exposed_folders(settings)) == []


@pytest.mark.windows
def test_on_windows_outbox_on_a_missing_drive_fails() -> None:
    sentence_of(findings_of(probe_outbox, outbox_at(Path(r"Q:\state\o.db"))), FAIL, "outbox", "correct the path")


# --- the listen address


class Page:
    """An application with the agent's metrics."""

    def respond(self, path: str, accept: str) -> WebResponse:
        del path, accept
        return WebResponse(200, "text/plain", b'azure_scheduled_events_build_info{version="1"} 1\n')


def listening_on(address: str, *flags: str) -> Settings:
    return loaded(f"--web.listen-address={address}", *flags)


def test_free_port_is_ok_and_free_afterwards() -> None:
    with reserved_port() as port:
        for _ in range(2):
            sentence_of(findings_of(probe_web, listening_on(f"127.0.0.1:{port}")), OK, "web", "is free")


def test_port_of_the_running_agent_is_ok(tmp_path: Path) -> None:
    """Also if the agent requires a password."""
    web = tmp_path / "web.yml"
    web.write_text("basic_auth_users:\n  bob: $2b$04$abcdefghijklmnopqrstuuTQ0Zz0c8ZqXh4bqkKf1iJ1oYv1G6T2e\n")
    for config in (None, WebConfig(web)):
        server = WebServer("127.0.0.1:0", Page(), web_config=config)
        server.start()
        try:
            findings = findings_of(probe_web, listening_on(f"127.0.0.1:{server.address[1]}"))
            sentence_of(findings, OK, "web", "is in use by this agent, which is running")
        finally:
            server.stop()


def test_agent_is_recognized_behind_tls(tmp_path: Path) -> None:
    """If it requires a client certificate, the finding is only a probable one."""
    certificate, key = a_pair(tmp_path, "localhost")
    web = tmp_path / "web.yml"
    open_to_all = f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n"
    closed = f"{open_to_all}  client_ca_file: {certificate}\n  client_auth_type: RequireAndVerifyClientCert\n"
    for text, verdict, words in (
        (open_to_all, OK, "is in use by this agent"),
        (closed, WARN, "requires a client certificate, probably this agent"),
    ):
        web.write_text(text)
        server = WebServer("127.0.0.1:0", Page(), web_config=WebConfig(web))
        server.start()
        try:
            settings = listening_on(f"127.0.0.1:{server.address[1]}", f"--web.config.file={web}")
            sentence_of(findings_of(probe_web, settings), verdict, "web", words)
        finally:
            server.stop()


def test_port_in_use_is_reported_with_the_program() -> None:
    """The program's name comes from its Server header, if it has one."""
    with RawServer(answers(http_ok(b"hello", "Server: nginx/1.22"))) as server:
        settings = listening_on(f"127.0.0.1:{server.port}")
        sentence_of(findings_of(probe_web, settings), FAIL, "web", "by another program (nginx/1.22): stop")
    with silent_port() as port:
        hurried = dataclasses.replace(ENVIRONMENT, timeouts=replace(SHORT_TIMEOUTS, connect=0.2))
        sentence_of(
            findings_of(probe_web, listening_on(f"127.0.0.1:{port}"), hurried),
            FAIL,
            "web",
            "is in use by another program: stop",
        )


def test_unusable_listen_address_is_a_failure() -> None:
    """An address of another machine, and an unknown name."""
    sentence_of(
        findings_of(probe_web, listening_on("192.0.2.1:10169")), FAIL, "web", "cannot listen on 192.0.2.1:10169: "
    )
    sentence_of(
        findings_of(probe_web, listening_on("no-such-host.invalid:10169")),
        FAIL,
        "web",
        "choose another web.listen_address",
    )
