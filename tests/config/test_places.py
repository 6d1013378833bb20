"""Files that a person makes from outside: never in a folder of which a service has its own."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

from exporter.commands.check.command import validated
from exporter.commands.check.report import ProbeEnvironment
from exporter.config.load import ConfigError, load
from exporter.config.places import has_private_tmp
from exporter.config.schema import Settings
from tests.support.configuration import parser

pytestmark = pytest.mark.linux("reads where systemd mounts a service's own /tmp")
ROOT: Final = Path(__file__).parents[2]

PLAIN: Final = "22 27 0:21 / /proc rw,relatime - proc proc rw\n30 27 0:26 / /tmp rw,nosuid - tmpfs tmpfs rw\n"
ID: Final = "systemd-private-0123456789abcdef0123456789abcdef-azse.service-Ab12Cd"
PRIVATE: Final = {
    "on the root file system": f"91 60 8:1 /tmp/{ID}/tmp /tmp rw,nosuid,nodev shared:3 - ext4 /dev/sda1 rw\n",
    "on a tmpfs": f"91 60 0:30 /{ID}/tmp /tmp rw shared:3 master:1 - tmpfs tmpfs rw,inode64\n",
    "of /var/tmp": f"92 60 8:1 /var/tmp/{ID}/tmp /var/tmp rw - ext4 /dev/sda1 rw\n",
    "removed": f"91 60 8:1 /tmp/{ID}/tmp//deleted /tmp rw - ext4 /dev/sda1 rw\n",
    "none left": "91 60 0:24 /systemd/empty /tmp ro,nosuid - tmpfs tmpfs rw,mode=755\n",
    "disconnected": "90 60 0:40 / /run/systemd/unit-private-tmp rw - tmpfs tmpfs rw,mode=700\n"
    "91 60 0:40 /tmp /tmp rw - tmpfs tmpfs rw,mode=700\n92 60 0:40 /var-tmp /var/tmp rw - tmpfs tmpfs rw,mode=700\n",
}
NOT_PRIVATE: Final = {
    "plain": PLAIN,
    "somebody else's": f"91 60 8:1 /tmp/{ID}/tmp /mnt/look rw - ext4 /dev/sda1 rw\n",
    "torn": "91 60 8:1\n\n \n",
    "nothing": "",
}


def mounted(folder: Path, text: str) -> Path:
    path = folder / "mountinfo"
    path.write_text(PLAIN + text)
    return path


def settings(path: Path, *flags: str) -> Settings:
    return load(parser().parse_args(flags), {}, mounts=path)


def errors(path: Path, *flags: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        settings(path, *flags)
    return raised.value.errors


@pytest.mark.parametrize("text", PRIVATE.values(), ids=PRIVATE)
def test_a_service_with_its_own_tmp_refuses_to_look_for_a_hold_file_there(tmp_path: Path, text: str) -> None:
    """However systemd gives it a /tmp of its own, `check` and `run` call it an error and name a place that is seen."""
    mounts = mounted(tmp_path, text)
    (error,) = errors(mounts, "--approval.hold-file=/tmp/hold")
    assert error.startswith("--approval.hold-file: expected a path outside of /tmp and /var/tmp")
    assert "this service has its own (PrivateTmp)" in error
    assert error.endswith('such as "/etc/azure-scheduled-events-exporter/hold", found "/tmp/hold"')
    assert settings(mounts, "--approval.hold-file=/etc/azure-scheduled-events-exporter/hold").warnings == ()


@pytest.mark.parametrize("text", NOT_PRIVATE.values(), ids=NOT_PRIVATE)
def test_a_hold_file_in_a_shared_tmp_is_a_warning(tmp_path: Path, text: str) -> None:
    """Where /tmp is everybody's, or nothing can be told, the file is used, and a warning says what may come of it."""
    taken = settings(mounted(tmp_path, text), "--approval.hold-file=/var/tmp/app/hold")
    (warning,) = taken.warnings
    assert warning.startswith(
        "--approval.hold-file: expected a path outside of /tmp and /var/tmp, of which a service may"
    )
    assert taken.approval.hold_file == "/var/tmp/app/hold"
    assert not has_private_tmp(tmp_path / "missing")


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
    ],
)
def test_every_spelling_of_a_path_below_tmp_is_refused(tmp_path: Path, path: str) -> None:
    """Doubled slashes, `..` and the kernel's own links hide nothing."""
    assert len(errors(mounted(tmp_path, PRIVATE["on a tmpfs"]), f"--approval.hold-file={path}")) == 1


