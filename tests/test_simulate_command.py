"""The command `simulate`: what a person types, and what is printed."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from exporter.simulator import faults, scenario
from exporter.simulator.command import add_arguments, simulate
from tests.simulator_client import Clock, playing


def arguments(*words: str) -> argparse.Namespace:
    """The flags as the command line would give them."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_simulate_tells_the_story_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The command says where it listens first, then one line for each change, and ends with the story."""
    assert simulate(arguments("--scenario", "host-failure", "--speed", "2000", "--listen", "127.0.0.1:0", "--end")) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"listening on http://127\.0\.0\.1:[0-9]+", first)
    numbers = [match[1] for line in lines if (match := re.search(r"incarnation ([0-9]+):", line))]
    assert numbers == ["1", "2", "3"]
    assert "Reboot Started for vm-1,vm-2" in "".join(lines)


def test_simulate_list_names_every_scenario_and_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` shows all there is to choose from."""
    assert simulate(arguments("--list")) == 0
    out = capsys.readouterr().out
    assert all(f"  {name}" in out for name in (*scenario.names(), *faults.KINDS))


def test_simulate_answers_bad_usage_with_2_and_a_taken_port_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What the person got wrong is named in a sentence."""
    for words in (
        ["--scenario", "nothing"],
        ["--vm", "stranger"],
        ["--fault", "nonsense"],
        ["--scenario", str(tmp_path)],
    ):
        assert simulate(arguments("--listen", "127.0.0.1:0", *words)) == 2
        assert words[1] in capsys.readouterr().err
    for words in (["--listen", "8169"], ["--listen", "127.0.0.1:70000"], ["--speed", "0"], ["--repeat", "--end"]):
        with pytest.raises(SystemExit) as exit_info:
            arguments(*words)
        assert exit_info.value.code == 2
    with playing("quiet", Clock()) as service:
        assert simulate(arguments("--listen", urlsplit(service.url).netloc)) == 1
        assert "in use" in capsys.readouterr().err
