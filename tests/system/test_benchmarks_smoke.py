"""The benchmarks run. They print what they measure; no figure is asserted here."""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import costs, gate, memory_profile, rules
from benchmarks import panels as measured_panels
from benchmarks.agent import Agent, metadata_service
from benchmarks.drain import backlog, far, fill
from benchmarks.fleet import ANNOUNCED_AFTER, Fleet, fleet_scenario, name
from benchmarks.growth import MIB
from benchmarks.latency_proxy import LatencyProxy
from benchmarks.peers import Peers
from benchmarks.reaction import of_agent, of_baseline
from benchmarks.usage import usage
from exporter.outbox.store import Outbox
from tests.support.dashboards_environment import RULES, load, panels


def test_reactions_are_measured_for_the_agent_and_the_baseline() -> None:
    """Each change gives one time, for both kinds of reader."""
    assert len(of_baseline(2)) == 2
    assert len(of_agent(2, outputs=False)) == 2
    assert len(of_agent(2, outputs=False, event_files=True)) == 2


@pytest.mark.parametrize("closed", [False, True])
def test_the_gate_and_the_health_page_are_measured(closed: bool) -> None:
    """Each way to ask gives one time for each answer, with the gate open and closed."""
    for times in gate.of_agent(2, 1, closed=closed).values():
        assert {len(found) for found in times.values()} in ({2}, {1})


def test_only_the_leader_of_a_fleet_approves_and_its_successor_after_its_death(tmp_path: Path) -> None:
    """The fleet of the benchmarks is real: one POST, by the first VM alive, not before its turn."""
    scenario = fleet_scenario(5, 1, shared=True)
    for dead, first, earliest in (((), 0, 0.0), ((0, 1), 2, 10.0)):
        folder = tmp_path / name(first)
        folder.mkdir()
        fleet = Fleet(folder, scenario, takeover_after=5.0, dead=dead)
        fleet.run(16)
        fleet.close()
        ((at, vm, _),) = fleet.platform.posts
        assert vm == name(first)
        assert at - ANNOUNCED_AFTER >= earliest


def test_the_cost_of_a_scrape_is_read_from_a_real_agent() -> None:
    """Its series and bytes are those of the response that Prometheus gets."""
    with costs.running(outputs=False, settle=0.1) as (agent, _, _):
        found, body = costs.scrape(agent.url)
        assert len(body) == found.gzip < found.plain
        assert 100 < found.series <= 250


def test_the_peers_of_the_benchmarks_answer_and_end() -> None:
    """The process that simulates both destinations starts, reports what it received, and ends."""
    with Peers() as peers:
        assert peers.copies() == ({}, {})
        assert peers.ask("received") == {"bodies": [], "open": 0, "connections": 0}
        assert usage(peers.pid).rss > 0


def test_a_backlog_is_filled_as_the_agent_would(tmp_path: Path) -> None:
    """All records of a backlog wait in the outbox, in order."""
    path = tmp_path / "outbox.db"
    fill(path, "otlp", 12)
    outbox = Outbox(path, 1 << 20, ("otlp",))
    outbox.release()
    assert outbox.queues()["otlp"].records == 12
    assert [queued.record.id for queued in outbox.next("otlp", 5)] == [record.id for record in backlog(5)]
    outbox.close()


def test_a_backlog_drains_over_a_slow_connection() -> None:
    """Both destinations accept all of it through the proxy, one batch at a time."""
    found = far(10, 0.001)
    assert set(found) == {"otlp", "event_hubs"}
    assert all(seconds > 0 for both in found.values() for seconds in both)


def test_bytes_through_the_latency_proxy_arrive_later_and_complete() -> None:
    """The bytes arrive in order, completely, and not before the delay."""
    data = bytes(range(256)) * 4096
    with socket.create_server(("127.0.0.1", 0)) as server, LatencyProxy(server.getsockname()[1], 0.05) as proxy:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", proxy.port), 30) as here:
            there, _ = server.accept()
            with there, there.makefile("rb") as incoming, ThreadPoolExecutor(1) as pool:
                sending = pool.submit(here.sendall, data)
                assert incoming.read(1) == data[:1]
                assert time.monotonic() - began >= 0.05
                sending.add_done_callback(lambda _: here.shutdown(socket.SHUT_WR))
                assert incoming.read() == data[1:]


def test_a_process_is_measured() -> None:
    """Its memory is positive, its peak is no lower, and its processor time is counted."""
    before = usage(os.getpid())
    began = time.process_time()
    while time.process_time() - began < 0.1:
        pass
    after = usage(os.getpid())
    assert 0 < after.rss <= after.peak_rss
    assert 0.05 <= after.running - before.running <= 5


@pytest.mark.linux("only glibc reports the memory of malloc")
def test_memory_is_profiled_and_a_deliberate_leak_is_detected(tmp_path: Path) -> None:
    """The agent logs its memory in use, which includes the leaked bytes."""
    lines: list[dict[str, Any]] = []
    enough = threading.Event()

    def on_line(found: dict[str, Any]) -> None:
        if found.get("event") == memory_profile.PROFILED:
            lines.append(found)
        if len(lines) == 3:
            enough.set()

    environ, program = {memory_profile.LEAK: str(8 * MIB)}, ("-m", "benchmarks.memory_profile")
    with (
        metadata_service() as service,
        Agent(tmp_path, service.url, environ=environ, program=program, on_line=on_line) as agent,
    ):
        agent.started()
        assert enough.wait(60)
        assert agent.stop()[0] == 0
    assert lines[2]["used"] - lines[1]["used"] > 7 * MIB
    assert lines[2]["blocks"] > 10_000


@pytest.mark.nightly
@pytest.mark.peer("prometheus")
def test_every_panel_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every panel of both dashboards, and each baseline query, runs as often as stated and has its line."""
    found = measured_panels.report(20, 2, tmp_path, interval=1)
    assert {len(times.seconds) for times in found} == {2}
    boards = {name: {panel["title"] for panel in panels(load(name))} for name in ("fleet", "vm")}
    for board, titles in boards.items():
        assert {times.panel for times in found if times.board.startswith(board)} == titles
    printed = capsys.readouterr().out
    assert all(f"| {about} |" in printed for about in measured_panels.WITHOUT_RULES)
    assert "| azure-scheduled-events-fleet.rules |" in printed


@pytest.mark.nightly
@pytest.mark.peer("prometheus")
def test_the_rules_are_timed_group_by_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each group that is evaluated once a minute has its line, and none of its rules fails on a real fleet."""
    found = rules.report(20, tmp_path, minutes=0.1, interval=1, evaluate=1)
    groups = {group["name"] for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]}
    assert {name for name in groups if "history" not in name} <= {*found} <= groups
    printed = capsys.readouterr().out
    assert all(f"| `{name}` |" in printed for name in found)
