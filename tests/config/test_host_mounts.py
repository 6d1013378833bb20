"""A folder that is another one for everybody else: the agent refuses to wait for files there, whatever made it so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.config.load import ConfigError, load
from exporter.config.places import HOST_MOUNTS
from exporter.config.schema import Settings
from tests.support.configuration import parser

pytestmark = pytest.mark.linux("reads what Linux has mounted")
ROOT: Final = Path(__file__).parents[2]

HOST: Final = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:21 / /proc rw shared:2 - proc proc rw
23 21 0:5 / /dev rw shared:3 - devtmpfs udev rw
24 23 0:22 / /dev/shm rw shared:4 - tmpfs tmpfs rw
25 21 0:23 / /run rw shared:5 - tmpfs tmpfs rw
26 21 8:1 /srv/data /var/data rw shared:1 - ext4 /dev/sda1 rw
27 21 0:30 / /mnt/auto rw shared:6 - autofs systemd-1 rw
28 21 8:17 / /mnt/with\\040space rw shared:7 - ext4 /dev/sdb1 rw
"""
PLAIN: Final = HOST.replace("shared:", "master:")
"""In a namespace of its own, with nothing of its own in it."""

OWN: Final = {
    "PrivateTmp on the root file system": ("/tmp/hold", "60 21 8:1 /tmp/systemd-private-0-a/tmp /tmp rw - ext4 / rw"),
    "PrivateDevices": ("/dev/hold", "60 23 0:60 / /dev rw - tmpfs tmpfs rw"),
    "DynamicUser": ("/var/lib/private/hold", "60 21 0:61 / /var/lib/private ro - tmpfs tmpfs rw"),
    "TemporaryFileSystem": ("/srv/app/hold", "60 21 0:62 / /srv ro - tmpfs tmpfs rw"),
    "BindPaths": ("/srv/app/hold", "60 21 8:1 /opt/app /srv/app rw master:1 - ext4 /dev/sda1 rw"),
    "another disk": ("/srv/app/hold", "60 21 8:33 / /srv/app rw - ext4 /dev/sdc1 rw"),
    "below what was mounted over": (
        "/srv/app/hold",
        "60 21 0:62 / /srv rw - tmpfs tmpfs rw\n61 60 0:63 / /srv/app rw - tmpfs tmpfs rw",
    ),
    "over a mount that it hides": ("/mnt/with space/hold", "60 21 0:62 / /mnt rw - tmpfs tmpfs rw"),
    "RootDirectory": ("/etc/hold", "60 21 8:1 /srv/root / rw master:1 - ext4 /dev/sda1 rw"),
}
THE_SAME: Final = {
    "a folder of the root": ("/etc/azure-scheduled-events-exporter/hold", ""),
    "mounted on itself": ("/etc/app/hold", "60 21 8:1 /etc/app /etc/app ro master:1 - ext4 /dev/sda1 ro"),
    "mounted elsewhere by the host": ("/var/data/hold", ""),
    "a mount whose name has a space": ("/mnt/with space/hold", ""),
    "one that systemd carries over": (
        "/dev/shm/hold",
        "60 23 0:60 / /dev rw - tmpfs tmpfs rw\n61 60 0:22 / /dev/shm rw master:4 - tmpfs tmpfs rw",
    ),
    "mounted when looked at": ("/mnt/auto/share/hold", "60 27 0:70 / /mnt/auto/share rw - nfs4 server:/share rw"),
    "/tmp of everybody": ("/tmp/hold", ""),
}


def loaded(folder: Path, inside: str, *flags: str, host: str = HOST) -> Settings:
    (mounts := folder / "inside").write_text(inside)
    (outside := folder / "outside").write_text(host)
    return load(parser().parse_args(flags), {HOST_MOUNTS: str(outside)}, mounts=mounts)


