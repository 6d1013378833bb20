"""Small files are read whole, and never beyond their limit."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from exporter.files import TooLarge, WrongEncoding, decoded, in_utf8, not_ascii, read_capped


def test_a_file_within_its_limit_is_read_whole(tmp_path: Path) -> None:
    """Up to the limit, and no further."""
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_capped(path, 5) == read_capped(str(path), 6) == b"12345"
    with pytest.raises(TooLarge, match="more than 4 bytes"):
        read_capped(path, 4)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a file without an end")
def test_a_device_is_too_large() -> None:
    """Reading a device ends."""
    with pytest.raises(TooLarge):
        read_capped("/dev/zero", 1 << 20)


def test_unreadable_files_raise_an_error(tmp_path: Path) -> None:
    """A missing file is an OSError, an invalid path a ValueError."""
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
def test_supported_encodings_give_the_same_text(saved_by: str) -> None:
    """UTF-8 with and without a byte order mark, and UTF-16 with one, give the same text, without the mark."""
    assert decoded(AS_SAVED[saved_by]) == TEXT
    assert in_utf8(AS_SAVED[saved_by]) == TEXT.encode()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (TEXT.encode("utf-16-le"), "UTF-16 without a byte order mark"),
        (TEXT.encode("utf-16-be"), "UTF-16 without a byte order mark"),
        (codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"), "a NUL character"),
        (codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le")[:-1], "found damaged UTF-16 at offset"),
        (codecs.BOM_UTF16_LE + b"\x00\xd8a\0", "found damaged UTF-16 at offset"),
        ("schlüssel = 1".encode("cp1252"), "an invalid byte at offset 4"),
        (b"abc\0", "a NUL character"),
    ],
)
def test_an_unreadable_encoding_is_reported_with_a_fix(content: bytes, found: str) -> None:
    """The error has what was found and a command that saves a readable file, and quotes nothing of the text."""
    with pytest.raises(WrongEncoding) as caught:
        decoded(content)
    assert found in str(caught.value)
    assert "`Set-Content -Encoding UTF8`" in str(caught.value)
    assert "schl" not in str(caught.value)


def test_damaged_text_can_be_read_partly() -> None:
    """A truncated UTF-16 file is read up to its end on request."""
    assert in_utf8(codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le")[:-1], "replace").decode() == TEXT[:-1] + "\ufffd"


def test_nuls_at_the_beginning_are_not_read_as_an_encoding() -> None:
    """After a power failure a file may begin with NULs: a recording is read after them, and settings are rejected."""
    torn = b"\0" * 100 + b"\n" + TEXT.encode()
    assert in_utf8(torn, "replace") == torn
    with pytest.raises(WrongEncoding, match="a NUL character"):
        decoded(torn)


@pytest.mark.parametrize("saved_by", AS_SAVED)
def test_encodings_that_openssl_cannot_read_are_reported(saved_by: str) -> None:
    """OpenSSL finds no certificate after a byte order mark."""
    assert not_ascii(AS_SAVED[saved_by]).endswith("`Set-Content -Encoding Ascii`") == ("editor" not in saved_by)
