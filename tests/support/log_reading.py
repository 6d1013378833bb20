"""Reading what a log wrote, once its thread has written it."""

from __future__ import annotations

import gc
import io
import weakref
from typing import Any, Final

from exporter.log.log import Log
from tests.support.peers import until

PATIENCE: Final = 60.0
"""Seconds: what is written at once on an idle machine has been written then on any."""


def logged(log: Log, stream: io.StringIO) -> str:
    """All lines that `log` wrote to `stream` so far."""
    assert log.flush(PATIENCE)
    return stream.getvalue()


def wait_until_gone(held: weakref.ref[Any]) -> None:
    """Returns when nobody holds it any more; fails when somebody goes on to."""

    def is_gone() -> bool:
        gc.collect()
        return held() is None

    until(is_gone)