@pytest.mark.parametrize(("path", "mount"), OWN.values(), ids=OWN)
def test_a_hold_file_that_nobody_else_can_make_is_refused(tmp_path: Path, path: str, mount: str) -> None:
    """Whatever gives the service that folder, the error names the mount and a place that everybody sees."""
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, f"{PLAIN}{mount}\n", f"--approval.hold-file={path}")
    (error,) = raised.value.errors
    point = mount.splitlines()[-1].split(" ")[4]
    assert error == (
        f"--approval.hold-file: expected a path outside of {point}, of which this service has its own, such as "
        f'"/etc/azure-scheduled-events-exporter/hold", found "{path}"'
    )


@pytest.mark.parametrize(("path", "mount"), THE_SAME.values(), ids=THE_SAME)
def test_a_hold_file_that_everybody_sees_is_taken(tmp_path: Path, path: str, mount: str) -> None:
    """The same place of the same file system is the same folder, by whatever mount: not even a warning."""
    assert loaded(tmp_path, f"{PLAIN}{mount}\n", f"--approval.hold-file={path}").warnings == ()


def test_links_are_followed_before_the_folder_above_is_gone_to(tmp_path: Path) -> None:
    """`..` behind a link is the folder above of where that leads to, as the system has it."""
    (tmp_path / "srv").mkdir()
    (own := tmp_path / "own" / "folder").mkdir(parents=True)
    (tmp_path / "srv" / "link").symlink_to(own)
    inside = f"{PLAIN}60 21 0:62 / {tmp_path.resolve()}/own rw - tmpfs tmpfs rw\n"
    with pytest.raises(ConfigError, match="of which this service has its own"):
        loaded(tmp_path, inside, f"--approval.hold-file={tmp_path}/srv/link/../hold")
    assert loaded(tmp_path, inside, f"--approval.hold-file={tmp_path}/srv/hold").warnings == ()


def test_a_root_that_is_mounted_on_nothing_is_found(tmp_path: Path) -> None:
    """A system that runs out of its initramfs has a root that is its own parent."""
    rootfs = "1 1 0:2 / / rw - rootfs rootfs rw\n"
    inside = f"{rootfs}60 1 0:62 / /srv rw - tmpfs tmpfs rw\n"
    with pytest.raises(ConfigError, match="of which this service has its own"):
        loaded(tmp_path, inside, "--approval.hold-file=/srv/hold", host=rootfs)


def test_where_its_own_mounts_are_not_told_tmp_is_warned_of(tmp_path: Path) -> None:
    """Without /proc nothing can be compared: as much is said as without the host's mounts."""
    (warning,) = loaded(tmp_path, "", "--approval.hold-file=/tmp/hold").warnings
    assert "of which a service may have its own" in warning


def test_ready_files_are_judged_alike(tmp_path: Path) -> None:
    """`require_file` of each rule, whose folder may have the event's id in its name."""
    (file := tmp_path / "agent.toml").write_text(
        """
[approval]
rules = [
  { name = "a", event_type = ["Reboot"], require_file = "/dev/ready/{event_id}" },
  { name = "b", event_type = ["Reboot"], require_file = "/run/app/ready/{event_id}" },
]
"""
    )
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, f"{PLAIN}{OWN['PrivateDevices'][1]}\n", f"--config.file={file}")
    (error,) = raised.value.errors
    assert 'rule "a": require_file: expected a path outside of /dev, ' in error
    assert '"/run/azure-scheduled-events-exporter/ready/{event_id}"' in error


@pytest.mark.parametrize("host", ["", "torn\n", "21 1 8:1\n"])
def test_without_the_hosts_mounts_that_is_said(tmp_path: Path, host: str) -> None:
    """An empty or torn file judges nothing: a warning says so, and a private /tmp is still known by its marks."""
    flag = "--approval.hold-file=/srv/app/hold"
    (warning,) = loaded(tmp_path, PLAIN, flag, host=host).warnings
    assert warning.startswith(
        f"{HOST_MOUNTS}: expected what is mounted outside of this service, found nothing of it in"
    )
    with pytest.raises(ConfigError, match="PrivateTmp"):
        loaded(
            tmp_path,
            f"{PLAIN}{OWN['PrivateTmp on the root file system'][1]}\n",
            "--approval.hold-file=/tmp/hold",
            host=host,
        )


