"""Files that a person makes from outside: never in a folder of which a service has its own."""

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
def test_a_service_refuses_to_look_for_a_hold_file_there(folder: str) -> None:
    """The error names the folder and a place that everybody sees. Started otherwise, the same is a warning."""
    flag = f"--approval.hold-file={folder}/app/hold"
    (error,) = errors(flag, environ=SERVICE)
    assert error == (
        f"--approval.hold-file: expected a path outside of {folder}, of which a systemd service may have its own (as "
        f'in the shipped unit), such as "{HOLD}", found "{folder}/app/hold"'
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
def test_every_spelling_of_a_path_in_these_is_refused(path: str) -> None:
    """Doubled slashes, `..` and the kernel's own links hide nothing."""
    assert len(errors(f"--approval.hold-file={path}", environ=SERVICE)) == 1


@pytest.mark.parametrize(
    "path", [HOLD, "/tmpfiles/hold", "/var/tmpx/hold", "/etc/tmp/hold", "/run/hold", "/tmp/../run/hold"]
)
def test_other_paths_are_taken(path: str) -> None:
    """Names that begin alike, and paths that leave /tmp again, are nobody's /tmp."""
    assert loaded(f"--approval.hold-file={path}", environ=SERVICE).warnings == ()


def test_links_are_followed_in_both_directions() -> None:
    """A link into /tmp is refused, and one out of it too, since the link itself would not be seen."""
    with tempfile.TemporaryDirectory(dir=ROOT) as outside, tempfile.TemporaryDirectory(dir="/tmp") as inside:
        (into := Path(outside) / "into").symlink_to(inside)
        (out := Path(inside) / "out").symlink_to("/etc")
        for path in (into / "hold", into / ".." / "hold", out / "hold"):
            assert "outside of /tmp" in str(errors(f"--approval.hold-file={path}", environ=SERVICE)), path


def test_each_rules_file_is_looked_at() -> None:
    """`require_file` likewise, by the rule's name, all errors at once; what is right is not named."""
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
    assert hold.startswith("settings.toml: [approval] hold_file: expected a path outside of /tmp, ")
    assert first.startswith('settings.toml: [approval] rules: rule "a": require_file: expected a path outside of /dev')
    assert '"/run/azure-scheduled-events-exporter/ready/{event_id}"' in first
    assert second.startswith('settings.toml: [approval] rules: rule "c": require_file: expected')


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_service_ends_with_the_sentence(command: str) -> None:
    """`check` and `run` end with 2, before anything else."""
    agent = [sys.executable, "-m", "exporter", command, "--approval.hold-file=/tmp/hold"]
    environ = os.environ | SERVICE
    done = subprocess.run(agent, cwd=ROOT, text=True, capture_output=True, timeout=60, check=False, env=environ)
    assert done.returncode == 2, done.stderr
    assert "expected a path outside of /tmp" in done.stderr
