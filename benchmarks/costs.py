"""Costs of a fleet: measure one agent and one Prometheus, and calculate fleets of 1,000 to 10,000 VMs from that.

`make bench WHAT=costs` measures for about half an hour and writes the results to `costs.json`, from which
`make generate` makes the tables of docs/capacity.md. CPU is the time that the scheduler gave a process, not wall-clock
time, so that a busy machine has little influence.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import platform
import re
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.agent import VM, Agent, document, event, metadata_service
from benchmarks.peers import Peers
from benchmarks.usage import usage
from exporter.simulator.metadata.service import MetadataService
from tests.support.peers import need
from tests.support.ports import reserved_port

FOUND: Final = Path(__file__).with_suffix(".json")
MIB: Final = 1 << 20
FLEETS: Final = (1_000, 3_000, 10_000)
SCRAPE_INTERVAL: Final = 15
DAY: Final = 86_400
TARGETS: Final = (100, 1_000)
SCRAPES: Final = 200
ACCEPT: Final = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""What a Prometheus asks for first."""
OF_PROMETHEUS: Final = 5
"""Series that Prometheus itself makes for each target: `up` and four about the scrape."""
WAVE_SECONDS: Final = 60
"""The time within which all VMs of a wave send their records."""
SHARED: Final = "Freeze of 1,000 VMs, approved"
"""The event of `EVENTS` that names a whole scale set."""
EVENTS: Final[Mapping[str, Mapping[str, object]]] = {
    "Freeze, approved": {"EventType": "Freeze", "EventSource": "Platform", "DurationInSeconds": 5},
    "Reboot by a user, approved": {"EventType": "Reboot", "EventSource": "User"},
    "Redeploy by Azure, held": {"EventType": "Redeploy", "EventSource": "Platform"},
    "Preempt": {"EventType": "Preempt", "EventSource": "Platform"},
    "Terminate by autoscale": {"EventType": "Terminate", "EventSource": "User"},
    SHARED: {
        "EventType": "Freeze",
        "EventSource": "Platform",
        "DurationInSeconds": 5,
        "Resources": [VM, *(f"web_{number}" for number in range(1, 1_000))],
    },
}


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer of /metrics: its series, and its bytes plain and compressed."""

    series: int
    plain: int
    gzip: int


@dataclass(frozen=True, slots=True)
class Stored:
    """What one Prometheus needs for `targets` after `minutes`. `cpu` is the total, as a share of one core."""

    targets: int
    minutes: float
    series: int
    rss: int
    cpu: float
    bytes_a_sample: float


@dataclass(frozen=True, slots=True)
class Found:
    """All measurements, in seconds and bytes. `cpu_idle` is the share of a core that an agent uses without scrapes."""

    when: str
    where: str
    cpu_idle: float
    cpu_scrape: float
    rss_all: int
    rss_prometheus: int
    quiet: Scrape
    one_event: Scrape
    records: dict[str, tuple[int, int]]
    """By kind of event: how many records it makes on one VM, and their bytes together."""
    lifecycle: tuple[int, int]
    """The same for one start and stop of the agent."""
    connections: tuple[int, int]
    """Ever opened to the event hub, and open once nothing was sent for longer than `idle_close`."""
    prometheus: tuple[Stored, ...]

    @classmethod
    def read(cls, text: str) -> Found:
        """What `costs.json` holds."""
        value = json.loads(text)
        scrapes = {name: Scrape(**value[name]) for name in ("quiet", "one_event")}
        records = {name: (count, size) for name, (count, size) in value["records"].items()}
        stored = tuple(Stored(**each) for each in value["prometheus"])
        pairs = {name: tuple(value[name]) for name in ("lifecycle", "connections")}
        return cls(**{**value, **scrapes, **pairs, "records": records, "prometheus": stored})


# --- one agent --------------------------------------------------------------------------------------------------------


def scrape(url: str) -> tuple[Scrape, bytes]:
    """An answer as Prometheus gets it, with its compressed body."""
    asked = urllib.request.Request(f"{url}/metrics", headers={"Accept": ACCEPT, "Accept-Encoding": "gzip"})  # noqa: S310  # our own address
    with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310  # likewise
        body: bytes = answer.read()
    text = gzip.decompress(body)
    return Scrape(len(re.findall(rb"^[a-z]", text, re.MULTILINE)), len(text), len(body)), body


@contextmanager
def running(
    *flags: str, outputs: bool = True, settle: float = 5.0
) -> Iterator[tuple[Agent, MetadataService, Peers | None]]:
    """An agent `settle` seconds after its start, with all outputs or only Prometheus."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="azse-bench-")))
        peers = stack.enter_context(Peers()) if outputs else None
        service = stack.enter_context(metadata_service())
        service.set_document(document(1))
        environ = peers.environ if peers else {}
        agent = stack.enter_context(Agent(folder, service.url, *flags, environ=environ)).started()
        time.sleep(settle)
        yield agent, service, peers