def test_without_a_file_to_wait_for_nothing_is_said(tmp_path: Path) -> None:
    """No hold file, no `require_file`: no warning, also where the host's mounts are missing."""
    assert loaded(tmp_path, PLAIN, host="").warnings == ()


PARTS: Final = st.lists(st.sampled_from(["a", "b", "tmp"]), min_size=1, max_size=3)


@given(folder=PARTS, over=PARTS)
def test_a_file_system_of_its_own_hides_what_is_below_it_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, folder: list[str], over: list[str]
) -> None:
    """A tmpfs mounted over any folder makes exactly the hold files in it and below it unseen."""
    tmp_path = tmp_path_factory.mktemp("mounts")
    point, path = "/nowhere/" + "/".join(over), "/nowhere/" + "/".join(folder)
    inside = f"{PLAIN}60 21 0:62 / {point} rw - tmpfs tmpfs rw\n"
    if folder[: len(over)] == over:
        with pytest.raises(ConfigError):
            loaded(tmp_path, inside, f"--approval.hold-file={path}/hold")
    else:
        assert loaded(tmp_path, inside, f"--approval.hold-file={path}/hold").warnings == ()


def test_behind_a_real_mount_the_agent_ends(tmp_path: Path) -> None:
    """With a file system mounted over the folder in its own namespace, `check` ends with 2 and the sentence."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare to mount")
    (place := tmp_path / "place").mkdir()
    (host := tmp_path / "mounts").write_bytes(Path("/proc/self/mountinfo").read_bytes())
    trial = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs own {place} && exec "$@"', "sh"]
    if subprocess.run([*trial, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    agent = [sys.executable, "-m", "exporter", "check", f"--approval.hold-file={place}/hold"]
    for command, code in (([*trial, *agent], 2), (agent, 0)):
        environ = os.environ | {HOST_MOUNTS: str(host)}
        done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False, env=environ)
        sentence = f"--approval.hold-file: expected a path outside of {place}, of which this service has its own"
        assert (done.returncode, sentence in done.stderr) == (code, code == 2), done.stderr


KEPT_OUT: Final = """
import os, sys
from pathlib import Path
from exporter.config.load import load
from tests.support.configuration import parser

path, inside, outside = sys.argv[1:]
load(parser().parse_args([]), {})
if os.geteuid() == 0:
    os.seteuid(65534)
flags = parser().parse_args([f"--approval.hold-file={path}"])
print(*load(flags, {"HOST_MOUNTINFO": outside}, mounts=Path(inside)).warnings)
"""


def test_a_folder_that_the_service_is_kept_out_of_is_a_warning() -> None:
    """As ProtectHome= does it: what can't be looked at holds, so the agent starts, and says why it will hold."""
    with tempfile.TemporaryDirectory() as name:
        (closed := Path(name).resolve() / "home").mkdir(mode=0o000)
        Path(name).chmod(0o755)
        (inside := Path(name) / "inside").write_text(
            f"{PLAIN}60 21 0:23 /systemd/inaccessible/dir {closed} ro master:5 - tmpfs tmpfs rw\n"
        )
        (outside := Path(name) / "outside").write_text(HOST)
        command = [sys.executable, "-c", KEPT_OUT, f"{closed}/hold", str(inside), str(outside)]
        done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=True, cwd=ROOT)
    assert done.stdout.startswith(
        f"--approval.hold-file: expected a path outside of {closed}, which this service is kept"
    )
    assert done.stdout.endswith("a file that can't be looked for approves nothing\n")
