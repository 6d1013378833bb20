"""The fault matrix of memory: the kernel's out-of-memory killer, with the limits and scores of the shipped units.

The kernel's choice is tested in a separate memory cgroup, which needs root and a writable cgroup file system. The
recovery from a process that is killed in the middle of a delivery is tested everywhere.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from exporter.simulator.event_hubs.broker import Broker
from tests.support.agent_environment import document
from tests.support.otlp_receiver import Hang, Receiver, attributes
from tests.support.peers import until
from tests.support.running import Run
from tests.support.systems import KILLED
from tests.system.test_run import HUB, REBOOT, mine, quiet, to_hub

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
UNIT: Final = DEPLOY / "systemd" / "azure-scheduled-events-exporter.service"
DAEMONSET: Final = DEPLOY / "kubernetes" / "base" / "daemonset.yaml"
MIB: Final = 1 << 20
ENFORCE: Final = "--approval.mode=enforce"
GROWS: Final = "import time\nheld = []\nwhile True:\n    held.append(b'x' * (1 << 20))\n    time.sleep(0.01)\n"
"""A program that allocates a MiB a hundred times a second, and keeps it."""
EATERS: Final = 8
"""Number of programs: enough that none of them is as large as the agent when the limit is reached."""

RECORDED: Final = {"agent.started": 2, "scheduled": 1, "approval.decided": 1, "approval.accepted": 1, "ended": 1}
"""The records of a reboot that was approved before the kill and ended after it."""


def unit() -> dict[str, str]:
    """Return the `[Service]` section of the shipped unit; for a key that occurs twice, the last value."""
    found = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    found.optionxform = str  # type: ignore[assignment,method-assign]  # how the library has one keep the case of words
    found.read(UNIT, encoding="utf-8")
    return {**found["Unit"], **found["Service"]}


def pod() -> dict[str, Any]:
    daemonset: dict[str, Any] = yaml.safe_load(DAEMONSET.read_text(encoding="utf-8"))
    spec: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return spec


def in_bytes(text: str) -> int:
    """Parse a size as systemd (`384M`) or Kubernetes (`384Mi`) writes it."""
    found = re.fullmatch(r"(\d+)Mi?", text)
    assert found is not None, text
    return int(found[1]) * MIB


LIMIT: Final = in_bytes(pod()["containers"][0]["resources"]["limits"]["memory"])


class Cage:
    """A memory cgroup, of either version, for the processes that are started with `prefix`."""

    LIMITS: Final = ("memory.max", "memory.limit_in_bytes")

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        names = [name for name in self.LIMITS if (folder / name).exists()]
        if not names:
            raise OSError("no memory controller here")
        (folder / names[0]).write_text(str(limit))
        with contextlib.suppress(OSError):  # version 2 only, and only with swap
            (folder / "memory.swap.max").write_text("0")

    def prefix(self, score: int) -> tuple[str, ...]:
        """Return the command that starts a program in this cgroup, with an `oom_score_adj`."""
        script = f'echo $$ >"{self.folder}/cgroup.procs" && echo {score} >/proc/self/oom_score_adj && exec "$@"'
        return ("sh", "-c", script, "sh")

    @property
    def killed(self) -> int:
        """Return how many processes of this cgroup the kernel killed because memory was short."""
        texts = [self.folder / name for name in ("memory.events", "memory.oom_control")]
        found = re.search(r"^oom_kill (\d+)$", next(t for t in texts if t.exists()).read_text(), re.MULTILINE)
        return int(found[1]) if found else 0

    @contextlib.contextmanager
    def eater(self, score: int) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program in this cgroup that allocates memory without end."""
        process = subprocess.Popen([*self.prefix(score), sys.executable, "-c", GROWS])
        try:
            yield process
        finally:
            process.kill()
            process.wait(10)


def new_cage() -> Cage | None:
    """A cgroup with the smallest shipped limit; None if none can be created."""
    for base in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")):
        folder = base / f"azse-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            try:
                return Cage(folder, LIMIT)
            except OSError:
                folder.rmdir()
    return None


@pytest.fixture
def cage() -> Iterator[Cage]:
    """Yield a cgroup for one test; skip the test if none can be created."""
    found = new_cage()
    if found is None:
        pytest.skip("no memory cgroup can be made here: that takes root and a writable /sys/fs/cgroup")
    yield found
    until(lambda: not (found.folder / "cgroup.procs").read_text())
    found.folder.rmdir()