@pytest.mark.parametrize("path", ["/tmpfiles/hold", "/var/tmpx/hold", "/etc/tmp/hold", "/run/hold", "/tmp/../run/hold"])
def test_paths_that_only_resemble_tmp_are_taken(tmp_path: Path, path: str) -> None:
    """Names that begin alike, and paths that leave /tmp again, are nobody's /tmp."""
    assert settings(mounted(tmp_path, PRIVATE["on a tmpfs"]), f"--approval.hold-file={path}").warnings == ()


def test_links_are_followed_in_both_directions(tmp_path: Path) -> None:
    """A link into /tmp is refused, and one out of it too, since the link itself would not be seen."""
    mounts = mounted(tmp_path, PRIVATE["on a tmpfs"])
    with tempfile.TemporaryDirectory(dir=ROOT) as outside, tempfile.TemporaryDirectory(dir="/tmp") as inside:
        (into := Path(outside) / "into").symlink_to(inside)
        (out := Path(inside) / "out").symlink_to("/etc")
        for path in (into / "hold", into / ".." / "hold", out / "hold"):
            assert len(errors(mounts, f"--approval.hold-file={path}")) == 1, path


def test_each_rules_file_is_looked_at(tmp_path: Path) -> None:
    """`require_file` likewise, by the rule's name, all errors at once; what is right is not named."""
    mounts = mounted(tmp_path, PRIVATE["on a tmpfs"])
    file = tmp_path / "agent.toml"
    file.write_text(
        """
[approval]
hold_file = "/tmp/hold"
rules = [
  { name = "a", event_type = ["Reboot"], require_file = "/tmp/ready/{event_id}" },
  { name = "b", event_type = ["Reboot"], require_file = "/run/app/ready/{event_id}" },
  { name = "c", event_type = ["Reboot"], require_file = "/var/tmp/{event_id}/ready" },
]
"""
    )
    hold, first, second = errors(mounts, f"--config.file={file}")
    assert hold.startswith(f"{file}: [approval] hold_file: expected")
    assert first.startswith(f'{file}: [approval] rules: rule "a": require_file: expected')
    assert '"/run/azure-scheduled-events-exporter/ready/{event_id}"' in first
    assert second.startswith(f'{file}: [approval] rules: rule "c": require_file: expected')


def test_check_judges_by_the_mounts_of_its_own_process(tmp_path: Path) -> None:
    """`check` judges by the mounts of its own process, which a test may give it."""
    args = parser().parse_args(["--approval.hold-file=/tmp/hold"])
    with pytest.raises(ConfigError, match="PrivateTmp"):
        validated(args, ProbeEnvironment(mounts=mounted(tmp_path, PRIVATE["on a tmpfs"])))
    assert len(validated(args, ProbeEnvironment(mounts=mounted(tmp_path, ""))).warnings) == 1


def test_without_a_hold_file_or_require_file_nothing_is_judged(tmp_path: Path) -> None:
    """No hold file and no ready file: no warning, whatever is mounted."""
    assert load(argparse.Namespace(), {}, mounts=mounted(tmp_path, PRIVATE["on a tmpfs"])).warnings == ()


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_process_with_a_tmp_of_its_own_is_refused(command: str) -> None:
    """Behind a real mount like systemd's, `check` and `run` end with 2 and a sentence, before anything else."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare to mount")
    needed = (str(ROOT), sys.prefix, sys.base_prefix)
    place = next(place for place in ("/tmp", "/var/tmp") if not any(path.startswith(f"{place}/") for path in needed))
    with tempfile.TemporaryDirectory(prefix="systemd-private-", dir=place) as folder:
        trial = ["unshare", "--mount", "sh", "-c", f'mount --bind {folder} {place} && exec "$@"', "sh"]
        if subprocess.run([*trial, "true"], capture_output=True, check=False).returncode:
            pytest.skip("mounting is not allowed here")
        agent = [sys.executable, "-m", "exporter", command, f"--approval.hold-file={place}/hold"]
        done = subprocess.run([*trial, *agent], cwd=ROOT, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "this service has its own (PrivateTmp)" in done.stderr
