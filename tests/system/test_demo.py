"""The command `demo` as a person starts it: what it answers to a mistake, and how it ends when it is broken off."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys

import pytest

DEMO = (sys.executable, "-m", "exporter", "demo")


def demo(*flags: str) -> subprocess.CompletedProcess[str]:
    """The command to its end."""
    return subprocess.run([*DEMO, *flags], text=True, capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--speed", "0"), "expected a number from 0.001"),
        (("--speed", "fast"), "expected a number from 0.001"),
        (("--web.listen-address", "foo"), '"foo" is no listen address'),
        (("--scenario", "nothing"), "no scenario 'nothing'"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(flags: tuple[str, ...], said: str) -> None:
    """A value that can't be is named, with exit code 2."""
    answer = demo(*flags)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


def test_an_address_that_is_taken_is_said() -> None:
    """An address that was asked for and can't be had ends the demo with a sentence and exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        answer = demo("--web.listen-address", address)
    assert answer.returncode == 1
    assert f"demo: cannot listen on {address}" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_address_that_is_told_is_the_one_that_answers() -> None:
    """Asked to listen elsewhere, the demo shows and scrapes that address."""
    answer = demo("--web.listen-address", "127.0.0.2:0", "--speed", "20")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert re.search(r"Metrics http://127\.0\.0\.2:[0-9]+/metrics", answer.stdout)
    assert "Every record arrived in every output" in answer.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to send")
def test_a_story_that_is_broken_off_does_not_wait_for_its_end() -> None:
    """Interrupted while an event is on, the demo sums up what there is, and does not wait for the event to be gone."""
    with subprocess.Popen(
        [*DEMO, "--scenario", "host-failure", "--speed", "40", "--web.listen-address", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if " started " in line:
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(60) == 0, rest
    assert "Every record arrived in every output" in rest
    assert " completed " not in rest
