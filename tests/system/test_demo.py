"""The command `demo` as a process: its errors for wrong flags, and its end when it is interrupted."""

from __future__ import annotations

import re
import socket
import subprocess
import sys

import pytest

from tests.support.systems import OWN_CONSOLE, terminate

DEMO = (sys.executable, "-m", "exporter", "demo")


def demo(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run([*DEMO, *flags], text=True, capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--speed", "0"), "expected a number from 0.001"),
        (("--speed", "fast"), "expected a number from 0.001"),
        (("--listen", "foo"), 'expected "host:port"'),
        (("--scenario", "nothing"), "no scenario 'nothing'"),
    ],
)
def test_wrong_flags_end_with_an_error_and_exit_code_2(flags: tuple[str, ...], sentence: str) -> None:
    """The error names the wrong value, without a traceback."""
    result = demo(*flags)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_an_address_in_use_ends_with_an_error_and_exit_code_1() -> None:
    """The error names the requested address, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = demo("--listen", address)
    assert result.returncode == 1
    assert f"demo: cannot listen on {address}" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_printed_address_is_the_one_that_answers() -> None:
    """With another listen address, the demo prints and scrapes that one."""
    result = demo("--listen", "127.0.0.2:0", "--speed", "20")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"Metrics: http://127\.0\.0\.2:[0-9]+/metrics", result.stdout)
    assert "Every record arrived in every output" in result.stdout


def test_an_interrupted_demo_does_not_wait_for_the_end_of_the_scenario() -> None:
    """Interrupted while an event is Started, the demo prints its summary without waiting for the event's end."""
    with subprocess.Popen(
        [*DEMO, "--scenario", "host-failure", "--speed", "40", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        creationflags=OWN_CONSOLE,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if " started " in line:
                break
        terminate(process)
        rest = process.stdout.read()
        assert process.wait(60) == 0, rest
    assert "Every record arrived in every output" in rest
    assert " completed " not in rest
