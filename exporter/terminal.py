"""Where the commands for people print: whether it takes colour, and that it takes any text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO


def supports_colour(out: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether to colour: only a terminal that understands it, and never where NO_COLOR is set (no-color.org)."""
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb" or not out.isatty():
        return False
    return os.name != "nt" or bool(environ.get("WT_SESSION") or environ.get("TERM"))


def writable(out: TextIO) -> TextIO:
    """The same stream, made able to print any text: what its encoding lacks (a Windows console's, say) is escaped."""
    reconfigure = getattr(out, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    return out
