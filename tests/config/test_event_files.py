"""The settings of the event files: where they are, who may read them, and whose they are."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pytest

from exporter.commands.run import run_agent
from exporter.config.load import ConfigError, load
from exporter.config.owner import Owner, OwnerError, check_permitted, resolve
from exporter.config.places import HOST_MOUNTS
from exporter.config.schema import EventFilesSettings, Settings
from exporter.log.log import Log
from tests.support.configuration import errors, loaded, parser
from tests.support.systems import DRIVE, WINDOWS

FOLDER: Final = f"{DRIVE}/run/events"
NOBODY: Final = 65534


def test_there_are_none_unless_a_folder_is_named() -> None:
    """Off by default, and readable for everybody where a folder is named."""
    assert Settings().event_files == EventFilesSettings("", "0644", "")
    settings = loaded(f"--event-files.path={FOLDER}").event_files
    assert (settings.path, settings.mode_bits) == (FOLDER, 0o644)
    assert loaded(environ={"SCHEDULED_EVENTS_EVENT_FILES_PATH": FOLDER}).event_files.path == FOLDER


@pytest.mark.linux("on Windows there are no modes")
@pytest.mark.parametrize(("text", "bits"), [("0644", 0o644), ("600", 0o600), ("0660", 0o660), ("0664", 0o664)])
def test_a_mode_is_octal(text: str, bits: int) -> None:
    """As chmod takes it."""
    assert loaded(f"--event-files.mode={text}").event_files.mode_bits == bits


@pytest.mark.parametrize(
    "text",
    ["", "0", "0444", "0244", "0646", "0666", "0755", "0654", "0645", "4644", "1644", "rw", "0o644", "00644", "٠٦٤٤"],
)
def test_other_modes_are_refused(text: str) -> None:
    """The owner reads and writes; nobody executes, and not everybody writes."""
    (error,) = errors(toml=f'[event_files]\nmode = "{text}"')
    assert error == (
        'settings.toml: [event_files] mode: expected an octal mode such as "0644": read and write for the owner, '
        f'execute for nobody, write not for others, found "{text}"'
    )
    assert "as a string" not in error
    (error,) = errors(toml="[event_files]\nmode = 0o644")
    assert error.startswith("settings.toml: [event_files] mode: expected a string")


@pytest.mark.windows
def test_on_windows_the_folder_says_who_may_read() -> None:
    """A mode and an owner are refused, with what counts instead."""
    found = errors("--event-files.mode=0600", "--event-files.owner=shop")
    assert len(found) == 2
    assert all("the access list of their folder" in error for error in found)
    assert loaded("--event-files.mode=0644", f"--event-files.path={FOLDER}").event_files.path == FOLDER


@pytest.mark.linux("owners are of Linux")
@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("", Owner()),
        ("root", Owner(0)),
        ("root:root", Owner(0, 0)),
        (":root", Owner(-1, 0)),
        ("12345:23456", Owner(12345, 23456)),
        (":23456", Owner(-1, 23456)),
    ],
)
def test_owners_are_names_or_numbers(text: str, owner: Owner) -> None:
    """A user, a group, or both."""
    assert resolve(text) == owner
    assert loaded(f"--event-files.owner={text}").event_files.owner == text


@pytest.mark.linux("owners are of Linux")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no-such-user-here", "a user that this machine knows"),
        ("root:no-such-group-here", "a group that this machine knows"),
        (":", '"user", "user:group" or ":group"'),
        ("root:", '"user", "user:group" or ":group"'),
        ("4294967295", "a number up to 4294967294"),
        ("99999999999999999999", "a number up to 4294967294"),
        ("root:٣", "a number up to 4294967294"),
    ],
)
def test_unknown_owners_are_refused(text: str, expected: str) -> None:
    """Names are looked up when the settings are read, and not when the first event comes."""
    assert errors(f"--event-files.owner={text}") == (f'--event-files.owner: expected {expected}, found "{text}"',)


@pytest.mark.linux("owners are of Linux")
def test_an_agent_that_may_not_give_its_files_away_does_not_start(tmp_path: Path) -> None:
    """It is said at the start, as a wrong setting, and tried by giving a file away."""
    if sys.platform == "win32":
        return
    settings = loaded(
        f"--event-files.path={tmp_path}", "--event-files.owner=root", f"--outbox.path={tmp_path}/outbox.db"
    )
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        with pytest.raises(ConfigError) as caught:
            run_agent(settings, Log(None), lambda _stop: None)
        check_permitted(Owner())
        check_permitted(Owner(os.geteuid()))
    finally:
        if root:
            os.seteuid(0)
    (error,) = caught.value.errors
    assert error.startswith(
        "event_files.owner: expected an owner that this process may give files to: it runs as user "
    )
    assert error.endswith(", found root")
    if root:
        check_permitted(Owner(12345, 23456))


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


def test_a_number_that_is_no_owner_is_a_sentence() -> None:
    """The error follows the word "expected"."""
    if not WINDOWS:
        with pytest.raises(OwnerError, match="a number up to"):
            resolve("9999999999")
