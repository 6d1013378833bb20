"""The settings of the event files: where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from exporter.config.load import ConfigError, load
from exporter.config.places import HOST_MOUNTS
from exporter.config.schema import EventFilesSettings, Settings
from tests.support.configuration import errors, loaded, parser
from tests.support.systems import DRIVE, WINDOWS

FOLDER: Final = f"{DRIVE}/run/events"


def test_there_are_none_unless_a_folder_is_named() -> None:
    """Off by default."""
    assert Settings().event_files == EventFilesSettings("")
    assert loaded(f"--event-files.path={FOLDER}").event_files.path == FOLDER
    assert loaded(environ={"SCHEDULED_EVENTS_EVENT_FILES_PATH": FOLDER}).event_files.path == FOLDER


@pytest.mark.parametrize("folder", [FOLDER, f"{FOLDER}/", f"{DRIVE}/run/other/../events"])
@pytest.mark.parametrize("name", ["{event_id}.json", "status.json", "ready.JSON"])
def test_an_approval_never_waits_for_a_file_of_the_agents_own(folder: str, name: str) -> None:
    """A rule that asks for the event's own file would find it as soon as the agent wrote it."""
    rules = f'rules = [{{ name = "a", event_type = ["Reboot"], require_file = "{FOLDER}/{name}" }}]'
    toml = f'[approval]\n{rules}\n[event_files]\npath = "{folder}"'
    (error,) = errors(toml=toml)
    assert error.startswith('settings.toml: [approval] rules: rule "a": require_file: expected a file outside of')
    loaded(toml=toml.replace(name, "{event_id}"))
    loaded(toml=toml.replace(f"{FOLDER}/{name}", f"{DRIVE}/run/ready/{name}"))
    if "{" not in name:
        held = f'[approval]\nhold_file = "{FOLDER}/{name}"\n[event_files]\npath = "{folder}"'
        assert errors(toml=held)[0].startswith("settings.toml: [approval] hold_file: expected a file outside of")


@pytest.mark.linux("paths of POSIX, and a link")
@pytest.mark.parametrize("way", ["/{folder}", "{link}"])
def test_another_way_to_the_same_folder_is_the_same(tmp_path: Path, way: str) -> None:
    """/var/run is a link to /run, and //run the same folder: the agent would prepare the event itself."""
    folder, link = tmp_path / "run" / "events", tmp_path / "var"
    folder.mkdir(parents=True)
    link.symlink_to(tmp_path / "run")
    asked = way.format(folder=folder, link=link / "events") + "/{event_id}.json"
    rules = f'rules = [{{ name = "a", event_type = ["Reboot"], require_file = "{asked}" }}]'
    toml = f'[approval]\n{rules}\n[event_files]\npath = "{folder}"'
    assert "expected a file outside of event_files.path" in errors(toml=toml)[0]
    loaded(toml=toml.replace(asked, f"{tmp_path}/var/ready/{{event_id}}.json"))


PLAIN: Final = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n25 21 0:23 / /run rw - tmpfs tmpfs rw\n"


def mounted(folder: Path, inside: str, *flags: str) -> Settings:
    """The settings of a service that has this mounted beside what everybody has."""
    (mounts := folder / "inside").write_text(PLAIN + inside)
    (outside := folder / "outside").write_text(PLAIN)
    return load(parser().parse_args(flags), {HOST_MOUNTS: str(outside)}, mounts=mounts)


@pytest.mark.linux("reads what Linux has mounted")
@pytest.mark.parametrize("path", ["/srv/events", "/srv", "/srv/a/../events"])
def test_a_folder_that_nobody_else_sees_is_refused(tmp_path: Path, path: str) -> None:
    """Files in a folder of the service's own would be written for nobody."""
    own = "60 21 0:62 / /srv rw - tmpfs tmpfs rw\n"
    with pytest.raises(ConfigError) as caught:
        mounted(tmp_path, own, f"--event-files.path={path}")
    assert caught.value.errors == (
        "--event-files.path: expected a path outside of /srv, of which this service has its own, such as "
        f'"/run/azure-scheduled-events-exporter/events", found "{path}"',
    )
    assert mounted(tmp_path, own, "--event-files.path=/run/azure-scheduled-events-exporter/events").warnings == ()


@pytest.mark.linux("services have their own /tmp on Linux alone")
def test_a_temporary_folder_is_warned_of() -> None:
    """Nobody knows from outside whether the service will have its own."""
    if WINDOWS:
        return
    (warning,) = loaded("--event-files.path=/tmp/events").warnings
    assert warning == (
        "--event-files.path: expected a path outside of /tmp and /var/tmp, of which a service may have its own "
        "(PrivateTmp, as in the shipped unit) and then never shows others its files, such as "
        '"/run/azure-scheduled-events-exporter/events", found "/tmp/events"'
    )
