"""`service install`: what is asked of the service manager, what the service may do in its folder, and what stays."""

from __future__ import annotations

import argparse
import os
import re
import sys
import sysconfig
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import exporter
from exporter.cli import main
from exporter.commands.service.command import service
from exporter.commands.service.template import config_template
from exporter.commands.service.world import environment_command, named_service, usual_service
from exporter.config.load import ConfigError, load
from exporter.exit_codes import BAD_USAGE, DONE, FAILED
from exporter.windows.access import MODIFY, READ, SERVICE_NAME, service_sid
from exporter.windows.service_manager import ServiceStatus, State
from tests.support.service_world import FakeWindows
from tests.support.systems import run_away

SID = service_sid(SERVICE_NAME)


@pytest.fixture
def windows(tmp_path: Path) -> FakeWindows:
    return FakeWindows(tmp_path)


def install(windows: FakeWindows, *words: str) -> int:
    return service(windows.arguments("install", *words), windows.world)


def outbox(windows: FakeWindows) -> str:
    return f"--outbox.path={windows.data / 'outbox.db'}"


def test_the_service_starts_this_program_with_the_flags_under_an_account_of_its_own(windows: FakeWindows) -> None:
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


def test_the_service_may_write_its_data_and_only_read_what_tells_it_what_to_do(windows: FakeWindows) -> None:
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


def test_settings_that_are_wrong_are_all_told_and_nothing_is_made(windows: FakeWindows) -> None:
    with pytest.raises(ConfigError) as caught:
        install(windows, "--source.poll-interval=1h", "--approval.mode=yes")
    assert len(caught.value.errors) == 2
    assert not windows.data.exists()
    assert not windows.manager.services


def test_who_is_no_administrator_is_told_so_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windows = FakeWindows(tmp_path, administrator=False)
    assert install(windows, outbox(windows)) == FAILED
    assert "as an administrator" in capsys.readouterr().err
    assert not windows.data.exists()


def test_an_upgrade_keeps_settings_and_outbox_and_the_lists_that_somebody_has_changed(windows: FakeWindows) -> None:
    install(windows, outbox(windows))
    config, database, hold = (windows.data / name for name in ("config.toml", "outbox.db", "hold"))
    config.write_text('[log]\nlevel = "warn"\n')
    database.write_text("records")
    windows.access.entries[str(hold)] += (("S-1-5-32-545", MODIFY),)
    windows.manager.statuses[SERVICE_NAME] = ServiceStatus(State.RUNNING)
    assert install(windows, outbox(windows)) == DONE
    assert config.read_text() == '[log]\nlevel = "warn"\n'
    assert database.read_text() == "records"
    assert ("S-1-5-32-545", MODIFY) in windows.access.entries[str(hold)]
    assert windows.manager.statuses[SERVICE_NAME].state == State.RUNNING, "it is not the installer's to stop it"


def test_an_outbox_that_an_administrator_has_used_is_given_to_the_service(windows: FakeWindows) -> None:
    windows.data.mkdir()
    for name in ("outbox.db", "outbox.db-wal", "outbox.db.lock"):
        (windows.data / name).write_text("")
    install(windows, outbox(windows))
    for name in ("outbox.db", "outbox.db-wal", "outbox.db.lock"):
        assert windows.access.entries[str(windows.data / name)] == ((SID, MODIFY),)


