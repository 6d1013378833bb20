"""`service install`: the service's definition, its rights in its folder, and the files that an update keeps."""

from __future__ import annotations

import argparse
import os
import re
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

import exporter
from exporter.cli import main
from exporter.commands.service.command import _folder, add_arguments, service
from exporter.commands.service.environment import environment_command, named_service, usual_service
from exporter.commands.service.install import MOST_FILES, config_template
from exporter.config.command_line import FlagParser
from exporter.config.load import ConfigError, load
from exporter.errors import BAD_USAGE, DONE, FAILED
from exporter.windows.access import MODIFY, READ, SERVICE_NAME, AccessList, service_sid
from exporter.windows.service_manager import ServiceState, ServiceStatus
from tests.support.service_environment import FakeWindows
from tests.support.systems import run_away

SID = service_sid(SERVICE_NAME)


@pytest.fixture
def windows(tmp_path: Path) -> FakeWindows:
    return FakeWindows(tmp_path)


def install(windows: FakeWindows, *words: str) -> int:
    return service(windows.arguments("install", *words), windows.environment)


def outbox(windows: FakeWindows) -> str:
    return f"--outbox.path={windows.data / 'outbox.db'}"


def test_service_starts_this_program_with_the_flags_under_its_own_account(windows: FakeWindows) -> None:
    assert install(windows, "--web.listen-address=127.0.0.1:10169", outbox(windows)) == DONE
    (definition,) = windows.manager.services.values()
    assert definition.name == SERVICE_NAME
    assert definition.account == rf"NT SERVICE\{SERVICE_NAME}"
    assert definition.command == (
        r"C:\Program Files\azse\azse.exe",
        "service",
        "run",
        f"--folder={windows.data}",
        outbox(windows),
        "--web.listen-address=127.0.0.1:10169",
        f"--config.file={windows.data / 'config.toml'}",
    )
    assert list(definition.restart_after) == [1.0, 5.0, 60.0]
    assert windows.sources == {SERVICE_NAME}


def test_service_may_write_its_data_and_only_read_its_inputs(windows: FakeWindows) -> None:
    install(windows, outbox(windows))
    entries = {os.path.relpath(path, windows.data): found for path, found in windows.access.entries.items()}
    assert entries == {
        ".": ((SID, MODIFY),),
        "log": ((SID, MODIFY),),
        "hold": ((SID, READ),),
        "ready": ((SID, READ),),
        "events": ((SID, MODIFY),),
        "secrets": ((SID, READ),),
        "config.toml": ((SID, READ),),
    }


def test_invalid_settings_are_all_reported_and_nothing_is_created(windows: FakeWindows) -> None:
    with pytest.raises(ConfigError) as caught:
        install(windows, "--source.poll-interval=1h", "--approval.mode=yes")
    assert len(caught.value.errors) == 2
    assert not windows.data.exists()
    assert not windows.manager.services


def test_missing_administrator_rights_are_reported_and_nothing_is_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windows = FakeWindows(tmp_path, administrator=False)
    assert install(windows, outbox(windows)) == FAILED
    assert "as an administrator" in capsys.readouterr().err
    assert not windows.data.exists()


def test_upgrade_keeps_settings_outbox_and_changed_access_lists(windows: FakeWindows) -> None:
    install(windows, outbox(windows))
    config, database, hold = (windows.data / name for name in ("config.toml", "outbox.db", "hold"))
    config.write_text('[log]\nlevel = "warn"\n')
    database.write_text("records")
    windows.access.entries[str(hold)] += (("S-1-5-32-545", MODIFY),)
    windows.manager.statuses[SERVICE_NAME] = ServiceStatus(ServiceState.RUNNING)
    assert install(windows, outbox(windows)) == DONE
    assert config.read_text() == '[log]\nlevel = "warn"\n'
    assert database.read_text() == "records"
    assert ("S-1-5-32-545", MODIFY) in windows.access.entries[str(hold)]
    assert windows.manager.statuses[SERVICE_NAME].state == ServiceState.RUNNING, "it is not the installer's to stop it"


