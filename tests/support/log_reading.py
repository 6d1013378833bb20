"""Read a log's output, once its thread has written it."""

from __future__ import annotations

import gc
import io
import weakref
from typing import Any, Final

from exporter.log.log import Log
from tests.support.peers import until

PATIENCE: Final = 60.0
"""Seconds: output that is immediate on an idle machine has been written after this time on any machine."""


def logged(log: Log, stream: io.StringIO) -> str:
    """Return all lines that `log` wrote to `stream` so far."""
    assert log.flush(PATIENCE)
    return stream.getvalue()


def wait_until_gone(held: weakref.ref[Any]) -> None:
    """Return when the object has been freed; fail if a reference remains."""

    def is_gone() -> bool:
        gc.collect()
        return held() is None

    until(is_gone)
