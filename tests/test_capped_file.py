"""Small files: read whole, and never more than they may hold."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from exporter.files import TooLarge, WrongEncoding, decoded, in_utf8, not_ascii, read_capped


def test_a_file_within_its_limit_is_read_whole(tmp_path: Path) -> None:
    """Up to the limit and no further."""
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_capped(path, 5) == read_capped(str(path), 6) == b"12345"
    with pytest.raises(TooLarge, match="more than 4 bytes"):
        read_capped(path, 4)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a file without an end")
def test_a_file_without_an_end_is_too_large() -> None:
    """A device is not read for ever."""
    with pytest.raises(TooLarge):
        read_capped("/dev/zero", 1 << 20)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """A missing file is an OSError, a path that is none a ValueError."""
    with pytest.raises(FileNotFoundError):
        read_capped(tmp_path / "missing", 1)
    with pytest.raises(ValueError, match="null"):
        read_capped("a\0b", 1)


TEXT = '[source]\r\nvm_name = "ä→日本😀"\r\n'
AS_SAVED = {
    "an editor of today": TEXT.encode(),
    "PowerShell's Set-Content -Encoding UTF8": codecs.BOM_UTF8 + TEXT.encode(),
    "PowerShell's >": codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
    "Notepad as Unicode big endian": codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
}


@pytest.mark.parametrize("saved_by", AS_SAVED)
def test_a_file_is_the_same_text_however_it_was_saved(saved_by: str) -> None:
    """UTF-8 with and without a byte order mark, and UTF-16 with one, are one text, without the mark."""
    assert decoded(AS_SAVED[saved_by]) == TEXT
    assert in_utf8(AS_SAVED[saved_by]) == TEXT.encode()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (TEXT.encode("utf-16-le"), "UTF-16 without a byte order mark"),
        (TEXT.encode("utf-16-be"), "UTF-16 without a byte order mark"),
        (codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"), "a NUL character"),
        (codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le")[:-1], "damaged at offset"),
        (codecs.BOM_UTF16_LE + b"\x00\xd8a\0", "damaged at offset"),
        ("schlüssel = 1".encode("cp1252"), "another byte at offset 4"),
        (b"abc\0", "a NUL character"),
    ],
)
def test_what_cannot_be_read_says_how_to_save_it(content: bytes, found: str) -> None:
    """The sentence names what was found and the command that writes what is read, and shows nothing of the text."""
    with pytest.raises(WrongEncoding) as caught:
        decoded(content)
    assert found in str(caught.value)
    assert "`Set-Content -Encoding UTF8`" in str(caught.value)
    assert "schl" not in str(caught.value)


def test_damage_can_be_kept_to_its_place() -> None:
    """A torn file in UTF-16 is read up to its end where that is asked for."""
    assert in_utf8(codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le")[:-1], "replace").decode() == TEXT[:-1] + "\ufffd"


def test_a_hole_at_the_beginning_is_not_taken_for_an_encoding() -> None:
    """After a power failure a file may begin with NULs: a recording is read behind them, and settings are refused."""
    torn = b"\0" * 100 + b"\n" + TEXT.encode()
    assert in_utf8(torn, "replace") == torn
    with pytest.raises(WrongEncoding, match="a NUL character"):
        decoded(torn)


@pytest.mark.parametrize("saved_by", AS_SAVED)
def test_a_library_of_ascii_is_not_given_what_it_overlooks(saved_by: str) -> None:
    """OpenSSL finds no certificate behind a byte order mark."""
    assert not_ascii(AS_SAVED[saved_by]).endswith("`Set-Content -Encoding Ascii`") == ("editor" not in saved_by)