def answers() -> tuple[Scrape, Scrape]:
    """What a scrape holds without an event and with one.

    A stall of the busy machine would bring a histogram that a quiet VM does not have: then another agent is asked.
    """
    while True:
        with running() as (agent, service, _):
            quiet, _ = scrape(agent.url)
            service.set_document(document(2, event(1)))
            time.sleep(3)
            one_event, body = scrape(agent.url)
            if b"observed_interruption_seconds_count{" not in gzip.decompress(body):
                return quiet, one_event


def idle(seconds: float) -> tuple[float, float, int]:
    """Return the CPU of an agent with all outputs while nothing scrapes it, the CPU of one scrape, and the memory."""
    with running() as (agent, _, _):
        scrape(agent.url)
        before = agent.usage()
        time.sleep(seconds)
        after = agent.usage()
        alone = (after.running - before.running) / (after.at - before.at)
        for _ in range(SCRAPES):
            scrape(agent.url)
            time.sleep(0.25)  # the agent caches a response for a moment
        scraped = agent.usage()
        passed = scraped.at - after.at
        each = (scraped.running - after.running - alone * passed) / SCRAPES
        return alone, each, scraped.rss


def memory_of_prometheus_alone() -> int:
    """The resident set of an agent without destinations, scraped a few times."""
    with running(outputs=False) as (agent, _, _):
        for _ in range(20):
            scrape(agent.url)
            time.sleep(0.25)
        return agent.usage().rss


def records_sent() -> tuple[dict[str, tuple[int, int]], tuple[int, int], tuple[int, int]]:
    """Return the records of one event of each kind on one VM, those of a start and a stop, and the connections."""
    with running("--approval.mode=enforce", "--event-hubs.idle-close=2s") as (agent, service, peers):
        assert peers is not None
        records, number = {}, 1
        seen = Counter(peers.ask("received")["bodies"])
        for place, (name, fields) in enumerate(EVENTS.items()):
            planned = event(place, **fields)
            begun = {**planned, "EventStatus": "Started", "NotBefore": ""}
            for events in ((planned,), (begun,), ()):
                number += 1
                service.set_document(document(number, *events))
                time.sleep(4)
            fresh = Counter(peers.ask("received")["bodies"]) - seen
            records[name] = (fresh.total(), sum(len(body.encode()) for body in fresh.elements()))
            seen += fresh
        time.sleep(5)
        standing = peers.ask("received")
        agent.stop()
        bodies = [body for body in peers.ask("received")["bodies"] if "agent.st" in body]
    return (
        records,
        (len(bodies), sum(len(body.encode()) for body in bodies)),
        (standing["connections"], standing["open"]),
    )


# --- one Prometheus ---------------------------------------------------------------------------------------------------


