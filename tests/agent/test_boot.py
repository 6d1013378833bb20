"""The boot id: from where each system has it, and none where that is in doubt."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from exporter.agent.boot import boot_id, is_same_boot
from exporter.windows.system import shared_page

LENGTH = 0x2C8


def page(boot: int = 7, build: int = 20348, major: int = 10) -> bytes:
    """The beginning of KUSER_SHARED_DATA; everything in it that is not the boot's number changes all the time."""
    content = bytearray(b"\xa5" * LENGTH)
    for offset, number in ((0x260, build), (0x26C, major), (0x2C4, boot)):
        struct.pack_into("<I", content, offset, number)
    return bytes(content)


def on_windows(content: bytes) -> str:
    return boot_id("win32", Path("/nowhere"), lambda: content)


def test_windows_has_the_number_of_its_boot() -> None:
    """The loader's counter: the same for the whole of a boot, another one after the next, also on a checked build."""
    assert on_windows(page(7)) == on_windows(page(7, build=20348 | 0xF0000000)) == "windows-7"
    assert on_windows(page(8)) == "windows-8"


def test_what_else_the_page_holds_changes_nothing() -> None:
    """The page has the time of day and the ticks since the boot, which move: two readings of one boot are equal."""
    assert on_windows(page(7)) == on_windows(page(7)[:0x14] + bytes(12) + page(7)[0x20:])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(page(0), id="nobody counted"),
        pytest.param(page(7, build=10586), id="a version before there was a number"),
        pytest.param(page(7, build=9600, major=6), id="Windows Server 2012 R2"),
        pytest.param(page(7)[:-1], id="cut off"),
        pytest.param(b"", id="empty"),
    ],
)
def test_in_doubt_windows_has_no_id(content: bytes) -> None:
    """No id is no evidence; a wrong one would be a reboot that was not."""
    assert on_windows(content) == ""


def test_a_page_that_cant_be_read_is_no_id() -> None:
    def unreadable() -> bytes:
        raise OSError("no such page")

    assert boot_id("win32", Path("/nowhere"), unreadable) == ""


def test_linux_has_it_in_a_file(tmp_path: Path) -> None:
    """Its content without the end of the line; a missing or unreadable one is no id."""
    (tmp_path / "boot_id").write_text("0b2c7b5f-5d5b-4b39-9d38-dd3b8f6a1f4e\n")
    assert boot_id("linux", tmp_path / "boot_id") == "0b2c7b5f-5d5b-4b39-9d38-dd3b8f6a1f4e"
    (tmp_path / "boot_id").write_bytes(b"\xff")
    assert boot_id("linux", tmp_path / "boot_id") == ""
    assert boot_id("linux", tmp_path / "missing") == ""


def test_this_boot_has_one_id() -> None:
    """Read twice it is the same, whatever system this is."""
    assert boot_id() == boot_id()


@pytest.mark.parametrize("boot", ["", "windows-7", "boot", "00000000-0000-0000-0000-000000000000"])
def test_only_a_random_id_proves_the_same_boot(boot: str) -> None:
    """Two machines can have the same count, and the same nothing."""
    drawn = "0b2c7b5f-5d5b-4b39-9d38-dd3b8f6a1f4e"
    assert is_same_boot(drawn, drawn)
    assert not is_same_boot(boot, boot)
    assert not is_same_boot(drawn, boot)
    assert not is_same_boot(drawn, "57fb6e2e-93e5-4ba6-9a4c-3b9c9e3d4b0d")


@pytest.mark.windows
def test_the_real_page_is_laid_out_as_expected() -> None:
    """It says the version that the system says by other means."""
    if sys.platform == "win32":
        content = shared_page()
        version = sys.getwindowsversion()
        major, minor = struct.unpack_from("<II", content, 0x26C)
        assert (major, minor) == (version.major, version.minor)
        assert struct.unpack_from("<I", content, 0x260)[0] & 0x0FFFFFFF == version.build


@pytest.mark.windows
@pytest.mark.not_wine("its loader counts no boots")
def test_a_real_boot_has_a_number() -> None:
    assert boot_id().startswith("windows-")


@pytest.mark.linux("reads the address of a page that Linux does not have")
def test_elsewhere_the_page_is_not_looked_for() -> None:
    with pytest.raises(OSError, match="not Windows"):
        shared_page()