@pytest.mark.parametrize("what", ["", "config.toml", "secrets"])
def test_a_folder_that_a_stranger_has_made_before_is_not_used(
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


@pytest.mark.linux("a user of Windows makes a junction, a test may not make a symbolic link there")
@pytest.mark.parametrize("what", ["", "log", "config.toml", "outbox.db"])
def test_a_link_is_not_followed_wherever_it_leads(
    windows: FakeWindows, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every user can make a junction in ProgramData: the access list would be set on what it leads to."""
    target = tmp_path / "System32"
    if "." in what:
        target.write_text("")
    else:
        target.mkdir()
    if what:
        windows.data.mkdir()
    (windows.data / what).symlink_to(target)
    assert install(windows, outbox(windows)) == FAILED
    assert "is a link to another place" in capsys.readouterr().err
    assert str(windows.data / what) not in windows.access.entries
    assert not windows.manager.services
    if target.is_dir():
        assert not list(target.iterdir())


def test_what_a_stranger_has_made_loses_its_list_when_it_is_taken_over(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may name the service already, whose SID everybody can compute, and so look like a list of ours."""
    windows.data.mkdir()
    windows.access.owners[str(windows.data)] = "S-1-5-21-9-9-9-1001"
    assert install(windows, outbox(windows)) == FAILED
    assert f'icacls "{windows.data}" /reset' in capsys.readouterr().err


def test_a_folder_that_holds_other_things_is_not_taken_from_those_who_use_it(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as the root of a drive, or ProgramData itself."""
    windows.data.mkdir()
    (windows.data / "Documents").mkdir()
    assert install(windows, outbox(windows)) == FAILED
    assert "holds Documents" in capsys.readouterr().err
    assert not windows.access.entries
    assert not windows.manager.services


def test_the_folder_of_another_service_is_left_to_that_one(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    install(windows, outbox(windows))
    before = dict(windows.access.entries)
    assert install(windows, "--name=azse-2", outbox(windows)) == FAILED
    assert "folder of another service" in capsys.readouterr().err
    assert windows.access.entries == before
    assert set(windows.manager.services) == {SERVICE_NAME}


@pytest.mark.parametrize("name", [SERVICE_NAME, SERVICE_NAME.upper()])
def test_a_service_of_another_name_has_a_folder_of_that_name(name: str) -> None:
    environ = {"ProgramData": r"D:\Data"}
    assert named_service(name, environ) == usual_service(environ)
    assert named_service("azse-2", environ).folder == r"D:\Data\azse-2"


def test_a_folder_that_the_service_has_made_anew_does_not_stop_an_upgrade(windows: FakeWindows) -> None:
    install(windows, outbox(windows))
    windows.access.owners[str(windows.data / "log")] = SID
    assert install(windows, outbox(windows)) == DONE
    windows.access.owners[str(windows.data / "secrets")] = SID
    assert install(windows, outbox(windows)) == FAILED


def test_the_service_of_another_program_is_not_changed(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    install(windows, outbox(windows))
    other = replace(windows.manager.services[SERVICE_NAME], name="spooler", command=(r"C:\Windows\spoolsv.exe",))
    windows.manager.services["spooler"] = other
    windows.manager.statuses["spooler"] = ServiceStatus(State.RUNNING)
    assert install(windows, "--name=spooler", outbox(windows)) == FAILED
    assert "spooler is the service of another program" in capsys.readouterr().err
    assert windows.manager.services["spooler"] == other
    assert windows.sources == {SERVICE_NAME}


def test_why_it_was_not_installed_stands_in_the_event_log(windows: FakeWindows) -> None:
    """The Windows Installer calls it, and shows nothing of what it prints."""
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


def test_a_percent_sign_is_refused_since_the_service_manager_would_replace_it(windows: FakeWindows) -> None:
    with pytest.raises(ConfigError, match="settings file"):
        install(windows, "--source.vm-name=%COMPUTERNAME%", outbox(windows))
    assert not windows.data.exists()


def test_paths_are_kept_as_they_are_meant_where_the_command_is_given(windows: FakeWindows, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[log]\nlevel = "warn"\n')
    relative = os.path.relpath(tmp_path / "own.toml")
    assert install(windows, f"--config.file={relative}", outbox(windows)) == DONE
    (definition,) = windows.manager.services.values()
    assert f"--config.file={tmp_path / 'own.toml'}" in definition.command


def test_a_settings_file_named_by_the_services_environment_is_left_to_it(windows: FakeWindows, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("")
    windows.variables = {"SCHEDULED_EVENTS_CONFIG_FILE": str(tmp_path / "own.toml")}
    assert install(windows, outbox(windows)) == DONE
    (definition,) = windows.manager.services.values()
    assert not [word for word in definition.command if word.startswith("--config.file")]


def test_a_relative_path_in_the_settings_is_of_the_services_folder(windows: FakeWindows) -> None:
    install(windows, outbox(windows))
    (windows.data / "web.yml").write_text("basic_auth_users: {}\n")
    (windows.data / "config.toml").write_text('[web]\nconfig_file = "web.yml"\n')
    assert install(windows, outbox(windows)) == DONE
    (windows.data / "web.yml").unlink()
    with pytest.raises(ConfigError, match=r"web\.yml"):
        install(windows, outbox(windows))


def test_what_the_service_will_not_see_is_told(windows: FakeWindows, capsys: pytest.CaptureFixture[str]) -> None:
    world = windows.session(SCHEDULED_EVENTS_SOURCE_VM_NAME="mine", SCHEDULED_EVENTS_LOG_LEVEL="warn")
    windows.variables = {"SCHEDULED_EVENTS_LOG_LEVEL": "warn"}
    assert service(windows.arguments("install", outbox(windows)), world) == DONE
    err = capsys.readouterr().err
    assert "SCHEDULED_EVENTS_SOURCE_VM_NAME is a variable of this session alone" in err
    assert "SCHEDULED_EVENTS_LOG_LEVEL" not in err


def test_an_outbox_elsewhere_needs_a_right_that_is_told_by_sid(
    windows: FakeWindows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(windows, f"--outbox.path={tmp_path / 'elsewhere' / 'outbox.db'}") == DONE
    assert f"*{SID}:(OI)(CI)M" in capsys.readouterr().err


def test_event_files_elsewhere_need_a_right_too(
    windows: FakeWindows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "elsewhere"
    assert install(windows, outbox(windows), f"--event-files.path={folder}") == DONE
    assert f'icacls "{folder}" /grant "*{SID}:(OI)(CI)M"' in capsys.readouterr().err
    assert install(windows, outbox(windows), f"--event-files.path={windows.data / 'events'}") == DONE
    assert "event_files" not in capsys.readouterr().err


def test_a_program_in_the_folder_of_a_user_is_told(
    windows: FakeWindows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = replace(windows.session(USERPROFILE=str(tmp_path)), command=(str(tmp_path / "python.exe"),))
    assert service(windows.arguments("install", outbox(windows)), world) == DONE
    assert f"{tmp_path / 'python.exe'} is in the folder of a user" in capsys.readouterr().err


def test_of_a_virtual_environment_its_own_python_is_started_which_finds_the_packages(tmp_path: Path) -> None:
    environment = tmp_path / "it's an environment" / "site-packages"
    environment.mkdir(parents=True)
    (environment / "packages.pth").write_text(os.path.dirname(os.path.dirname(exporter.__file__)) + "\n")
    (environment / "more.pth").write_text(sysconfig.get_path("purelib") + "\n")
    base = os.path.realpath(sys.executable)
    done = run_away(tmp_path, *environment_command(base, str(environment)), "--version")
    assert (done.returncode, done.stdout.split()[:1]) == (DONE, ["azure-scheduled-events-exporter"]), done.stderr


def test_what_this_system_lacks_is_a_warning(windows: FakeWindows, capsys: pytest.CaptureFixture[str]) -> None:
    windows.manager.lacks = ("this system's service manager does not know recovery actions",)
    assert install(windows, outbox(windows)) == DONE
    assert "warning: this system's service manager" in capsys.readouterr().err


def test_a_second_service_has_its_own_name_account_and_folder(windows: FakeWindows) -> None:
    assert install(windows, "--name=azse-2", outbox(windows)) == DONE
    definition = windows.manager.services["azse-2"]
    assert definition.account == r"NT SERVICE\azse-2"
    assert "--name=azse-2" in definition.command
    assert windows.access.entries[str(windows.data)] == ((service_sid("azse-2"), MODIFY),)
    assert f"path = '{windows.data}\\outbox.db'" in (windows.data / "config.toml").read_text()


@pytest.mark.parametrize("name", ["", "two words", 'a"b', "a\\b", "-x", "x" * 81])
def test_a_name_that_would_need_quoting_is_bad_usage(windows: FakeWindows, name: str) -> None:
    with pytest.raises(SystemExit) as caught:
        windows.arguments("install", f"--name={name}")
    assert caught.value.code == BAD_USAGE


def test_a_secret_is_no_flag_of_a_service_either(windows: FakeWindows, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        windows.arguments("install", "--event-hubs.connection-string=Endpoint=sb://x/;SharedAccessKey=hush-hush")
    assert caught.value.code == BAD_USAGE
    assert "hush-hush" not in capsys.readouterr().err


def test_a_password_in_an_address_is_not_kept_where_every_user_can_read_it(windows: FakeWindows) -> None:
    with pytest.raises(ConfigError, match=r"--otlp\.endpoint: it holds a secret") as caught:
        install(windows, "--otlp.endpoint=https://me:hush-hush@collector.example", outbox(windows))
    assert "hush-hush" not in str(caught.value.errors) + str(windows.reports)
    assert not windows.manager.services


@pytest.mark.linux("it says so where there is no service manager")
def test_elsewhere_it_says_that_it_is_for_windows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", "start"]) == BAD_USAGE
    assert "for Windows" in capsys.readouterr().err


def test_the_settings_file_that_is_written_sets_a_hold_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(config_template(r"C:\ProgramData\azse", usual=True), encoding="utf-8")
    assert tomllib.loads(path.read_text(encoding="utf-8")) == {
        "approval": {"hold_file": r"C:\ProgramData\azse\hold\hold"}
    }
    load(argparse.Namespace(**{"config.file": str(path)}), {})


def test_the_settings_file_that_is_written_holds_when_its_comments_are_taken_away(tmp_path: Path) -> None:
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
