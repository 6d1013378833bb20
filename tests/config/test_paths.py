"""Paths of settings on both systems: their meaning never depends on the current directory or drive."""

from __future__ import annotations

import ntpath
import os

import pytest

from exporter.config.load import ConfigError, load
from exporter.config.places import hold_place, ready_place
from exporter.config.rules import read_rules
from exporter.config.schema import Settings, outbox_path
from exporter.config.types import file_path, folder_path, local_path
from exporter.text.values import InvalidValue
from exporter.windows.places import is_on_network
from tests.support.configuration import parser
from tests.support.documentation import settings_table

BELOW = r"D:\Data\azure-scheduled-events-exporter"
ENVIRON = {"ProgramData": r"D:\Data"}


def test_outbox_is_in_program_data_on_windows() -> None:
    assert outbox_path("win32", ENVIRON) == BELOW + r"\outbox.db"
    assert outbox_path("win32", {}) == r"C:\ProgramData\azure-scheduled-events-exporter\outbox.db"
    assert outbox_path("linux", ENVIRON) == "/var/lib/azure-scheduled-events-exporter/outbox.db"


def test_table_of_the_docs_has_the_outbox_of_both_systems() -> None:
    """On whichever system it's generated."""
    row = next(line for line in settings_table().splitlines() if "`outbox.path`" in line)
    assert (
        '| `"/var/lib/azure-scheduled-events-exporter/outbox.db"`, on Windows '
        r"`%ProgramData%\azure-scheduled-events-exporter\outbox.db` |" in row
    )


@pytest.mark.windows
def test_default_on_windows_is_in_the_services_folder() -> None:
    expected = ntpath.join(os.environ["PROGRAMDATA"], "azure-scheduled-events-exporter", "outbox.db")
    assert Settings().outbox.path == expected
    assert load(parser().parse_args([]), {}).outbox.path == expected


def test_paths_in_messages_are_those_of_the_system() -> None:
    assert hold_place("win32", ENVIRON) == BELOW + r"\hold\hold"
    assert ready_place("win32", ENVIRON) == BELOW + r"\ready\{event_id}"
    assert hold_place("linux", ENVIRON) == "/etc/azure-scheduled-events-exporter/hold"
    assert ready_place("linux", ENVIRON) == "/run/azure-scheduled-events-exporter/ready/{event_id}"


@pytest.mark.parametrize("path", [r"\x", r"/var/lib/x", "C:x", "C:", r"\app\hold"])
def test_windows_path_without_drive_or_folder_is_rejected(path: str) -> None:
    """It would depend on the current drive, or on the drive's current directory."""
    with pytest.raises(InvalidValue, match="a path with its drive, for example"):
        file_path(path, "win32")


@pytest.mark.parametrize("path", [r"C:\x", r"\\server\share\x", r"\\?\C:\x", "c:/x"])
def test_windows_path_with_drive_or_share_is_unchanged(path: str) -> None:
    assert file_path(path, "win32") == path


@pytest.mark.parametrize("path", [r"C:\NUL", r"C:\app\hold:x", r"C:\app\hold.", r"C:\app\HOLDFI~1", r"\\.\pipe\hold"])
def test_windows_name_that_means_another_file_is_rejected(path: str) -> None:
    with pytest.raises(InvalidValue, match="that Windows does not rewrite"):
        file_path(path, "win32")


SHARES = [r"\\server\share\o.db", "//server/share/o.db", r"\\?\UNC\server\share\o.db", r"\\?\unc\server\share\o.db"]


@pytest.mark.parametrize("path", SHARES)
def test_outbox_on_a_windows_share_is_rejected(path: str) -> None:
    """SQLite's journal is memory that processes of one machine share."""
    assert is_on_network(path)
    with pytest.raises(InvalidValue, match="a path on a drive of this machine"):
        local_path(path, "win32")


@pytest.mark.parametrize("path", [r"C:\x\o.db", "c:/x/o.db", r"\\?\C:\x\o.db", r"\\?\Volume{1-2}\o.db"])
def test_outbox_on_a_windows_drive_is_accepted(path: str) -> None:
    assert not is_on_network(path)
    assert local_path(path, "win32") == path


@pytest.mark.parametrize(
    "path", [r"C:\events\nul", r"C:\events\NUL\\", r"C:\aux\events", "C:/events/com1.x", r"C:\e.", "C:x"]
)
def test_windows_device_is_rejected_as_directory_of_event_files(path: str) -> None:
    with pytest.raises(InvalidValue):
        folder_path(path, "win32")


@pytest.mark.parametrize("path", ["C:\\events", "C:\\events\\", "C:/events/", "\\\\server\\share\\events"])
def test_windows_directory_may_end_in_a_separator(path: str) -> None:
    assert folder_path(path, "win32") == path.rstrip("\\/")


@pytest.mark.windows
@pytest.mark.parametrize(
    ("flag", "path"), [("event-files.path", r"C:\events\nul"), *(("outbox.path", path) for path in SHARES)]
)
def test_settings_reject_devices_and_shares_on_windows(flag: str, path: str) -> None:
    with pytest.raises(ConfigError, match=f"--{flag}: expected"):
        load(parser().parse_args([f"--{flag}={path}"]), {})


@pytest.mark.parametrize("path", ["/x", "/NUL", "/app/hold:x", "/app/hold.", r"C:\x", r"\\server\share\x"])
def test_linux_accepts_its_own_and_windows_paths(path: str) -> None:
    """A settings file is often checked on another system than the agent's."""
    assert file_path(path, "linux") == path


@pytest.mark.windows
@pytest.mark.parametrize("flag", ["approval.hold-file", "outbox.path", "recording.path"])
@pytest.mark.parametrize("path", [r"\x", "/var/lib/x", "C:x", r"C:\NUL", r"C:\x:y"])
def test_settings_reject_ambiguous_paths_on_windows(flag: str, path: str) -> None:
    with pytest.raises(ConfigError, match=f"--{flag}: expected"):
        load(parser().parse_args([f"--{flag}={path}"]), {})


@pytest.mark.windows
@pytest.mark.parametrize("path", [r"\ready\{event_id}", "/run/ready", r"C:ready\{event_id}", r"C:\a\NUL", r"C:\a\b:c"])
def test_rules_reject_ambiguous_paths_on_windows(path: str) -> None:
    read = read_rules([{"name": "r", "event_type": ["Reboot"], "require_file": path}], "rules")
    assert "require_file: expected" in read.errors[0]


@pytest.mark.windows
def test_recording_and_outbox_in_different_spellings_are_the_same_file() -> None:
    args = parser().parse_args([r"--outbox.path=C:\data\outbox.db", "--recording.path=c:/DATA/Outbox.db"])
    with pytest.raises(ConfigError, match=r"expected a different file than outbox\.path"):
        load(args, {})