class Copies:
    """Answers every scrape with the newest of an agent's own, so that a thousand targets cost no thousand agents."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._loop = asyncio.new_event_loop()
        self.address = ""
        self._ready = threading.Event()

    def __enter__(self) -> Copies:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._answer, "127.0.0.1", 0))
        self.address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
        self._body, self._at = scrape(self._agent.url)[1], time.monotonic()
        self._ready.set()
        self._loop.run_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                if time.monotonic() - self._at > 1:
                    self._body, self._at = scrape(self._agent.url)[1], time.monotonic()
                head = "HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
                head += f"Content-Encoding: gzip\r\nContent-Length: {len(self._body)}\r\n\r\n"
                writer.write(head.encode() + self._body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def stored(targets: int, minutes: float) -> Stored:
    """Measure a real Prometheus that scrapes this many targets every 15 s."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="azse-bench-")))
        agent, _, _ = stack.enter_context(running())
        copies = stack.enter_context(Copies(agent))
        groups = [{"targets": [copies.address], "labels": {"instance": f"vm-{n:05}"}} for n in range(targets)]
        config = {
            "global": {"scrape_interval": f"{SCRAPE_INTERVAL}s"},
            "scrape_configs": [{"job_name": "azure-scheduled-events-exporter", "static_configs": groups}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        port = stack.enter_context(reserved_port())
        url = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(
            [
                need("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(3 * SCRAPE_INTERVAL)
            before, samples = usage(process.pid), _asked(url, "sum(prometheus_tsdb_head_samples_appended_total)")
            size = _size(folder / "data")
            time.sleep(minutes * 60)
            after = usage(process.pid)
            more = _asked(url, "sum(prometheus_tsdb_head_samples_appended_total)") - samples
            return Stored(
                targets=targets,
                minutes=minutes,
                series=int(_asked(url, "prometheus_tsdb_head_series")),
                rss=after.rss,
                cpu=(after.running - before.running) / (after.at - before.at),
                bytes_a_sample=(_size(folder / "data") - size) / more,
            )
        finally:
            process.terminate()
            process.wait(30)


def _asked(url: str, expression: str) -> float:
    """The value that a page of Prometheus' own metrics has, since it does not scrape itself."""
    name = re.sub(r"sum\((.*)\)", r"\1", expression)
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:  # noqa: S310  # our own address
        text = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- what is written --------------------------------------------------------------------------------------------------


def measure(seconds: float, minutes: float) -> Found:
    """All of it: about two minutes and twice `minutes`."""
    alone, each, rss_all = idle(seconds)
    quiet, one_event = answers()
    records, lifecycle, connections = records_sent()
    return Found(
        when=f"{datetime.now(UTC):%-d %B %Y}",
        where=f"Linux, CPython {platform.python_version()}, {_version('prometheus')}",
        cpu_idle=alone,
        cpu_scrape=each,
        rss_all=rss_all,
        rss_prometheus=memory_of_prometheus_alone(),
        quiet=quiet,
        one_event=one_event,
        records=records,
        lifecycle=lifecycle,
        connections=connections,
        prometheus=tuple(stored(targets, minutes) for targets in TARGETS),
    )


def _version(binary: str) -> str:
    done = subprocess.run([need(binary), "--version"], capture_output=True, text=True, check=True)
    return " ".join((done.stdout or done.stderr).split()[:3]).replace(", version", "").split("+")[0].capitalize()


def measured_table(found: Found) -> str:
    """Return the measurements of one agent and one Prometheus as a Markdown table."""
    rows = [
        ("CPU of an agent without scrapes, all outputs, one poll a second", f"{_percent(found.cpu_idle)} of a core"),
        ("CPU of one scrape", f"{found.cpu_scrape * 1e3:.1f} ms"),
        (
            "Memory of the agent (RSS): all outputs · Prometheus only",
            f"{found.rss_all / MIB:.0f} MiB · {found.rss_prometheus / MIB:.0f} MiB",
        ),
        ("Series of a VM: no event · one event", f"{found.quiet.series} · {found.one_event.series}"),
        ("Bytes of a scrape: plain · gzip", f"{found.quiet.plain:,} · {found.quiet.gzip:,}"),
        *((f"Records: {name}", f"{count}, {size:,} bytes") for name, (count, size) in found.records.items()),
        ("Records: start and stop of the agent", f"{found.lifecycle[0]}, {found.lifecycle[1]:,} bytes"),
        ("Event Hubs connections of an idle agent", str(found.connections[1])),
        *(
            (
                f"Prometheus, {each.targets:,} targets, after {each.minutes:g} minutes",
                f"{each.series:,} series, {each.rss / MIB:,.0f} MiB, {100 * each.cpu:.1f} % of a core, "
                f"{each.bytes_a_sample:.1f} bytes of disk a sample",
            )
            for each in found.prometheus
        ),
    ]
    return _table(("Measured", "Value"), rows)


def calculated_table(found: Found, fleets: tuple[int, ...] = FLEETS) -> str:
    """Return what fleets of these sizes need, calculated from the measurements, as a Markdown table."""
    small, large = found.prometheus
    most, most_bytes = max(value for name, value in found.records.items() if name != SHARED)
    shared, shared_bytes = found.records[SHARED]
    memory = (large.rss - small.rss) / (large.targets - small.targets)
    cpu = (large.cpu - small.cpu) / (large.targets - small.targets)
    of_quiet, of_event = found.quiet.series + OF_PROMETHEUS, found.one_event.series + OF_PROMETHEUS
    per_second = of_quiet / SCRAPE_INTERVAL
    lines: list[tuple[str, list[str]]] = [
        ("Series", [f"{of_quiet * vms:,}" for vms in fleets]),
        ("Series, one event on every VM", [f"{of_event * vms:,}" for vms in fleets]),
        ("Samples a second", [f"{per_second * vms:,.0f}" for vms in fleets]),
        ("Scrape traffic, gzip", [_rate(found.quiet.gzip * vms / SCRAPE_INTERVAL) for vms in fleets]),
        ("Prometheus memory", [f"{memory * vms / MIB:,.0f} MiB" for vms in fleets]),
        ("Prometheus CPU", [f"{100 * cpu * vms:.0f} % of a core" for vms in fleets]),
        (
            "Prometheus disk a day, before compaction",
            [_size_of(per_second * DAY * large.bytes_a_sample * vms) for vms in fleets],
        ),
        ("Messages if all agents restart", [f"{found.lifecycle[0] * vms:,}" for vms in fleets]),
        ("Messages of a wave", [f"{most * vms:,}" for vms in fleets]),
        ("Bytes, events of one VM", [_size_of(most_bytes * vms) for vms in fleets]),
        ("Bytes, events of 1,000 VMs", [_size_of(shared_bytes * vms) for vms in fleets]),
        ("Throughput units, events of one VM", [f"{throughput_units(most * vms, most_bytes * vms)}" for vms in fleets]),
        (
            "Throughput units, events of 1,000 VMs",
            [f"{throughput_units(shared * vms, shared_bytes * vms)}" for vms in fleets],
        ),
        ("Connections in a wave", [f"{vms:,}" for vms in fleets]),
        ("Lowest tier by connections", [_tier(vms) for vms in fleets]),
    ]
    heads = ("Calculated", *(f"{vms:,} VM{'s' * (vms > 1)}" for vms in fleets))
    return _table(heads, [(name, *cells) for name, cells in lines])


def cpu_of_a_vm(found: Found) -> str:
    """Return the CPU of an agent that is scraped every `SCRAPE_INTERVAL` seconds: a percentage of one core."""
    return _percent(found.cpu_idle + found.cpu_scrape / SCRAPE_INTERVAL)


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _rate(bytes_a_second: float) -> str:
    return f"{bytes_a_second / 1000:,.0f} kB/s"


def _size_of(count: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count:.0f} bytes"


def throughput_units(messages: int, size: int) -> int:
    """Return the throughput units (Basic, Standard) for this many messages and bytes within `WAVE_SECONDS`."""
    return max(1, -(-messages // (WAVE_SECONDS * 1000)), -(-size // (WAVE_SECONDS * 1_000_000)))


def _tier(connections: int) -> str:
    """Return the lowest tier whose quota of connections for a namespace is sufficient."""
    if connections <= 100:
        return "Basic"
    if connections <= 5_000:
        return "Standard"
    units = -(-connections // 10_000)
    return f"Premium ({units} PU) or two Standard" if units == 1 else f"Premium ({units} PU)"


def _table(heads: tuple[str, ...], rows: list[Any]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join(f"|{'|'.join(cells)}|" for cells in lines)


def written(found: Found) -> str:
    """Return the generated part of docs/capacity.md."""
    return (
        f"On each VM, the agent uses {cpu_of_a_vm(found)} of a core and {found.rss_all / MIB:.0f} MiB of memory with "
        f"all outputs and a scrape every {SCRAPE_INTERVAL} s, at any fleet size.\n\n"
        f"{calculated_table(found)}\n\n"
        f"Calculated from these measurements ({found.when}; {found.where}; two shared, busy cores):\n\n"
        f"{measured_table(found)}"
    )


def as_json(found: Found) -> str:
    """What `Found.read` reads."""
    return json.dumps(asdict(found), indent=2) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the idle agent is watched")
    parser.add_argument("--minutes", type=float, default=15.0, help="how long each Prometheus scrapes")
    options = parser.parse_args()
    found = measure(options.seconds, options.minutes)
    print(written(found))
    FOUND.write_text(as_json(found), encoding="utf-8")


if __name__ == "__main__":
    main()
