"""A node's VM: its disk, its simulated metadata service, and the agent's pod on it as processes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from exporter.simulator.metadata import scenario
from exporter.simulator.metadata.service import MetadataService, ReceivedPost
from tests.cluster.agents import SELECTOR
from tests.cluster.clients import Client, Json
from tests.cluster.containers import TOKEN, Line, Pod, Process
from tests.cluster.daemons import ClusterError, wait_for
from tests.cluster.observer import Observer
from tests.cluster.plane import HOST, Plane
from tests.support.factories import as_started, azure_event
from tests.support.ports import reserved_port
from tests.support.running import LISTENING

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 60.0
STEADY_SECONDS: Final = 3.0
"""The handshake makes a pass each second: in this time it would do what it must not do."""
EVENTS: Final = "/run/azure-scheduled-events-exporter/events"
READY: Final = "/run/azure-scheduled-events-exporter/ready"

T = TypeVar("T")


class Azure:
    """The simulated metadata service of one VM. Each event is announced, started, and ended on command."""

    def __init__(self, vm: str) -> None:
        document = {"description": "events on command", "vms": [{"name": vm}], "steps": []}
        self.vm = vm
        self.service = MetadataService(scenario.parse("drain", document))
        self._number = 1
        self._events: dict[str, dict[str, Any]] = {}
        self._publish()

    def announce(self, kind: str = "Reboot", notice: float = 900.0, **fields: Any) -> str:
        """Schedule an event of the platform `notice` seconds ahead; return its id."""
        return self.announce_all((kind,), notice, **fields)[0]

    def announce_all(self, kinds: tuple[str, ...], notice: float = 900.0, **fields: Any) -> list[str]:
        """Schedule several events in one document; return their ids."""
        not_before = datetime.now(UTC) + timedelta(seconds=notice)
        ids = [str(uuid.uuid4()).upper() for _ in kinds]
        for event, kind in zip(ids, kinds, strict=True):
            self._events[event] = azure_event(event, kind, [self.vm], not_before, **fields)
        self._publish()
        return ids

    def not_before(self, event: str) -> float:
        """Return an event's NotBefore, in seconds since the epoch."""
        text = f"{self._events[event]['NotBefore']}".replace("GMT", "+0000")
        return datetime.strptime(text, "%a, %d %b %Y %H:%M:%S %z").timestamp()

    def start(self, event: str) -> None:
        self._events[event] = as_started(self._events[event])
        self._publish()

    def end(self, event: str) -> None:
        """Remove an event from the document: it has ended or, before its start, is canceled."""
        del self._events[event]
        self._publish()

    def posts(self, event: str) -> list[ReceivedPost]:
        """Return the accepted approvals of an event."""
        return [post for post in list(self.service.posts) if post.status == 200 and event in post.event_ids]

    @property
    def sent(self) -> int:
        """The number of all POSTs."""
        return len(self.service.posts)

    def _publish(self) -> None:
        self._number += 1
        self.service.set_document({"DocumentIncarnation": self._number, "Events": list(self._events.values())})


class Environment(NamedTuple):
    """What all VMs share: the namespace of the agents, the folder of the run, and whether the run is to end."""

    observer: Observer
    namespace: str
    folder: Path
    stopping: threading.Event


