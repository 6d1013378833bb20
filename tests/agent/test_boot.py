"""The boot id of each system, and no id in case of doubt."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from exporter.agent.boot import boot_id, is_same_boot
from exporter.windows.system import shared_page

LENGTH = 0x2C8


def page(boot: int = 7, build: int = 20348, major: int = 10) -> bytes:
    """The beginning of KUSER_SHARED_DATA; everything in it changes except for the number of the boot."""
    content = bytearray(b"\xa5" * LENGTH)
    for offset, number in ((0x260, build), (0x26C, major), (0x2C4, boot)):
        struct.pack_into("<I", content, offset, number)
    return bytes(content)


def on_windows(content: bytes) -> str:
    return boot_id("win32", Path("/nowhere"), lambda: content)


def test_windows_id_is_the_boot_count() -> None:
    """It changes only with a boot, also on a checked build."""
    assert on_windows(page(7)) == on_windows(page(7, build=20348 | 0xF0000000)) == "windows-7"
    assert on_windows(page(8)) == "windows-8"


def test_other_fields_of_the_page_do_not_change_the_id() -> None:
    """The time of day and the ticks since the boot change."""
    assert on_windows(page(7)) == on_windows(page(7)[:0x14] + bytes(12) + page(7)[0x20:])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(page(0), id="boots not counted"),
        pytest.param(page(7, build=10586), id="version without a boot count"),
        pytest.param(page(7, build=9600, major=6), id="Windows Server 2012 R2"),
        pytest.param(page(7)[:-1], id="cut off"),
        pytest.param(b"", id="empty"),
    ],
)
def test_doubtful_page_results_in_no_id(content: bytes) -> None:
    """A wrong id would be evidence of a reboot that did not happen."""
    assert on_windows(content) == ""


def test_unreadable_page_results_in_no_id() -> None:
    def unreadable() -> bytes:
        raise OSError("no such page")

    assert boot_id("win32", Path("/nowhere"), unreadable) == ""


def test_linux_id_is_read_from_a_file(tmp_path: Path) -> None:
    """Without its line ending; a missing or unreadable file results in no id."""
    (tmp_path / "boot_id").write_text("0b2c7b5f-5d5b-4b39-9d38-dd3b8f6a1f4e\n")
    assert boot_id("linux", tmp_path / "boot_id") == "0b2c7b5f-5d5b-4b39-9d38-dd3b8f6a1f4e"
    (tmp_path / "boot_id").write_bytes(b"\xff")
    assert boot_id("linux", tmp_path / "boot_id") == ""
    assert boot_id("linux", tmp_path / "missing") == ""


def test_id_is_the_same_when_read_twice() -> None:
    assert boot_id() == boot_id()


@pytest.mark.parametrize("boot", ["", "windows-7", "boot", "00000000-0000-0000-0000-000000000000"])
def test_only_a_random_id_proves_the_same_boot(boot: str) -> None:
    """Two machines can have the same boot count, or both no id."""
    drawn = "0b2c7b5f-5d5b-4b39-9d38-dd3b8f6a1f4e"
    assert is_same_boot(drawn, drawn)
    assert not is_same_boot(boot, boot)
    assert not is_same_boot(drawn, boot)
    assert not is_same_boot(drawn, "57fb6e2e-93e5-4ba6-9a4c-3b9c9e3d4b0d")


@pytest.mark.windows
def test_real_page_has_the_expected_layout() -> None:
    """It contains the version that the system reports by other means."""
    if sys.platform == "win32":
        content = shared_page()
        version = sys.getwindowsversion()
        major, minor = struct.unpack_from("<II", content, 0x26C)
        assert (major, minor) == (version.major, version.minor)
        assert struct.unpack_from("<I", content, 0x260)[0] & 0x0FFFFFFF == version.build


@pytest.mark.windows
@pytest.mark.not_wine("its loader does not count boots")
def test_real_boot_has_an_id() -> None:
    assert boot_id().startswith("windows-")


@pytest.mark.linux("reads the address of a page that Linux does not have")
def test_page_is_read_on_windows_only() -> None:
    with pytest.raises(OSError, match="not Windows"):
        shared_page()
