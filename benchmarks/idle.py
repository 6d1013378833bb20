"""What the agent costs while nothing happens, how soon it serves, and what it imports: `python -m benchmarks.idle`."""

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
os._exit = report  # the agent ends by it
sys.argv[0] = "exporter"
runpy.run_module("exporter", run_name="__main__", alter_sys=False)
"""


def cost(*, outputs: bool, seconds: float) -> tuple[Usage, Usage]:
    """Before and after an idle time at 1 Hz in which it is scraped every 15 s, as Prometheus would."""
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


def bare_cost(seconds: float) -> tuple[Usage, Usage]:
    """The same of the bare loop, which nobody scrapes."""
    with metadata_service() as service:
        service.set_document(document(1))
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare", service.url, "1"], cwd=Path(__file__).parent.parent
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
    """Seconds from starting the process to its first whole 200 of /metrics."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="azse-bench-") as folder, metadata_service() as service, Peers() as peers:
        service.set_document(document(1))
        with Agent(Path(folder), service.url, environ=peers.environ, listen=address) as agent:
            while True:
                try:
                    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:  # our own address
                        answer.read()
                        return time.perf_counter() - agent.began
                except urllib.error.URLError:
                    time.sleep(0.005)


def modules(*, outputs: bool) -> set[str]:
    """What a run had imported by its end, having sent its records where it has outputs. Not on Windows."""
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
    """Prints the figures; True when all are within what was aimed at."""
    print(f"load: {load_average()}; idle at 1 Hz for {seconds:.0f} s")
    print(f"  {'':<22}CPU of a core       finest    RSS MiB   peak MiB   threads  descriptors")
    fine = True
    _line("bare http.client loop", *bare_cost(seconds))
    for words, outputs, most in (("all outputs", True, 80), ("only Prometheus", False, 45)):
        before, after = cost(outputs=outputs, seconds=seconds)
        _line(words, before, after, f"   (aim: 0.5 %, {most} MiB)")
        fine = fine and (after.running - before.running) / (after.at - before.at) < 0.005 and after.rss < most * MIB
    scrapes = sorted(first_scrape() for _ in range(5))
    print(f"first /metrics after start: median {scrapes[2]:.2f} s, worst of 5 {scrapes[-1]:.2f} s (aim: 1 s)")
    if sys.platform == "win32":
        return fine and scrapes[-1] < 1.0  # a process that is not asked to end can't say what it had imported
    found = modules(outputs=False)
    unwanted = [name for name in (*OF_OUTPUTS, *TOOLS) if name in found]
    print(f"imported without outputs: {len(found)} modules; of outputs, simulator or tools: {unwanted or 'none'}")
    return fine and scrapes[-1] < 1.0 and not unwanted


def _line(words: str, before: Usage, after: Usage, aim: str = "") -> None:
    span = after.at - before.at
    cpu, running = (after.cpu - before.cpu) / span, (after.running - before.running) / span
    print(
        f"  {words:<22}{cpu:>13.3%}{running:>13.3%}{after.rss / MIB:>11.1f}{after.peak_rss / MIB:>11.1f}"
        f"{after.threads:>10}{after.descriptors:>13}{aim}",
        flush=True,
    )


if __name__ == "__main__":
    report(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
