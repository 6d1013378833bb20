"""Small files: read whole, and never more than they may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.capped_file import TooLarge, read_capped


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