def test_outbox_of_an_agent_run_by_an_administrator_is_given_to_the_service(windows: FakeWindows) -> None:
    windows.data.mkdir()
    for name in ("outbox.db", "outbox.db-wal", "outbox.db.lock"):
        (windows.data / name).write_text("")
    install(windows, outbox(windows))
    for name in ("outbox.db", "outbox.db-wal", "outbox.db.lock"):
        assert windows.access.entries[str(windows.data / name)] == ((SID, MODIFY),)


@pytest.mark.parametrize("what", ["", "config.toml", "secrets"])
def test_existing_folder_of_another_account_is_rejected(
    windows: FakeWindows, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = windows.data / what
    windows.data.mkdir()
    if what == "config.toml":
        path.write_text("")
    elif what:
        path.mkdir()
    windows.access.owners[str(path)] = "S-1-5-21-9-9-9-1001"
    assert install(windows, outbox(windows)) == FAILED
    assert "S-1-5-21-9-9-9-1001" in capsys.readouterr().err
    assert not windows.manager.services


STRANGER = "S-1-5-21-9-9-9-1001"
TAKEN_OVER = (
    "outbox.db",
    "outbox.db-wal",
    "outbox.db-shm",
    "outbox.db.lock",
    "secrets/event-hubs",
    "secrets/tls/server.key",
    "hold/hold",
    "ready/prepared",
    "log/agent.log",
    "events/status.json",
)


def put(windows: FakeWindows, name: str, owner: str) -> Path:
    """Create a file in the service's folder that belongs to `owner`; its folders belong to the administrators."""
    path = windows.data / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    windows.access.owners[str(path)] = owner
    return path


@pytest.mark.parametrize("name", TAKEN_OVER)
def test_files_of_another_account_are_rejected_with_owner_and_remedy(
    windows: FakeWindows, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their owner can change their lists at any time, whatever the installation sets."""
    path = put(windows, name, STRANGER)
    assert install(windows, outbox(windows)) == FAILED
    err = capsys.readouterr().err
    assert f"{path} belongs to {STRANGER}" in err
    assert f'`takeown /A /F "{path}"`, then `icacls "{path}" /reset`' in err
    assert not windows.manager.services
    assert str(path) not in windows.access.entries, "its list is not ours to write"
    windows.access.owners[str(path)] = "S-1-5-18"
    assert install(windows, outbox(windows)) == DONE


@pytest.mark.parametrize("name", ["recording.jsonl.1", "notes.txt", "further/notes.txt"])
def test_files_of_another_account_stop_an_upgrade(windows: FakeWindows, name: str) -> None:
    install(windows, outbox(windows))
    path = put(windows, name, STRANGER)
    assert install(windows, outbox(windows)) == FAILED
    assert any(str(path) in text for _, _, text in windows.reports)


def test_files_are_checked_after_the_folders_are_protected(windows: FakeWindows) -> None:
    """Otherwise another account could create a file between the check and the new list."""
    (windows.data / "secrets").mkdir(parents=True)
    looked: list[str] = []

    def read(path: str) -> AccessList:
        looked.append(os.path.relpath(path, windows.data))
        if path.endswith("key"):
            assert str(windows.data / "secrets") in windows.access.entries
        return windows.access.read(path)

    put(windows, "secrets/key", "S-1-5-18")
    environment = replace(windows.environment, lists=replace(windows.environment.lists, read=read))
    assert service(windows.arguments("install", outbox(windows)), environment) == DONE
    assert os.path.join("secrets", "key") in looked


@pytest.mark.parametrize("name", ["outbox.db", "outbox.db-wal", "log/agent.log", "events/status.json"])
def test_files_written_by_the_service_do_not_stop_an_upgrade(windows: FakeWindows, name: str) -> None:
    install(windows, outbox(windows))
    put(windows, name, SID)
    assert install(windows, outbox(windows)) == DONE


def test_ready_files_of_a_permitted_account_do_not_stop_an_upgrade(windows: FakeWindows) -> None:
    """Of an account that may create files there; not of one that may only read them."""
    install(windows, outbox(windows))
    ready = str(windows.data / "ready")
    put(windows, "ready/event", "S-1-5-19")
    assert install(windows, outbox(windows)) == FAILED
    own = windows.access.entries[ready]
    windows.access.entries[ready] = (*own, ("S-1-5-19", READ))
    assert install(windows, outbox(windows)) == FAILED
    windows.access.entries[ready] = (*own, ("S-1-5-19", MODIFY))
    assert install(windows, outbox(windows)) == DONE


def test_service_that_only_reads_a_folder_owns_nothing_in_it(windows: FakeWindows) -> None:
    install(windows, outbox(windows))
    put(windows, "hold/hold", SID)
    assert install(windows, outbox(windows)) == FAILED


def test_folder_with_too_many_files_is_rejected(windows: FakeWindows, capsys: pytest.CaptureFixture[str]) -> None:
    """Another user may have created them before: the installation checks a limited number of owners."""
    (windows.data / "log").mkdir(parents=True)
    for number in range(MOST_FILES):
        (windows.data / "log" / str(number)).touch()
    assert install(windows, outbox(windows)) == FAILED
    assert f"more than {MOST_FILES} files" in capsys.readouterr().err


@pytest.mark.linux("a user of Windows makes a junction, a test may not make a symbolic link there")
@pytest.mark.parametrize("what", ["", "log", "config.toml", "outbox.db"])
def test_links_are_rejected(
    windows: FakeWindows, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any user can create a junction in ProgramData: the access list would be set on its target."""
    target = tmp_path / "System32"
    if "." in what:
        target.write_text("")
    else:
        target.mkdir()
    if what:
        windows.data.mkdir()
    (windows.data / what).symlink_to(target)
    assert install(windows, outbox(windows)) == FAILED
    assert "is a link; remove it" in capsys.readouterr().err
    assert str(windows.data / what) not in windows.access.entries
    assert not windows.manager.services
    if target.is_dir():
        assert not list(target.iterdir())


def test_folder_of_another_account_loses_its_list_when_it_is_taken_over(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its list can have an entry for the service, whose SID anyone can compute, and so look like the installer's."""
    windows.data.mkdir()
    windows.access.owners[str(windows.data)] = "S-1-5-21-9-9-9-1001"
    assert install(windows, outbox(windows)) == FAILED
    assert f'icacls "{windows.data}" /reset' in capsys.readouterr().err


def test_folder_with_other_contents_is_rejected(windows: FakeWindows, capsys: pytest.CaptureFixture[str]) -> None:
    """For example, the root of a drive, or ProgramData itself."""
    windows.data.mkdir()
    (windows.data / "Documents").mkdir()
    assert install(windows, outbox(windows)) == FAILED
    assert "contains Documents" in capsys.readouterr().err
    assert not windows.access.entries
    assert not windows.manager.services


def test_folder_of_another_service_is_rejected(windows: FakeWindows, capsys: pytest.CaptureFixture[str]) -> None:
    install(windows, outbox(windows))
    before = dict(windows.access.entries)
    assert install(windows, "--name=azse-2", outbox(windows)) == FAILED
    assert "folder of another service" in capsys.readouterr().err
    assert windows.access.entries == before
    assert set(windows.manager.services) == {SERVICE_NAME}


@pytest.mark.parametrize("name", [SERVICE_NAME, SERVICE_NAME.upper()])
def test_service_with_another_name_has_a_folder_with_that_name(name: str) -> None:
    environ = {"ProgramData": r"D:\Data"}
    assert named_service(name, environ) == usual_service(environ)
    assert named_service("azse-2", environ).folder == r"D:\Data\azse-2"


def test_folder_recreated_by_the_service_does_not_stop_an_upgrade(windows: FakeWindows) -> None:
    install(windows, outbox(windows))
    windows.access.owners[str(windows.data / "log")] = SID
    assert install(windows, outbox(windows)) == DONE
    windows.access.owners[str(windows.data / "secrets")] = SID
    assert install(windows, outbox(windows)) == FAILED


def test_service_of_another_program_is_not_changed(windows: FakeWindows, capsys: pytest.CaptureFixture[str]) -> None:
    install(windows, outbox(windows))
    other = replace(windows.manager.services[SERVICE_NAME], name="spooler", command=(r"C:\Windows\spoolsv.exe",))
    windows.manager.services["spooler"] = other
    windows.manager.statuses["spooler"] = ServiceStatus(ServiceState.RUNNING)
    assert install(windows, "--name=spooler", outbox(windows)) == FAILED
    assert "spooler: this service belongs to another program" in capsys.readouterr().err
    assert windows.manager.services["spooler"] == other
    assert windows.sources == {SERVICE_NAME}


def test_failure_of_an_installation_is_in_the_event_log(windows: FakeWindows) -> None:
    """The Windows Installer runs it, and doesn't show its output."""
    with pytest.raises(ConfigError):
        install(windows, "--approval.mode=yes", "--otlp.endpoint=http://me:hush-hush@collector")
    windows.administrator = False
    assert install(windows, outbox(windows)) == FAILED
    windows.administrator = True
    windows.data.mkdir()
    windows.access.owners[str(windows.data)] = "S-1-5-21-9-9-9-1001"
    assert install(windows, outbox(windows)) == FAILED
    texts = [text for source, number, text in windows.reports if (source, number) == (SERVICE_NAME, 4)]
    for text, reason in zip(texts, ("--approval.mode", "as an administrator", "S-1-5-21-9-9-9-1001"), strict=True):
        assert reason in text
        assert "hush-hush" not in text


def test_percent_sign_is_rejected_since_the_service_manager_would_replace_it(windows: FakeWindows) -> None:
    with pytest.raises(ConfigError, match="settings file"):
        install(windows, "--source.vm-name=%COMPUTERNAME%", outbox(windows))
    assert not windows.data.exists()


def test_relative_paths_of_flags_are_resolved_at_the_installation(windows: FakeWindows, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[log]\nlevel = "warn"\n')
    relative = os.path.relpath(tmp_path / "own.toml")
    assert install(windows, f"--config.file={relative}", outbox(windows)) == DONE
    (definition,) = windows.manager.services.values()
    assert f"--config.file={tmp_path / 'own.toml'}" in definition.command


def test_settings_file_of_the_services_environment_stays_in_effect(windows: FakeWindows, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("")
    windows.variables = {"SCHEDULED_EVENTS_CONFIG_FILE": str(tmp_path / "own.toml")}
    assert install(windows, outbox(windows)) == DONE
    (definition,) = windows.manager.services.values()
    assert not [word for word in definition.command if word.startswith("--config.file")]


def test_relative_paths_in_the_settings_refer_to_the_services_folder(windows: FakeWindows) -> None:
    install(windows, outbox(windows))
    (windows.data / "web.yml").write_text("basic_auth_users: {}\n")
    (windows.data / "config.toml").write_text('[web]\nconfig_file = "web.yml"\n')
    assert install(windows, outbox(windows)) == DONE
    (windows.data / "web.yml").unlink()
    with pytest.raises(ConfigError, match=r"web\.yml"):
        install(windows, outbox(windows))


@pytest.mark.parametrize("key", ["outbox.path", "recording.path", "event-files.path"])
def test_path_elsewhere_needs_a_right_until_the_service_has_it(
    windows: FakeWindows, tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands remove the rights of other accounts; once they were run, there is no warning."""
    folder = tmp_path / "elsewhere"
    path = folder if key == "event-files.path" else folder / "file"
    flags = [f"--{key}={path}", *([outbox(windows)] if key != "outbox.path" else [])]
    assert install(windows, *flags) == DONE
    assert (
        f'`icacls "{folder}" /reset`, then `icacls "{folder}" /inheritance:r /grant:r "*{SID}:(OI)(CI)M" '
        '"*S-1-5-18:(OI)(CI)F" "*S-1-5-32-544:(OI)(CI)F"`'
    ) in capsys.readouterr().err
    windows.access.entries[str(folder)] = ((SID, MODIFY),)
    assert install(windows, *flags) == DONE
    assert "icacls" not in capsys.readouterr().err
    assert install(windows, outbox(windows), f"--event-files.path={windows.data / 'events'}") == DONE
    assert "icacls" not in capsys.readouterr().err


def test_path_of_another_service_is_never_granted(
    windows: FakeWindows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    windows.access.entries[str(other)] = ((service_sid("azse-2"), MODIFY),)
    assert install(windows, f"--outbox.path={other / 'outbox.db'}") == DONE
    err = capsys.readouterr().err
    assert f"outbox.path: in the folder of another service; set it to a path in {windows.data}" in err
    assert "icacls" not in err


def test_first_service_with_another_name_needs_no_right_on_the_default_folder(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings file that the installation writes sets its outbox, and the warnings consider it."""
    assert install(windows, "--name=azse-2") == DONE
    advice = [line for line in capsys.readouterr().err.splitlines() if "outbox.path" in line]
    assert SERVICE_NAME not in str(advice)


@pytest.mark.parametrize("word", ["install", "start", "stop", "remove"])
@pytest.mark.parametrize("given", [f"--name={SERVICE_NAME}", "--name=azse-2"])
def test_folder_of_an_installed_service_is_its_installation_folder(
    windows: FakeWindows, tmp_path: Path, word: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --folder, output refers to that folder, and an update keeps it."""
    windows.data = tmp_path / "a folder" / "svc"
    windows.data.parent.mkdir()
    assert install(windows, given, outbox(windows)) == DONE
    windows.manager.statuses[given.removeprefix("--name=")] = ServiceStatus(ServiceState.RUNNING)
    capsys.readouterr()
    parser = FlagParser(prog="azse service")
    add_arguments(parser)
    flags = [outbox(windows)] if word == "install" else []
    if word == "start":
        windows.manager.statuses[given.removeprefix("--name=")] = ServiceStatus(ServiceState.STOPPED)
    assert service(parser.parse_args([word, given, *flags]), windows.environment) == DONE
    out = " ".join(capsys.readouterr().out.split())
    assert "ProgramData" not in out
    assert (str(windows.data) in out) is (word != "stop")
    for definition in windows.manager.services.values():
        assert f"--folder={windows.data}" in definition.command


def test_missing_service_is_reported_with_the_command_that_installs_it(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, command in ((SERVICE_NAME, "`service install`"), ("azse-2", "`service install --name=azse-2`")):
        assert service(windows.arguments("start", f"--name={name}"), windows.environment) == FAILED
        assert command in capsys.readouterr().err


@pytest.mark.parametrize(
    "path",
    [
        r"svc",
        r"C:svc",
        r"\svc",
        r"\\server\share\svc",
        r"//server/share/svc",
        r"\\?\C:\svc",
        r"\\.\C:\svc",
        r"\\?\UNC\server\share\svc",
    ],
)
def test_folder_that_is_not_on_a_drive_is_bad_usage(path: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a folder on a drive"):
        _folder(path, "win32")


@pytest.mark.parametrize(
    "name",
    [
        "svc4.",
        "svc4 ",
        "svc4. .",
        "nul",
        "COM1",
        "aux.x",
        "lpt9 .txt",
        "a:stream",
        "SVC~1",
        "a*b",
        "it's",
        "a%PATH%b",
        "x" * 256,
        os.path.join("con", "svc"),
        os.path.join("svc.", "data"),
    ],
)
def test_folder_with_an_ambiguous_windows_name_is_rejected_before_anything_is_created(
    windows: FakeWindows, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent would reject the settings that the installation writes, or find another folder."""
    windows.data = Path(f"{tmp_path}{os.sep}{name}")
    assert install(windows) == BAD_USAGE
    assert "expected a folder on a drive" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
    assert not windows.manager.services


@pytest.mark.parametrize("name", ["svc4.", "nul", "COM1", "aux.x", "con"])
def test_service_name_that_is_not_a_valid_folder_name_is_rejected(
    windows: FakeWindows, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = FlagParser(prog="azse service")
    add_arguments(parser)
    assert service(parser.parse_args(["install", f"--name={name}"]), windows.environment) == BAD_USAGE
    assert "expected a folder on a drive" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--otlp.headers", "--event-hubs.connection-string"])
def test_help_never_suggests_the_environment_for_a_secret_of_a_service(
    windows: FakeWindows, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every user of the machine can read its variables, and those of a service."""
    for words in ([f"{flag}=a=hush-hush"], ["--help"]):
        with pytest.raises(SystemExit):
            windows.arguments("install", *words)
        said = capsys.readouterr()
        text = " ".join((said.out + said.err).split())
        assert "hush-hush" not in text
        assert "in the environment" not in text
        assert f"set SCHEDULED_EVENTS_{flag.strip('-').replace('.', '_').replace('-', '_').upper()}" not in text
        assert "file" in text


def test_secret_in_a_variable_of_the_machine_is_reported(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    windows.variables = {"SCHEDULED_EVENTS_OTLP_HEADERS": "a=hush-hush", "OTEL_EXPORTER_OTLP_HEADERS": "b=hush-hush"}
    assert install(windows, outbox(windows)) == DONE
    err = capsys.readouterr().err
    for name in windows.variables:
        assert f"{name}: every user of this machine can read this variable" in err
    assert "hush-hush" not in err


def test_base_python_of_a_virtual_environment_is_started_and_finds_the_packages(tmp_path: Path) -> None:
    environment = tmp_path / "it's an environment" / "site-packages"
    environment.mkdir(parents=True)
    (environment / "packages.pth").write_text(os.path.dirname(os.path.dirname(exporter.__file__)) + "\n")
    (environment / "more.pth").write_text(sysconfig.get_path("purelib") + "\n")
    base = os.path.realpath(sys.executable)
    done = run_away(tmp_path, *environment_command(base, str(environment)), "--version")
    assert (done.returncode, done.stdout.split()[:1]) == (DONE, ["azure-scheduled-events-exporter"]), done.stderr


def test_options_that_windows_does_not_support_are_warnings(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    windows.manager.lacks = ("this version of Windows does not support recovery actions; the service works without it",)
    assert install(windows, outbox(windows)) == DONE
    assert "warning: this version of Windows does not support" in capsys.readouterr().err


def test_second_service_has_its_own_name_account_and_folder(windows: FakeWindows) -> None:
    assert install(windows, "--name=azse-2", outbox(windows)) == DONE
    definition = windows.manager.services["azse-2"]
    assert definition.account == r"NT SERVICE\azse-2"
    assert "--name=azse-2" in definition.command
    assert windows.access.entries[str(windows.data)] == ((service_sid("azse-2"), MODIFY),)
    assert f"path = '{windows.data}\\outbox.db'" in (windows.data / "config.toml").read_text()


@pytest.mark.parametrize("name", ["", "two words", 'a"b', "a\\b", "-x", "x" * 81])
def test_service_name_that_needs_quoting_is_bad_usage(windows: FakeWindows, name: str) -> None:
    with pytest.raises(SystemExit) as caught:
        windows.arguments("install", f"--name={name}")
    assert caught.value.code == BAD_USAGE


def test_secret_flags_are_rejected_by_the_service_too(windows: FakeWindows, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        windows.arguments("install", "--event-hubs.connection-string=Endpoint=sb://x/;SharedAccessKey=hush-hush")
    assert caught.value.code == BAD_USAGE
    assert "hush-hush" not in capsys.readouterr().err


def test_password_in_a_url_is_not_stored_in_the_command_line(windows: FakeWindows) -> None:
    with pytest.raises(ConfigError, match=r"--otlp\.endpoint: contains a secret") as caught:
        install(windows, "--otlp.endpoint=https://me:hush-hush@collector.example", outbox(windows))
    assert "hush-hush" not in str(caught.value.errors) + str(windows.reports)
    assert not windows.manager.services


@pytest.mark.linux("the error is for systems without a service manager")
def test_service_command_is_only_available_on_windows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", "start"]) == BAD_USAGE
    assert "only available on Windows" in capsys.readouterr().err


def test_new_settings_file_only_sets_a_hold_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(config_template(r"C:\ProgramData\azse", usual=True), encoding="utf-8")
    assert tomllib.loads(path.read_text(encoding="utf-8")) == {
        "approval": {"hold_file": r"C:\ProgramData\azse\hold\hold"}
    }
    load(argparse.Namespace(**{"config.file": str(path)}), {})


def test_new_settings_file_is_valid_without_its_comment_marks(tmp_path: Path) -> None:
    text = config_template(r"C:\ProgramData\azse", usual=True)
    lines = [match[1] for line in text.splitlines() if (match := re.match(r"(?:# )?(\[.*|[a-z_]+ = .*)$", line))]
    document = tomllib.loads("\n".join(lines))
    assert document["outbox"]["path"] == r"C:\ProgramData\azse\outbox.db"
    assert document["approval"]["rules"][0]["require_file"] == r"C:\ProgramData\azse\ready\{event_id}"
    assert set(document) == {"approval", "otlp", "event_hubs", "web", "outbox", "log", "event_files"}
    secret = tmp_path / "event-hubs"
    secret.write_text("Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=YWJjZA==")
    path = tmp_path / "config.toml"
    path.write_text("\n".join(lines).replace(document["event_hubs"]["connection_string_file"], str(secret)))
    load(argparse.Namespace(**{"config.file": str(path)}), {})
