"""Cost of an idle agent, the time to its first scrape, and its imports: `python -m benchmarks.idle`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.agent import Agent, document, metadata_service
from benchmarks.peers import Peers
from benchmarks.usage import Usage, load_average, usage

SECONDS: Final = 40.0
SETTLE: Final = 5.0
SCRAPE_EVERY: Final = 15.0
MIB: Final = 1 << 20
OF_OUTPUTS: Final = ("azure", "aiohttp", "opentelemetry", "google", "requests", "urllib3")
TOOLS: Final = ("exporter.simulator", "exporter.commands.demo", "click", "rich", "trio")
NAMES_MODULES: Final = """
import json, os, runpy, sys
sys.modules["click"] = sys.modules["rich"] = None
def report(code, leave=os._exit):
    print(json.dumps(sorted(name for name, module in sys.modules.items() if module)), flush=True)
    leave(code)
os._exit = report  # the agent exits with it
sys.argv[0] = "exporter"
runpy.run_module("exporter", run_name="__main__", alter_sys=False)
"""


def cost(*, outputs: bool, seconds: float) -> tuple[Usage, Usage]:
    """Return the usage before and after `seconds` with one poll a second and a scrape every 15 s."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="azse-bench-"))
        environ = stack.enter_context(Peers()).environ if outputs else {}
        service = stack.enter_context(metadata_service())
        service.set_document(document(1))
        agent = stack.enter_context(Agent(Path(folder), service.url, environ=environ)).started()
        time.sleep(SETTLE)
        before = agent.usage()
        end = before.at + seconds
        while (left := end - time.monotonic()) > 0:
            agent.metrics()
            time.sleep(min(SCRAPE_EVERY, left))
        return before, agent.usage()


def baseline_cost(seconds: float) -> tuple[Usage, Usage]:
    """Return the same for the baseline, which isn't scraped."""
    with metadata_service() as service:
        service.set_document(document(1))
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.baseline", service.url, "1"], cwd=Path(__file__).parent.parent
        )
        try:
            time.sleep(SETTLE)
            before = usage(process.pid)
            time.sleep(seconds)
            return before, usage(process.pid)
        finally:
            process.kill()
            process.wait()


def first_scrape() -> float:
    """Return the seconds from the start of the process to its first complete response to /metrics."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="azse-bench-") as folder, metadata_service() as service, Peers() as peers:
        service.set_document(document(1))
        with Agent(Path(folder), service.url, environ=peers.environ, listen=address) as agent:
            while True:
                try:
                    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:  # a local address
                        answer.read()
                        return time.perf_counter() - agent.began
                except urllib.error.URLError:
                    time.sleep(0.005)


def modules(*, outputs: bool) -> set[str]:
    """Return the modules that a run had imported when it stopped, after it sent records to its outputs. Not on
    Windows."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="azse-bench-"))
        environ = stack.enter_context(Peers()).environ if outputs else {}
        service = stack.enter_context(metadata_service())
        service.set_document(document(1))
        agent = Agent(Path(folder), service.url, environ=environ, program=("-c", NAMES_MODULES))
        with agent:
            agent.started()
            time.sleep(2.0)
            agent.metrics()
            return set(json.loads(agent.stop()[1]))


def report(seconds: float = SECONDS) -> bool:
    """Print the values. Return whether all of them meet their targets."""
    print(f"load: {load_average()}; idle at 1 Hz for {seconds:.0f} s")
    print(f"  {'':<22}CPU of a core       finest    RSS MiB   peak MiB   threads  descriptors")
    fine = True
    _line("baseline", *baseline_cost(seconds))
    for name, outputs, most in (("all outputs", True, 80), ("only Prometheus", False, 45)):
        before, after = cost(outputs=outputs, seconds=seconds)
        _line(name, before, after, f"   (target: 0.5 %, {most} MiB)")
        fine = fine and (after.running - before.running) / (after.at - before.at) < 0.005 and after.rss < most * MIB
    scrapes = sorted(first_scrape() for _ in range(5))
    print(f"first /metrics after start: median {scrapes[2]:.2f} s, worst of 5 {scrapes[-1]:.2f} s (target: 1 s)")
    if sys.platform == "win32":
        return fine and scrapes[-1] < 1.0  # a killed process can't report its imports
    found = modules(outputs=False)
    unwanted = [name for name in (*OF_OUTPUTS, *TOOLS) if name in found]
    print(f"imported without outputs: {len(found)} modules; of outputs, simulator, or tools: {unwanted or 'none'}")
    return fine and scrapes[-1] < 1.0 and not unwanted


def _line(name: str, before: Usage, after: Usage, aim: str = "") -> None:
    span = after.at - before.at
    cpu, running = (after.cpu - before.cpu) / span, (after.running - before.running) / span
    print(
        f"  {name:<22}{cpu:>13.3%}{running:>13.3%}{after.rss / MIB:>11.1f}{after.peak_rss / MIB:>11.1f}"
        f"{after.threads:>10}{after.descriptors:>13}{aim}",
        flush=True,
    )


if __name__ == "__main__":
    report(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
