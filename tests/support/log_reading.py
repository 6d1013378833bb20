"""Reading what a log wrote, once its thread has written it."""

from __future__ import annotations

import io
from typing import Final

from exporter.log.log import Log

PATIENCE: Final = 60.0
"""Seconds: what is written at once on an idle machine has been written then on any."""


def logged(log: Log, stream: io.StringIO) -> str:
    """All lines that `log` wrote to `stream` so far."""
    assert log.flush(PATIENCE)
    return stream.getvalue()
