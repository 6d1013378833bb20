"""Small files that people write: read whole, and never more than they may hold."""

from __future__ import annotations

import os


class TooLarge(Exception):
    """The file holds more than it may."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} bytes")


def read_capped(path: str | os.PathLike[str], limit: int) -> bytes:
    """The content of a file of at most `limit` bytes. Raises `TooLarge`, OSError, or ValueError for an unusable path.

    One byte more than allowed is read and no further: what `path` names may be a device without an end.
    """
    with open(path, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise TooLarge(limit)
    return content
