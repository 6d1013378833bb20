"""The settings of the event files: where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from exporter.config.places import SERVICE_VARIABLE
from exporter.config.schema import EventFilesSettings, Settings
from tests.support.configuration import errors, loaded
from tests.support.systems import DRIVE

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


@pytest.mark.linux("services have their own /tmp on Linux alone")
def test_a_folder_that_a_service_may_have_for_itself_is_refused_there() -> None:
    """And warned of elsewhere."""
    (warning,) = loaded("--event-files.path=/tmp/events").warnings
    assert warning == (
        "--event-files.path: expected a path outside of /tmp, of which a systemd service may have its own (as in the "
        'shipped unit), such as "/run/azure-scheduled-events-exporter/events", found "/tmp/events"'
    )
    assert errors("--event-files.path=/tmp/events", environ={SERVICE_VARIABLE: "1"}) == (warning,)
