"""The settings of the event files: their directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from exporter.config.places import SERVICE_VARIABLE
from exporter.config.schema import EventFilesSettings, Settings
from tests.support.configuration import errors, loaded
from tests.support.systems import DRIVE

FOLDER: Final = f"{DRIVE}/run/events"


def test_event_files_are_off_by_default() -> None:
    assert Settings().event_files == EventFilesSettings("")
    assert loaded(f"--event-files.path={FOLDER}").event_files.path == FOLDER
    assert loaded(environ={"SCHEDULED_EVENTS_EVENT_FILES_PATH": FOLDER}).event_files.path == FOLDER


@pytest.mark.parametrize("folder", [FOLDER, f"{FOLDER}/", f"{DRIVE}/run/other/../events"])
@pytest.mark.parametrize("name", ["{event_id}.json", "status.json", "ready.JSON"])
def test_approvals_never_wait_for_a_file_of_the_agent(folder: str, name: str) -> None:
    """A rule that requires the event file would be satisfied as soon as the agent writes it."""
    rules = f'rules = [{{ name = "a", event_type = ["Reboot"], require_file = "{FOLDER}/{name}" }}]'
    toml = f'[approval]\n{rules}\n[event_files]\npath = "{folder}"'
    (error,) = errors(toml=toml)
    assert error.startswith('settings.toml: [approval] rules: rule "a": require_file: expected a file outside')
    loaded(toml=toml.replace(name, "{event_id}"))
    loaded(toml=toml.replace(f"{FOLDER}/{name}", f"{DRIVE}/run/ready/{name}"))
    if "{" not in name:
        held = f'[approval]\nhold_file = "{FOLDER}/{name}"\n[event_files]\npath = "{folder}"'
        assert errors(toml=held)[0].startswith("settings.toml: [approval] hold_file: expected a file outside")


@pytest.mark.linux("paths of POSIX, and a link")
@pytest.mark.parametrize("way", ["/{folder}", "{link}"])
def test_other_paths_of_the_event_files_directory_are_rejected(tmp_path: Path, way: str) -> None:
    """/var/run is a link to /run, and //run is the same directory: the agent would satisfy the rule itself."""
    folder, link = tmp_path / "run" / "events", tmp_path / "var"
    folder.mkdir(parents=True)
    link.symlink_to(tmp_path / "run")
    required = way.format(folder=folder, link=link / "events") + "/{event_id}.json"
    rules = f'rules = [{{ name = "a", event_type = ["Reboot"], require_file = "{required}" }}]'
    toml = f'[approval]\n{rules}\n[event_files]\npath = "{folder}"'
    assert "expected a file outside event_files.path" in errors(toml=toml)[0]
    loaded(toml=toml.replace(required, f"{tmp_path}/var/ready/{{event_id}}.json"))


@pytest.mark.linux("only on Linux, services have a private /tmp")
def test_private_directory_is_an_error_in_a_service_and_a_warning_elsewhere() -> None:
    (warning,) = loaded("--event-files.path=/tmp/events").warnings
    assert warning == (
        "--event-files.path: expected a path outside /tmp, which can be a private directory in a systemd service (as "
        'in the packaged unit), for example "/run/azure-scheduled-events-exporter/events", found "/tmp/events"'
    )
    assert errors("--event-files.path=/tmp/events", environ={SERVICE_VARIABLE: "1"}) == (warning,)
