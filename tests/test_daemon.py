"""Calls on daemon threads: the caller gets their result or exception in time, or abandons them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from exporter.daemon import DaemonCall, in_thread


def fails() -> None:
    raise LookupError("mine")


def test_a_call_returns_raises_or_is_abandoned() -> None:
    """The thread is a daemon, and an abandoned one still ends by itself."""
    go = threading.Event()
    call = DaemonCall(lambda: go.wait(60), "waits")
    assert call.thread.daemon
    with pytest.raises(TimeoutError):
        call.result(0.01)
    assert not call.cancel()
    go.set()
    assert call.result(60)
    with pytest.raises(LookupError, match="mine"):
        DaemonCall(fails, "fails").result(60)


def test_a_loop_awaits_a_call_and_may_close_before_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised or logged if the loop has closed."""
    go = threading.Event()

    async def calls() -> None:
        assert await in_thread(lambda: 5, "returns") == 5
        with pytest.raises(LookupError, match="mine"):
            await in_thread(fails, "fails")
        in_thread(lambda: go.wait(60), "late").add_done_callback(lambda _: None)

    asyncio.run(calls())
    late = next(thread for thread in threading.enumerate() if thread.name == "late")
    go.set()
    late.join(60)
    assert not late.is_alive()
    assert not caplog.records
