"""Small files that people write: read whole, never more than they may hold, in each encoding that an editor gives them.

    decoded(read_capped(path, limit))        the text
    not_ascii(read_capped(path, limit))      for a file that a library reads, and takes for nothing but ASCII

PowerShell 5 writes UTF-16 with a byte order mark where output is redirected (`>`, `Out-File`), and UTF-8 with one where
`-Encoding UTF8` is given [about_Character_Encoding]. Both are read. What arrives over the network is none of this.
"""

from __future__ import annotations

import codecs
import errno
import os
from collections.abc import Callable
from typing import Final

from exporter.ownership import fault_of

_UTF16_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_HOW_TO_SAVE: Final = "save it as UTF-8, in PowerShell with `Set-Content -Encoding UTF8`"


class TooLarge(Exception):
    """The file holds more than it may."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} bytes")


class WrongEncoding(Exception):
    """The file's text can't be read. The message says what was expected and found, and shows nothing of the text."""


def read_trusted(path: str | os.PathLike[str], limit: int) -> bytes:
    """As `read_capped`, for settings and secrets: also raises PermissionError if the file is another user's."""
    return read_capped(path, limit, _refuse_foreign)


def _refuse_foreign(status: os.stat_result) -> None:
    if fault := fault_of(status):
        raise PermissionError(errno.EPERM, fault)


def read_capped(
    path: str | os.PathLike[str], limit: int, refuse: Callable[[os.stat_result], None] = lambda _: None
) -> bytes:
    """The content of a file of at most `limit` bytes. Raises `TooLarge`, OSError, or ValueError for an unusable path.

    One byte more than allowed is read and no further: what `path` names may be a device without an end. `refuse` raises
    OSError for a file that is not to be read.
    """
    try:
        with open(path, "rb") as file:
            refuse(os.fstat(file.fileno()))
            content = file.read(limit + 1)
    except PermissionError:
        if os.path.isdir(path):  # Windows says no more of a folder than that it may not be opened
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path)) from None
        raise
    if len(content) > limit:
        raise TooLarge(limit)
    return content


def decoded(content: bytes) -> str:
    """The text of a file, without a byte order mark. Raises `WrongEncoding`.

    It is UTF-8, or UTF-16 with a mark.
    """
    try:
        text = in_utf8(content).decode("utf-8")
    except UnicodeDecodeError as error:
        raise WrongEncoding(f"expected UTF-8, found another byte at offset {error.start}; {_HOW_TO_SAVE}") from None
    if "\0" in text:
        raise WrongEncoding(f"expected text, found a NUL character; {_HOW_TO_SAVE}")
    return text


def in_utf8(content: bytes, errors: str = "strict") -> bytes:
    """The same text in UTF-8 without a byte order mark; what has no mark is returned as it is.

    `errors` is what becomes of damaged UTF-16, as for `bytes.decode`. Raises `WrongEncoding` for it, and for UTF-16
    without a mark, where every second byte of ASCII text is NUL.
    """
    if content.startswith(codecs.BOM_UTF8):
        return content.removeprefix(codecs.BOM_UTF8)
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise WrongEncoding(f"expected UTF-8, found UTF-32; {_HOW_TO_SAVE}")
    if content.startswith(_UTF16_MARKS):
        try:
            return content.decode("utf-16", errors).encode("utf-8", "replace")
        except UnicodeDecodeError as error:
            raise WrongEncoding(
                f"expected UTF-8, found UTF-16 that is damaged at offset {error.start}; {_HOW_TO_SAVE}"
            ) from None
    if _is_utf16_without_mark(content):
        raise WrongEncoding(f"expected UTF-8, found UTF-16 without a byte order mark; {_HOW_TO_SAVE}")
    return content


def _is_utf16_without_mark(content: bytes) -> bool:
    """Whether one of the first two bytes is NUL. Both are in the hole that a power failure leaves in a file."""
    return content[:2].count(0) == 1


def not_ascii(content: bytes) -> str:
    """Why a library that reads ASCII alone finds nothing in this file: an end for a sentence, "" where it would."""
    if content.startswith(codecs.BOM_UTF8):
        found = "a byte order mark"
    elif content.startswith(_UTF16_MARKS) or _is_utf16_without_mark(content):
        found = "UTF-16"
    else:
        return ""
    return f"expected ASCII, found {found}; in PowerShell save it with `Set-Content -Encoding Ascii`"
