"""Stops of a command from outside, in the process itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from exporter.commands.stops import interrupted_on_stop, left_on_stop, on_stop, stop_by
from tests.support.peers import until


@pytest.mark.linux("sends itself signals, which there would end it")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_calls_stop_on_a_separate_thread(name: str) -> None:
    """The main thread can hold any lock when a signal arrives; afterwards the earlier handler is restored."""
    number = signal.Signals[name]
    before = signal.getsignal(number)
    threads: list[int] = []
    stopped = threading.Event()

    def stop() -> None:
        threads.append(threading.get_ident())
        stopped.set()

    with on_stop(stop):
        os.kill(os.getpid(), number)
        assert stopped.wait(10)
    assert threads[0] != threading.get_ident()
    assert signal.getsignal(number) is before


def processor_ticks(pid: int) -> int:
    """Return the processor time of the process so far, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.linux("sends signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_calls_stop_while_the_main_thread_never_returns(name: str) -> None:
    """Python's handlers would wait for it: here it computes for hours, as it could wait for a disk."""
    code = "import hashlib, os; from exporter.commands.stops import stop_by; stop_by(lambda: os._exit(7)); "
    code += "print('ready', flush=True); hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before = processor_ticks(process.pid)
        until(lambda: processor_ticks(process.pid) > before + 5, every=0.01)
        process.send_signal(signal.Signals[name])
        try:
            assert process.wait(30) == 7
        finally:
            process.kill()


@pytest.mark.linux("sends itself signals, which there would end it")
def test_sigterm_interrupts_as_ctrl_c_does() -> None:
    """For a command that waits in many places."""
    before = signal.getsignal(signal.SIGTERM)

    def wait() -> None:
        with interrupted_on_stop():
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(10)

    with pytest.raises(KeyboardInterrupt):
        wait()
    assert signal.getsignal(signal.SIGTERM) is before


def test_stops_can_be_watched_from_another_thread() -> None:
    """Python allows no handlers there: nothing is changed, and nothing raised."""
    before = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    failures: list[BaseException] = []

    def work() -> None:
        try:
            stop_by(lambda: None)()
            with interrupted_on_stop(), left_on_stop():
                pass
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert failures == []
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == before


def test_import_loads_nothing_of_windows() -> None:
    """pywin32 is imported only by the functions that use it."""
    code = "import sys, exporter.commands.stops; print(any(name.startswith('win32') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
