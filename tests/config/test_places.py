"""Hold and ready files, which other processes create: never in directories that are private to a service."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

from exporter.config.places import SERVICE_OWN, SERVICE_VARIABLE
from tests.support.configuration import errors, loaded

pytestmark = pytest.mark.linux("is about the folders that systemd gives a service")
ROOT: Final = Path(__file__).parents[2]
SERVICE: Final = {SERVICE_VARIABLE: "0123456789abcdef0123456789abcdef"}
HOLD: Final = "/etc/azure-scheduled-events-exporter/hold"


@pytest.mark.parametrize("folder", SERVICE_OWN)
def test_hold_file_in_a_private_directory_is_an_error_in_a_service(folder: str) -> None:
    """The error has the directory and a recommended path. Outside a service, it's a warning."""
    flag = f"--approval.hold-file={folder}/app/hold"
    (error,) = errors(flag, environ=SERVICE)
    assert error == (
        f"--approval.hold-file: expected a path outside {folder}, which can be a private directory in a systemd "
        f'service (as in the packaged unit), for example "{HOLD}", found "{folder}/app/hold"'
    )
    elsewhere = loaded(flag)
    assert (elsewhere.warnings, elsewhere.approval.hold_file) == ((error,), f"{folder}/app/hold")


@pytest.mark.parametrize(
    "path",
    [
        "/tmp",
        "/tmp/hold",
        "//tmp/hold",
        "/tmp//a/./b",
        "/var/tmp/hold",
        "/etc/../tmp/hold",
        "/var/../var/tmp/../tmp/hold",
        "/proc/self/root/tmp/hold",
        "/run/user/0/../hold",
    ],
)
def test_every_spelling_of_a_path_in_private_directories_is_rejected(path: str) -> None:
    """Doubled slashes, `..`, and the kernel's links are resolved."""
    assert len(errors(f"--approval.hold-file={path}", environ=SERVICE)) == 1


@pytest.mark.parametrize(
    "path", [HOLD, "/tmpfiles/hold", "/var/tmpx/hold", "/etc/tmp/hold", "/run/hold", "/tmp/../run/hold"]
)
def test_other_paths_are_accepted(path: str) -> None:
    """Names with the same prefix, and paths that leave /tmp again, aren't in /tmp."""
    assert loaded(f"--approval.hold-file={path}", environ=SERVICE).warnings == ()


def test_links_are_followed_in_both_directions() -> None:
    """A link into /tmp is rejected, and a link in /tmp too, since the service would not see the link itself."""
    with tempfile.TemporaryDirectory(dir=ROOT) as outside, tempfile.TemporaryDirectory(dir="/tmp") as inside:
        (into := Path(outside) / "into").symlink_to(inside)
        (out := Path(inside) / "out").symlink_to("/etc")
        for path in (into / "hold", into / ".." / "hold", out / "hold"):
            assert "outside /tmp" in str(errors(f"--approval.hold-file={path}", environ=SERVICE)), path


def test_require_file_of_each_rule_is_checked() -> None:
    """All errors are reported at once, with the rule's name; valid paths aren't reported."""
    toml = """
[approval]
hold_file = "/tmp/hold"
rules = [
  { name = "a", event_type = ["Reboot"], require_file = "/dev/ready/{event_id}" },
  { name = "b", event_type = ["Reboot"], require_file = "/run/app/ready/{event_id}" },
  { name = "c", event_type = ["Reboot"], require_file = "/var/tmp/{event_id}/ready" },
]
"""
    hold, first, second = errors(toml=toml, environ=SERVICE)
    assert hold.startswith("settings.toml: [approval] hold_file: expected a path outside /tmp, ")
    assert first.startswith('settings.toml: [approval] rules: rule "a": require_file: expected a path outside /dev')
    assert '"/run/azure-scheduled-events-exporter/ready/{event_id}"' in first
    assert second.startswith('settings.toml: [approval] rules: rule "c": require_file: expected')


@pytest.mark.parametrize("command", ["check", "run"])
def test_commands_in_a_service_exit_with_the_error(command: str) -> None:
    """`check` and `run` exit with 2, before anything else."""
    agent = [sys.executable, "-m", "exporter", command, "--approval.hold-file=/tmp/hold"]
    environ = os.environ | SERVICE
    done = subprocess.run(agent, cwd=ROOT, text=True, capture_output=True, timeout=60, check=False, env=environ)
    assert done.returncode == 2, done.stderr
    assert "expected a path outside /tmp" in done.stderr