@contextlib.contextmanager
def ended_while_delivering(request: pytest.FixtureRequest, how: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return how to start the agent, and how to kill it as the kernel does when memory is short."""
    if how == "signal":
        yield (), lambda run: run.process.kill()
        return
    cage: Cage = request.getfixturevalue("cage")

    def starve(run: Run) -> None:
        with cage.eater(0):
            until(lambda: run.process.poll() is not None, seconds=120)
        assert cage.killed >= 1

    yield cage.prefix(1000), starve


@pytest.mark.parametrize("how", ["kernel", "signal"])
def test_a_kill_for_memory_during_delivery_loses_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, how: str
) -> None:
    """With the highest out-of-memory score it is killed first, in the middle of a delivery; the next process delivers
    all records under the same ids, and approves nothing a second time."""
    with quiet() as service, Broker() as broker, Receiver(Hang()) as collector:
        service.set_document(document(5, mine()))
        otlp = f"--otlp.endpoint=http://127.0.0.1:{collector.port}"
        with (
            ended_while_delivering(request, how) as (prefix, end),
            Run(service.url, tmp_path, ENFORCE, otlp, environ=to_hub(broker), prefix=prefix) as run,
        ):
            until(lambda: collector.asked.is_set() and len(service.posts) == 1 and len(broker.messages(HUB)) >= 4)
            end(run)
            assert run.ended() == KILLED
        service.set_document(document(6))
        with Run(service.url, tmp_path, ENFORCE, otlp, environ=to_hub(broker)) as again:
            again.wait_for(lambda: again.metric("events_closed_total", event_type="Reboot", outcome="ended") == 1)
            again.wait_for(lambda: again.metric("outbox_records", destination="event_hubs") == 0)
            again.wait_for(lambda: again.metric("outbox_records", destination="otlp") == 0, 120)
            stored = [json.loads(each.body) for each in broker.messages(HUB)]
            logged = {str(attributes(log.attributes)["log.record.uid"]) for _, _, log in collector.logs}
            assert again.stop() == 0
        assert [post.event_ids for post in service.posts] == [(REBOOT,)]
    kinds = {body["id"]: body["type"].removeprefix("azure_scheduled_event.").removesuffix(".v1") for body in stored}
    assert logged == set(kinds)
    # A machine that stalls adds records about that.
    assert {kind: list(kinds.values()).count(kind) for kind in RECORDED} == RECORDED


@pytest.mark.linux("is about the scores of the kernel's out-of-memory killer")
def test_the_shipped_score_has_other_processes_killed_first(tmp_path: Path, cage: Cage) -> None:
    """With the unit's score, the kernel kills each of many small programs before the agent, the largest of them all:
    the agent continues to poll and approves."""
    better = -int(unit()["OOMScoreAdjust"])  # only root with all capabilities may lower one, and the distance decides
    with quiet() as service, contextlib.ExitStack() as stack:
        service.set_document(document(5))
        run = stack.enter_context(Run(service.url, tmp_path, ENFORCE, prefix=cage.prefix(0)))
        run.wait_for(lambda: run.get("/-/ready").status_code == 200)
        eaters = [stack.enter_context(cage.eater(better)) for _ in range(EATERS)]
        until(lambda: all(eater.poll() is not None for eater in eaters), seconds=120)
        assert {eater.returncode for eater in eaters} == {-signal.SIGKILL}
        assert cage.killed == EATERS
        service.set_document(document(6, mine()))
        run.wait_for(lambda: len(service.posts) == 1)
        assert run.stop() == 0


def test_shipped_units_prepare_for_the_out_of_memory_killer() -> None:
    """The unit and the pod are not the first to be killed, have their own limit, are restarted without a limit on
    attempts, keep the outbox across restarts, and let malloc keep little free memory."""
    service = unit()
    assert -1000 < int(service["OOMScoreAdjust"]) < 0, "protected, but not absolutely: it has its own limit"
    assert (service["Restart"], service["StartLimitIntervalSec"]) == ("always", "0")
    assert service.get("OOMPolicy", "stop") in ("stop", "kill"), "continue would leave a dead agent"
    assert service["RestartPreventExitStatus"] == "2", "being killed is not among what ends the trying"
    assert in_bytes(service["MemoryMax"]) >= LIMIT
    assert service["Environment"] == "MALLOC_ARENA_MAX=2"
    assert re.search(r"^ENV .*\bMALLOC_ARENA_MAX=2$", (DEPLOY.parent / "Dockerfile").read_text(), re.MULTILINE)
    assert service["StateDirectory"] == "azure-scheduled-events-exporter"
    spec = pod()
    assert spec["priorityClassName"] == "system-node-critical", "by which the kubelet sets the score to -997"
    assert spec.get("restartPolicy", "Always") == "Always"
    (container,) = spec["containers"]
    assert in_bytes(container["resources"]["requests"]["memory"]) <= LIMIT
    outbox = next(mount for mount in container["volumeMounts"] if mount["name"] == "outbox")
    assert [volume["hostPath"]["path"] for volume in spec["volumes"] if volume["name"] == outbox["name"]] == [
        outbox["mountPath"]
    ]


HUGE: Final = {
    "many-elements": b"{}," * 1_380_000 + b"{}",
    "many-names": b'{"EventId":"a","EventStatus":"Scheduled","EventType":"Reboot","ResourceType":"VirtualMachine",'
    b'"NotBefore":"","Resources":[' + b'"1",' * 1_030_000 + b'"1"]}',
    "many-events": b",".join(
        b'{"EventId":"%d","EventStatus":"Scheduled","EventType":"Reboot","Resources":["vm-1"]}' % number
        for number in range(45_000)
    ),
}
"""The events of documents of almost 4 MiB, the largest that are read, which need the most memory."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "many-names" else pytest.mark.nightly) for name in HUGE]
)
def test_the_largest_documents_fit_in_the_limit(tmp_path: Path, cage: Cage, name: str) -> None:
    """With the smallest shipped limit and both destinations connected, the agent reads any response and then the next
    document."""
    with quiet() as service, Broker() as broker, Receiver() as collector:
        service.set_document(document(5))
        otlp = f"--otlp.endpoint=http://127.0.0.1:{collector.port}"
        with Run(service.url, tmp_path, ENFORCE, otlp, environ=to_hub(broker), prefix=cage.prefix(0)) as run:
            run.wait_for(lambda: bool(collector.logs and broker.messages(HUB)))
            huge = b'{"DocumentIncarnation":6,"Events":[' + HUGE[name] + b"]}"
            assert 3 * MIB < len(huge) < 4 * MIB
            service.set_document(huge)
            run.wait_for(lambda: run.metric("document_incarnation") == 6, 120)
            service.set_document(document(7, mine()))
            run.wait_for(lambda: REBOOT in [post.event_ids[0] for post in service.posts], 120)
            assert cage.killed == 0
            assert run.stop() == 0
