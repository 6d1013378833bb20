"""The command `simulate`: its flags and its output."""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from exporter.commands.simulate import add_arguments, services, simulate
from exporter.simulator.metadata import faults, scenario
from tests.support.factories import Clock
from tests.support.lines import rejoined
from tests.support.simulator_client import COMPUTE, EVENTS, METADATA, START, ask, playing


def arguments(*words: str) -> argparse.Namespace:
    """Return the flags as the command line gives them."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_simulate_prints_a_line_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    """The address comes first, then one line for each change; the command ends with the scenario."""
    assert simulate(arguments("--scenario", "host-failure", "--speed", "2000", "--listen", "127.0.0.1:0", "--end")) == 0
    first, *lines = rejoined(capsys.readouterr().out).splitlines()
    assert re.fullmatch(r"listening on http://127\.0\.0\.1:[0-9]+", first)
    numbers = [match[1] for line in lines if (match := re.search(r"incarnation ([0-9]+):", line))]
    assert numbers == ["1", "2", "3"]
    assert all(re.match(r"[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]Z incarnation ", line) for line in lines[1:])
    assert "Reboot Started for vm-1, vm-2" in "".join(lines)


def test_simulate_serves_several_vms_at_once() -> None:
    """Each VM has its own address and name; the others see an approval of one of them."""
    vms = ("web_0", "web_1", "web_2")
    command = [sys.executable, "-m", "exporter", "simulate", "--listen", "127.0.0.1:0", "--speed", "0.01"]
    with subprocess.Popen(
        [*command, *(word for vm in vms for word in ("--vm", vm))], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        matches = [re.fullmatch(r"listening on (http://127\.0\.0\.1:[0-9]+) as (\S+)\n", line) for line in lines[:3]]
        urls = {match[2]: match[1] for match in matches if match}
        assert tuple(urls) == vms
        assert lines[3].startswith("scenario demo as web_0, web_1, web_2, speed 0.01")
        names = [
            httpx.get(f"{url}{COMPUTE}", headers=METADATA, trust_env=False).json()["name"] for url in urls.values()
        ]
        assert tuple(names) == vms
        answer = httpx.post(f"{urls['web_1']}{EVENTS}", headers=METADATA, content=b"{}", trust_env=False)
        assert answer.status_code == 400
        shown = next(line for line in process.stdout if "POST" in line)
        process.terminate()
    assert " POST by web_1 for a malformed body: 400" in shown


def test_simulate_shares_one_platform_between_its_vms() -> None:
    """An approval by one VM starts the event for all of them."""
    with ExitStack() as stack:
        words = ("--listen", "127.0.0.1:0", "--scenario", "live-migration", "--vm", "WestNO_0", "--vm", "WestNO_1")
        first, second = services(arguments(*words), scenario.load("live-migration"), stack)
        first.start()
        second.start()
        assert first.platform is second.platform
        assert [service.vm.name for service in (first, second)] == ["WestNO_0", "WestNO_1"]
        assert ask(first).json == ask(second).json


def test_simulate_listens_on_consecutive_ports_or_on_none() -> None:
    """The second VM is served on the next port; if it is in use, the error has the address, and no port stays open."""
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        words = ("--listen", f"127.0.0.1:{taken - 1}", "--scenario", "live-migration")
        with pytest.raises(OSError, match=f"127.0.0.1:{taken}|127.0.0.1:{taken - 1}"):
            services(arguments(*words, "--vm", "WestNO_0", "--vm", "WestNO_1"), scenario.load("live-migration"), stack)


def test_simulate_list_has_every_scenario_and_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(arguments("--list")) == 0
    out = capsys.readouterr().out
    assert all(f"  {name}" in out for name in (*scenario.names(), *faults.KINDS))


def test_simulate_exits_with_2_for_bad_usage_and_with_1_for_a_port_in_use(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The error is explained."""
    for words in (
        ["--scenario", "nothing"],
        ["--vm", "stranger"],
        ["--fault", "nonsense"],
        ["--scenario", str(tmp_path)],
    ):
        assert simulate(arguments("--listen", "127.0.0.1:0", *words)) == 2
        assert repr(words[1])[1:-1] in capsys.readouterr().err
    for words in (
        ["--listen", "8169"],
        ["--listen", "127.0.0.1:70000"],
        ["--listen", "::1:80"],
        ["--speed", "0"],
        ["--repeat", "--end"],
    ):
        with pytest.raises(SystemExit) as exit_info:
            arguments(*words)
        assert exit_info.value.code == 2
    with playing("quiet", Clock(START)) as service:
        address = urlsplit(service.url).netloc
        assert simulate(arguments("--listen", address)) == 1
        assert f"--listen {address}: " in capsys.readouterr().err


def test_simulate_as_json_prints_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Address, scenario, and each document as a client gets it; also with `--list`."""
    words = ("--scenario", "host-failure", "--speed", "2000", "--listen", "127.0.0.1:0", "--end", "--format", "json")
    assert simulate(arguments(*words)) == 0
    recorded = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["kind"] for each in recorded] == ["listening", "scenario", *["document"] * 3]
    assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+", recorded[0]["url"])
    assert (recorded[0]["vm"], recorded[1]["vms"], recorded[1]["name"]) == ("vm-1", ["vm-1"], "host-failure")
    documents = [each["document"] for each in recorded[2:]]
    assert [document["DocumentIncarnation"] for document in documents] == [1, 2, 3]
    assert documents[1]["Events"][0]["EventStatus"] == "Started"
    assert simulate(arguments("--list", "--format", "json")) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"kind": "fault", "name": "slow", "argument": 2, "description": faults.KINDS["slow"].does} in listed
    assert [each["name"] for each in listed if each["kind"] == "scenario"] == list(scenario.names())


def test_simulate_as_json_prints_each_approval() -> None:
    """With the VM that sent it and its status; also a malformed one."""
    command = [sys.executable, "-m", "exporter", "simulate", "--listen", "127.0.0.1:0", "--speed", "0.01"]
    with subprocess.Popen([*command, "--format=json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        httpx.post(f"{url}{EVENTS}", headers=METADATA, content=b"{}", trust_env=False)
        posts = (json.loads(line) for line in process.stdout)
        found = next(each for each in posts if each["kind"] == "post")
        process.terminate()
    assert (found["vm"], found["event_ids"], found["status"]) == ("web_0", [], 400)