class Vm:
    """The VM of a node during a `with`: `start` runs the two containers of the agent's pod there."""

    def __init__(self, plane: Plane, environment: Environment, node: str) -> None:
        self._plane, self.node = plane, node
        self._observer, self._namespace = environment.observer, environment.namespace
        self._folder, self._stopping = environment.folder / node, environment.stopping
        self.disk = self._folder / "disk"
        self.azure = Azure(f"vm-{node}")
        self.log: list[Line] = []
        self.agent_log: list[Line] = []
        self._processes: dict[str, Process] = {}
        self.pod: Pod

    def __enter__(self) -> Self:
        self.disk.mkdir(parents=True)
        programs = self._folder / "bin"
        programs.mkdir()
        (programs / "kubectl").symlink_to(self._plane.kubectl.path)
        with ExitStack() as stack:
            self._dead_port = stack.enter_context(reserved_port())
            stack.enter_context(self.azure.service)
            stack.callback(self.kill, "agent", "handshake")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # -- the pod and its containers

    def start(self) -> None:
        """Start both containers of the pod that is on the node now."""
        found = self.wait(self._agents_pod)
        self.pod = Pod(self._plane.kubectl, found, self.disk, self._folder)
        self.connect()
        self.start_agent()
        self.start_handshake()

    def _agents_pod(self) -> Json:
        name, _, value = SELECTOR.partition("=")
        pods = [pod for pod in self._observer.pods(name, value) if pod["spec"].get("nodeName") == self.node]
        pods = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return pods[0] if len(pods) == 1 and pods[0]["metadata"]["namespace"] == self._namespace else {}

    def start_agent(self) -> None:
        """Start this checkout's agent with the pod's settings, and with the addresses of this run."""
        flags = {
            "source.url": self.azure.service.url,
            "source.poll-interval": "250ms",
            "web.listen-address": f"{HOST}:0",
            "outbox.path": self.pod.mounts.outside("/var/lib/azure-scheduled-events-exporter/outbox.db"),
            "log.format": "logfmt",
        }
        command = self.pod.command("agent", (sys.executable, "-m", "exporter"))
        command += [f"--{name}={value}" for name, value in flags.items()]
        self._processes["agent"] = Process(command, self._environment("agent"), ROOT, self.agent_log)

    def start_handshake(self) -> None:
        command, environment = self.pod.command("handshake"), self._environment("handshake")
        environment["KUBECONFIG"] = str(self._kubeconfig)
        self._processes["handshake"] = Process(command, environment, self._folder, self.log)

    def _environment(self, container: str) -> dict[str, str]:
        image = {"PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}", "HOME": str(self._folder)}
        return image | self.pod.environment(container)

    def kill(self, *containers: str) -> None:
        """Kill containers, as the kernel or a lost kubelet does."""
        for name in containers:
            if process := self._processes.pop(name, None):
                process.kill()

    def restart(self, *, lose_state: bool = False) -> None:
        """Start the killed handshake again: in the same pod or, with the state lost, in the pod that replaces it."""
        if not lose_state:
            self.start_handshake()
            return
        self.kill("agent")
        metadata = self.pod.object["metadata"]
        self._plane.kubectl.must("delete", "pod", metadata["name"], "--namespace", self._namespace, "--wait=false")
        self.wait(lambda: self._agents_pod().get("metadata", {}).get("uid", self.pod.uid) != self.pod.uid)
        self.pod.remove()
        self.start()

    def lose_power(self) -> None:
        """End all processes, and empty what isn't on a disk."""
        self.kill("agent", "handshake")
        for path in (*(self.disk / "run" / "azure-scheduled-events-exporter").iterdir(), *self.pod.memory):
            shutil.rmtree(path)
            path.mkdir()

    # -- its connection to the API server

    @property
    def _kubeconfig(self) -> Path:
        return self._folder / "kubeconfig"

    def connect(self) -> None:
        """Let kubectl reach the API server, with the token of the pod."""
        self._write_kubeconfig(self._plane.port)

    def disconnect(self) -> None:
        """Let every further kubectl find no API server: its port refuses connections."""
        self._write_kubeconfig(self._dead_port)

    def _write_kubeconfig(self, port: int) -> None:
        mounted = self.pod.mounts.directories[TOKEN]
        cluster = {"server": f"https://{HOST}:{port}", "certificate-authority": str(mounted / "ca.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "pod",
            "clusters": [{"name": "pod", "cluster": cluster}],
            "users": [{"name": "pod", "user": {"tokenFile": str(mounted / "token")}}],
            "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
        }
        new = self._kubeconfig.with_suffix(".new")
        new.write_text(json.dumps(config), encoding="utf-8")
        new.replace(self._kubeconfig)

    @property
    def kubectl(self) -> Client:
        """kubectl with the token of the pod."""
        return Client(self._plane.kubectl.path, self._kubeconfig, self._folder)

    # -- observations

    @property
    def cordoned(self) -> bool:
        return self._observer.node_states(self.node)[-1].cordoned

    def states(self, since: float) -> list[tuple[bool, bool]]:
        """Return the node's states since a time: whether it is cordoned, and whether it is labelled."""
        return [(one.cordoned, one.labelled) for one in self._observer.node_states(self.node, since)]

    def event_file(self, event: str) -> Json:
        """Return the content of an event file; empty if there is none."""
        try:
            content: Json = json.loads((self._directory(EVENTS) / f"{event}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return content

    def is_ready(self, event: str) -> bool:
        """Whether the event has a ready file."""
        return (self._directory(READY) / event).exists()

    def _directory(self, path: str) -> Path:
        return self.pod.mounts.directories[path]

    def logged(self, text: str, since: float = 0.0) -> list[Line]:
        """Return the lines of the handshake's log that contain a text."""
        return [line for line in list(self.log) if text in line.text and line.time >= since]

    def output(self, since: float = 0.0) -> list[str]:
        """Return the handshake's log, with the paths of the container."""
        return [self.pod.mounts.inside(line.text) for line in list(self.log) if line.time >= since]

    @property
    def address(self) -> str:
        """The address of the agent's metrics."""
        lines = [line.text for line in list(self.agent_log)]
        return next((found[1] for line in reversed(lines) if (found := LISTENING.search(line))), "")

    # -- waiting

    def wait(self, look: Callable[[], T]) -> T:
        """Return the first true result of `look`. Raises ClusterError if there is none in time, or a part has ended."""
        if found := wait_for(lambda: self._alive() and look(), SECONDS, 0.1):
            return found
        raise ClusterError(f"{self.node}: not within {SECONDS:.0f} s")

    def _alive(self) -> bool:
        if self._stopping.is_set():
            raise ClusterError("interrupted")
        if not self._observer.running:
            raise ClusterError("the watch of nodes and pods has ended")
        for name, process in self._processes.items():
            if not process.running:
                lines = self.log if name == "handshake" else self.agent_log
                raise ClusterError(f"{self.node}: {name} has ended: {' | '.join(line.text for line in lines[-10:])}")
        return True

    def stays(self, look: Callable[[], object], seconds: float = STEADY_SECONDS) -> bool:
        """Return whether a condition holds during some passes of the handshake."""
        return not wait_for(lambda: self._alive() and not look(), seconds, 0.1)

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.time()
