"""The handshake: events of a simulated Azure drain real nodes of the API server, and nothing else does.

API server, controller manager, scheduler, agent, and handshake are real; the pods' containers exist only on the
observed nodes, as processes (see `containers`). Each proof has its own node, and all run at the same time.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.cluster.agents import NAME, Agents
from tests.cluster.chart import DOCUMENTATION
from tests.cluster.clients import Client, Json, together
from tests.cluster.containers import TOKEN
from tests.cluster.daemons import ClusterError
from tests.cluster.observer import LABEL, Observer
from tests.cluster.plane import Plane
from tests.cluster.verdicts import Verdicts
from tests.cluster.vm import READY, Environment, Vm
from tests.support.dashboards_environment import RULES
from tests.support.documentation import blocks
from tests.support.peers import Daemon, prometheus, scrape

RELEASE: Final = "agent"
NAMESPACE: Final = "drained"
WORKLOADS: Final = "workloads"
VALUES: Final = {
    "approval": {"mode": "enforce"},
    "handshake": {"enabled": True, "image": {"repository": "registry.example.com/kubectl", "tag": "1"}},
}
OUT_AND_BACK: Final = [(False, False), (True, True), (False, False)]
"""A node that is cordoned and labelled in one step, and uncordoned in one step."""
NOTICE: Final = 90.0
MARGIN: Final = 60.0
"""Seconds before NotBefore from which on no pod is evicted."""
LATE_SECONDS: Final = 10.0
"""How much later the last attempt may be on a busy machine: the handshake computes the time before kubectl starts."""
IMMINENT: Final = 'ALERTS{alertname="AzureScheduledEventsMaintenanceImminent", alertstate="firing"}'
SPARE: Final = "linux-arm64"
"""The node that no proof drains: evicted pods of Deployments go there."""
ALERT: Final = "AzureScheduledEventsMaintenanceImminent fires in Prometheus"
POINTS: Final = (
    "after the cordon",
    "during the evictions",
    "after the ready file",
    "while the event is Started",
    "after the end, before the uncordon",
    "while the event is Started, and it ends meanwhile",
)
"""Moments at which the handshake is killed."""


OWNER: Final = {"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "11111111-1111-1111-1111-111111111111"}
"""An owner that doesn't exist: the garbage collector would delete the node."""


class Verdict(NamedTuple):
    """What `Verdicts.say` prints."""

    holds: bool
    sentence: str
    seen: object = ""


Proof = Callable[[Vm], Iterator[Verdict]]


@dataclass(frozen=True, slots=True)
class Drain:
    """The proofs with an installed handshake."""

    plane: Plane
    verdicts: Verdicts
    folder: Path
    archive: Path
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Install the chart, run the proofs at the same time, and uninstall the chart."""
        values = self.folder / "drain.json"
        values.write_text(json.dumps(VALUES), encoding="utf-8")  # JSON is YAML
        place = ("--namespace", NAMESPACE)
        chosen = (RELEASE, self.archive, "--values", values, *place)
        answer = self.plane.helm("install", *chosen, "--create-namespace", "--wait", "--timeout", "90s")
        self.verdicts.say(answer.good and not answer.warnings, "installed with the handshake", answer.recorded)
        Agents(self._kubectl, NAMESPACE).land(self.verdicts, "a ready pod on each Linux VM and no other")
        self._kubectl.must("create", "namespace", WORKLOADS)
        with Observer(self._kubectl) as observer:
            self._run(observer)
        self._leave()
        self._kubectl.must("delete", "namespace", WORKLOADS, "--wait=false")
        self.plane.helm.must("uninstall", RELEASE, *place, "--wait")

    def _leave(self) -> None:
        """Run the documented commands that undo a cordon before the handshake is removed."""
        node = SPARE
        self._kubectl.must("label", "node", node, f"{LABEL}=true")
        self._kubectl.must("cordon", node)
        (block,) = (one for one in blocks(DOCUMENTATION) if one.text.startswith("kubectl uncordon --selector"))
        environment = self._kubectl.environment | {"PATH": f"{self._kubectl.path.parent}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-ec", block.text], env=environment, capture_output=True, text=True, check=False)
        left = self._kubectl.json("get", "node", node)
        good = not done.returncode and "unschedulable" not in left["spec"] and LABEL not in left["metadata"]["labels"]
        self.verdicts.say(good, "the documented commands uncordon what is left", done.stderr.strip())

    def _run(self, observer: Observer) -> None:
        proofs: list[tuple[str, str, Proof]] = [
            ("a reboot", "linux-0", Reboot(self._kubectl, observer).run),
            ("a budget that allows no eviction", "linux-1", Blocked(self._kubectl, observer, self.folder).run),
            ("several events, and a canceled one", "linux-2", Several(self._kubectl, observer).run),
            ("killed, in the same pod", "linux-3", Killed(self._kubectl, observer, lose_state=False).run),
            (
                "killed, in a new pod",
                "linux-control-plane",
                Killed(self._kubectl, observer, lose_state=True).run,
            ),
            ("freezes", "linux-gpu", Freezes(self._kubectl, observer).run),
            ("a node that someone else has cordoned", "linux-cordoned", Foreign(self._kubectl, observer).run),
            ("without the API server", "linux-spot", Unavailable(self._kubectl, observer).run),
            ("a reboot of the VM", "linux-batch", PowerLoss(self._kubectl, observer).run),
            ("permissions", SPARE, Permissions(self._kubectl, observer).run),
        ]
        folder = self.folder / "drain"
        folder.mkdir()
        environment = Environment(observer, NAMESPACE, folder, self.stopping)
        with concurrent.futures.ThreadPoolExecutor(len(proofs)) as pool:
            try:
                running = [
                    pool.submit(self._judge, proof, Vm(self.plane, environment, node)) for _, node, proof in proofs
                ]
                for (name, node, _), one in zip(proofs, running, strict=True):
                    found = one.result()
                    self.verdicts.heading(f"the handshake: {name}, {node}")
                    for verdict in found:
                        self.verdicts.say(*verdict)
            finally:
                self.stopping.set()  # so that every wait ends
        if not shutil.which("prometheus") and os.environ.get("CI") != "true":
            print(f"not run: {ALERT} (make peers)")

    def _judge(self, proof: Proof, vm: Vm) -> list[Verdict]:
        """Run a proof to its end; return its verdicts."""
        found: list[Verdict] = []
        with vm:
            try:
                vm.start()
                found.extend(proof(vm))
            except ClusterError as error:
                lines = [
                    frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__
                ]
                found.append(Verdict(False, "the proof runs to its end", f"{error}: {lines[-1] if lines else ''}"))
            if not all(verdict.holds for verdict in found):
                found.append(Verdict(False, "the log of the handshake", f"\n{_indented(vm.output())}"))
        return found

    @property
    def _kubectl(self) -> Client:
        return self.plane.kubectl


@dataclass(frozen=True, slots=True)
class _Workloads:
    """What a proof runs on its node, and what it sees there."""

    kubectl: Client
    observer: Observer

    def create(self, *objects: Json) -> None:
        self.kubectl.must("create", "--namespace", WORKLOADS, "-f", "-", stdin=together(objects))

    def pods(self, vm: Vm, *names: str) -> None:
        """Create pods without a controller, and wait until they are ready on the node."""
        self.create(*(bare_pod(name, vm.node) for name in names))
        vm.wait(lambda: set(names) <= set(self.observer.evictable(vm.node)))

    def keep(self, *names: str) -> None:
        """Let no pod of these names be evicted, until `release`."""
        self.create(*(budget(name, {"example.com/name": name}, 1) for name in names))

    def release(self, *names: str) -> None:
        self.kubectl.must("delete", "poddisruptionbudget", *names, "--namespace", WORKLOADS)

    def back(self, vm: Vm, event: str) -> bool:
        """Wait until the node is back in service, and no file of the event is left."""
        return vm.wait(lambda: not (vm.cordoned or vm.event_file(event) or vm.is_ready(event)))

    def approved_when_drained(self, vm: Vm, event: str, began: float) -> Verdict:
        """Judge that an event was approved once, after the last pod had left."""
        posts, drained = vm.azure.posts(event), self.observer.drained_at(vm.node, began)
        good = len(posts) == 1 and 0 < drained < posts[0].time and not self.observer.evictable(vm.node)
        after = f"{posts[0].time - drained:.1f} s after the last pod had left" if posts and drained else "never"
        return Verdict(good, "approved once, when the node is drained", f"{len(posts)} POST, {after}")


@dataclass(frozen=True, slots=True)
class Reboot(_Workloads):
    """A platform's reboot, from the notice to the end."""

    def run(self, vm: Vm) -> Iterator[Verdict]:
        """A Deployment whose budget allows one pod at a time, a pod without a controller, and a static pod."""
        labels = {"app": "shop"}
        self.create(
            deployment("shop", labels, 3, vm.node, "3s"),
            budget("shop", labels, 2),
            static_pod("static-web", vm.node),
        )
        self.pods(vm, "debug")
        there = vm.wait(lambda: len(self.observer.evictable(vm.node)) == 4 and self._ready(vm) == 3)
        vm.wait(lambda: self._budget_allows() == 1)
        before = self.observer.evictable(vm.node)
        stay = self.observer.staying(vm.node)
        yield Verdict(there and len(stay) == 2, "pods on the node", ", ".join(before + stay))

        began = vm.now()
        event = vm.azure.announce()
        posted = vm.wait(lambda: bool(vm.azure.posts(event)))
        file = vm.event_file(event)
        yield Verdict(bool(vm.logged(f"cordoned {vm.node}")), "event file, then cordon", file.get("event_type"))
        left = self.observer.departures(vm.node, "app", "shop")
        seen = ", ".join(f"{one.name} after {one.time - began:.0f} s with {one.ready} ready" for one in left)
        good = [one.ready for one in left] == [3, 3, 3]
        yield Verdict(good, "each pod is evicted only when its predecessor's replacement is ready", seen)
        refused = vm.logged("violate the pod's disruption budget", began)
        yield Verdict(bool(refused), "until then, its budget rejects the eviction", f"{len(refused)} rejections")
        moved = [pod["spec"].get("nodeName", "nowhere") for pod in self.observer.pods("app", "shop")]
        yield Verdict(len(moved) == 3 and vm.node not in moved, "their replacements are elsewhere", ", ".join(moved))
        yield Verdict(not self.observer.evictable(vm.node), "the pod without a controller is evicted too")
        yield Verdict(
            self.observer.staying(vm.node) == stay, "the DaemonSet's and the static pod stay", ", ".join(stay)
        )
        ready = vm.logged(": ready, ")
        good = posted and bool(ready) and vm.is_ready(event)
        yield Verdict(good, "then the ready file", vm.pod.mounts.inside(ready[-1].text) if ready else "none")
        yield self.approved_when_drained(vm, event, began)

        vm.azure.start(event)
        vm.wait(lambda: vm.event_file(event).get("status") == "Started")
        steady = vm.stays(lambda: vm.cordoned)
        seen = f"started by {vm.event_file(event).get('started_by')}"
        yield Verdict(steady and vm.event_file(event).get("status") == "Started", "Started: it stays cordoned", seen)
        ended = vm.now()
        vm.azure.end(event)
        back = self.back(vm, event)
        yield Verdict(back, "ended: uncordoned, without the event file and the ready file", f"{vm.now() - ended:.0f} s")
        states = vm.states(began)
        yield Verdict(states == OUT_AND_BACK, "cordon and label came and went in one step each", states)
        yield Verdict(vm.azure.sent == 1, "Azure got one POST in all", vm.azure.sent)
        vm.wait(lambda: bool(vm.logged("resumed", ended)))
        yield Verdict(bool(vm.logged("resumed", ended)), "the log of the handshake", f"\n{_indented(vm.output(began))}")

    def _ready(self, vm: Vm) -> int:
        pods = self.observer.pods("app", "shop")
        found = [pod for pod in pods if pod["spec"].get("nodeName") == vm.node and _is_running(pod)]
        return len(found)

    def _budget_allows(self) -> int:
        found = self.kubectl.json("get", "poddisruptionbudget", "shop", "--namespace", WORKLOADS)
        return int(found.get("status", {}).get("disruptionsAllowed", 0))


@dataclass(frozen=True, slots=True)
class Blocked(_Workloads):
    """A budget that allows no eviction: the event starts at NotBefore, unapproved."""

    folder: Path

    def run(self, vm: Vm) -> Iterator[Verdict]:
        labels = {"app": "single"}
        self.create(deployment("single", labels, 1, vm.node, "0s"), budget("single", labels, "100%"))
        there = vm.wait(lambda: len(self.observer.evictable(vm.node)) == 1)
        began = vm.now()
        event = vm.azure.announce(notice=NOTICE)
        not_before = vm.azure.not_before(event)
        yield from self._alert(vm)
        gave_up = vm.wait(lambda: vm.logged("the event is about to start: no further pod is evicted"))
        yield Verdict(bool(there and gave_up), "the evictions stop", gave_up[0].text if gave_up else "never")
        vm.wait(lambda: vm.now() >= not_before)
        attempts = vm.logged("evicting pod", began)
        ahead = not_before - attempts[-1].time if attempts else 0.0
        seen = f"{len(attempts)} attempts, the last one {ahead:.0f} s before NotBefore"
        yield Verdict(ahead > MARGIN - LATE_SECONDS, "no eviction in the last minute before NotBefore", seen)
        reason = vm.pod.mounts.inside(vm.event_file(event).get("decision", {}).get("why", ""))
        good = not vm.azure.sent and len(self.observer.evictable(vm.node)) == 1 and vm.cordoned
        yield Verdict(good, "the pod stays, and nothing is approved", reason)
        vm.azure.start(event)
        vm.wait(lambda: vm.event_file(event).get("status") == "Started")
        good = vm.stays(lambda: vm.cordoned)
        yield Verdict(good, "Started at NotBefore", f"started by {vm.event_file(event).get('started_by')}")
        vm.azure.end(event)
        back = self.back(vm, event)
        yield Verdict(back and vm.states(began) == OUT_AND_BACK, "uncordoned at the end", vm.states(began))
        yield Verdict(not vm.azure.sent and len(self.observer.evictable(vm.node)) == 1, "and never approved")

    def _alert(self, vm: Vm) -> Iterator[Verdict]:
        if not shutil.which("prometheus"):
            if os.environ.get("CI") == "true":
                yield Verdict(False, ALERT, "prometheus isn't installed")
            return
        vm.wait(lambda: vm.address)
        scrapes = [scrape(NAME, vm.address)]
        with prometheus(self.folder / "prometheus", scrapes, rules=[RULES], interval="1s") as server:
            firing = vm.wait(lambda: _query(server, IMMINENT))
        yield Verdict(bool(firing), ALERT, ", ".join(f"{one['metric']['event_type']}" for one in firing))


@dataclass(frozen=True, slots=True)
class Several(_Workloads):
    """Two events at once, and a canceled one."""

    def run(self, vm: Vm) -> Iterator[Verdict]:
        began = vm.now()
        self.pods(vm, "both")
        first, second = vm.azure.announce_all(("Reboot", "Redeploy"))
        vm.wait(lambda: bool(vm.azure.posts(first) and vm.azure.posts(second)))
        sent = [len(vm.azure.posts(event)) for event in (first, second)]
        good = sent == [1, 1] and len(vm.logged(f"cordoned {vm.node}", began)) == 1
        yield Verdict(good, "two events at once: one cordon, and each approved once", sent)
        for event in (first, second):
            vm.azure.start(event)
        vm.wait(lambda: vm.event_file(second).get("status") == "Started")
        vm.azure.end(first)
        gone = vm.wait(lambda: not (vm.event_file(first) or vm.is_ready(first)))
        good = gone and vm.stays(lambda: vm.cordoned) and vm.is_ready(second)
        yield Verdict(good, "one has ended: the node stays cordoned")
        vm.azure.end(second)
        back = self.back(vm, second)
        yield Verdict(back and vm.states(began) == OUT_AND_BACK, "both have ended: uncordoned", vm.states(began))

        began, sent_before = vm.now(), vm.azure.sent
        self.pods(vm, "canceled")
        self.keep("canceled")
        event = vm.azure.announce()
        cordoned = vm.wait(lambda: bool(vm.logged("evicting pod", began)) and vm.cordoned)
        vm.azure.end(event)
        back = self.back(vm, event)
        good = cordoned and back and vm.states(began) == OUT_AND_BACK
        yield Verdict(good, "canceled during the drain: uncordoned", vm.states(began))
        good = vm.azure.sent == sent_before and self.observer.evictable(vm.node) == ["canceled"]
        yield Verdict(good, "its pod stays, and nothing is approved", f"{vm.azure.sent - sent_before} POST")
        self.release("canceled")


@dataclass(frozen=True, slots=True)
class Killed(_Workloads):
    """SIGKILL to all processes of the container, at each point of an event."""

    lose_state: bool

    def run(self, vm: Vm) -> Iterator[Verdict]:
        for number, point in enumerate(POINTS):
            yield from self._killed(vm, point, f"{vm.node}-{number}")

    def _killed(self, vm: Vm, point: str, name: str) -> Iterator[Verdict]:
        began, sent = vm.now(), vm.azure.sent
        free, kept = f"{name}-free", f"{name}-kept"
        self.keep(kept, *((free,) if point == POINTS[0] else ()))
        self.pods(vm, free, kept)
        event = vm.azure.announce()
        reached = self._reach(vm, point, event, began, kept)
        early = point in POINTS[:2] and vm.azure.sent > sent
        left = self.observer.evictable(vm.node)
        vm.kill("handshake")
        if point == POINTS[0]:
            self.release(free, kept)
        elif point == POINTS[1]:
            self.release(kept)
        if point == POINTS[4]:
            vm.connect()
        if point == POINTS[5]:
            vm.azure.end(event)
            vm.wait(lambda: not vm.event_file(event))
        vm.restart(lose_state=self.lose_state)
        if point in POINTS[:3]:
            vm.wait(lambda: bool(vm.azure.posts(event)))
        approved = self.approved_when_drained(vm, event, began)
        if point in POINTS[:3]:
            vm.azure.start(event)
        steady = True
        if point in POINTS[:4]:
            vm.wait(lambda: vm.event_file(event).get("status") == "Started")
            steady = vm.stays(lambda: vm.cordoned)
            vm.azure.end(event)
        back = self.back(vm, event)
        states = vm.states(began)
        good = reached and not early and approved.holds and steady and back and states == OUT_AND_BACK
        good = good and vm.azure.sent == sent + 1
        seen = f"on it when killed: {', '.join(left) or 'no pod'}; {approved.seen}; {'' if back else 'NOT '}uncordoned"
        if not good:
            seen += f"; reached {reached}, early {early}, steady {steady}, states {states}, {vm.azure.sent - sent} POST"
        yield Verdict(good, f"{point}: approved once, when drained, and uncordoned in the end", seen)

    def _reach(self, vm: Vm, point: str, event: str, began: float, kept: str) -> bool:
        """Bring the event to the point at which the handshake is killed."""
        if point == POINTS[0]:
            return vm.wait(lambda: vm.cordoned) and len(self.observer.evictable(vm.node)) == 2
        vm.wait(lambda: self.observer.evictable(vm.node) == [kept])
        if point == POINTS[1]:
            return vm.cordoned and self.observer.evictable(vm.node) == [kept]
        self.release(kept)
        ready = vm.wait(lambda: vm.is_ready(event))
        if point == POINTS[2]:
            return ready
        vm.wait(lambda: bool(vm.azure.posts(event)))
        vm.azure.start(event)
        started = vm.wait(lambda: vm.event_file(event).get("status") == "Started")
        if point in (POINTS[3], POINTS[5]):
            return started
        vm.disconnect()
        vm.azure.end(event)
        return bool(vm.wait(lambda: vm.logged("resume failed", began))) and vm.cordoned


@dataclass(frozen=True, slots=True)
class Freezes(_Workloads):
    """Freezes drain nothing; an eviction, which no approval can start or delay, drains the node."""

    def run(self, vm: Vm) -> Iterator[Verdict]:
        began = vm.now()
        self.pods(vm, "frozen")
        unknown = vm.azure.announce("Freeze", DurationInSeconds=-1)
        vm.wait(lambda: vm.event_file(unknown).get("decision"))
        decision = vm.event_file(unknown).get("decision") or {}
        yield Verdict(decision.get("decision") == "hold", "a freeze of unknown duration: held", decision.get("why"))
        short = vm.azure.announce("Freeze", DurationInSeconds=5)
        vm.wait(lambda: bool(vm.azure.posts(short)))
        rule = (vm.event_file(short).get("decision") or {}).get("rule")
        sent = len(vm.azure.posts(short))
        yield Verdict(sent == 1 and rule == "short-freeze", "a freeze of 5 s: approved at once", f"rule {rule}")
        vm.stays(lambda: not vm.cordoned)
        vm.azure.start(short)
        vm.wait(lambda: vm.event_file(short).get("status") == "Started")
        for event in (short, unknown):
            vm.azure.end(event)
            vm.wait(lambda event=event: not vm.event_file(event))  # type: ignore[misc]  # mypy infers no lambda default
        good = vm.states(began) == [(False, False)] and self.observer.evictable(vm.node) == ["frozen"]
        good = good and not vm.azure.posts(unknown) and vm.azure.sent == 1
        yield Verdict(good, "no cordon, no eviction, and one POST in all", vm.states(began))
        began = vm.now()
        preempt = vm.azure.announce("Preempt", notice=60.0)
        drained = vm.wait(lambda: vm.logged("prepared", began)) and not self.observer.evictable(vm.node)
        vm.azure.end(preempt)
        back = self.back(vm, preempt)
        good = bool(drained) and back and vm.states(began) == OUT_AND_BACK and vm.azure.sent == 1
        yield Verdict(good, "a Preempt: drained without an approval, and uncordoned when it is canceled")
        began = vm.now()
        late = vm.azure.announce(notice=MARGIN + 30.0)
        vm.wait(lambda: vm.is_ready(late))
        ready = vm.stays(lambda: vm.is_ready(late), vm.azure.not_before(late) - vm.now() - 1.0)
        checks = len(vm.logged("running prepare", began))
        good = ready and checks > 1 and not vm.logged("about to start", began)
        yield Verdict(good, "a Reboot within a minute: the drained node stays ready", f"checked {checks} times")
        vm.azure.end(late)
        self.back(vm, late)


@dataclass(frozen=True, slots=True)
class Foreign(_Workloads):
    """A node that an administrator has cordoned."""

    def run(self, vm: Vm) -> Iterator[Verdict]:
        began = vm.now()
        self.pods(vm, "foreign")
        event = vm.azure.announce()
        vm.wait(lambda: bool(vm.azure.posts(event)))
        yield self.approved_when_drained(vm, event, began)
        vm.azure.start(event)
        vm.wait(lambda: vm.event_file(event).get("status") == "Started")
        vm.azure.end(event)
        resumed = vm.wait(lambda: vm.logged("resumed", began))
        said = vm.logged("someone else has cordoned", began)
        good = bool(resumed and said) and vm.states(began) == [(True, False)]
        yield Verdict(good, "it stays cordoned, without the label", said[0].text if said else "no line")


@dataclass(frozen=True, slots=True)
class Unavailable(_Workloads):
    """No API server when the event appears, and none when it ends."""

    def run(self, vm: Vm) -> Iterator[Verdict]:
        began = vm.now()
        self.pods(vm, "unavailable")
        vm.disconnect()
        event = vm.azure.announce()
        failed = vm.wait(lambda: vm.logged("prepare failed", began))
        refused = [line.text for line in vm.logged("refused", began)]
        good = bool(failed and refused) and not vm.cordoned and not vm.azure.sent
        yield Verdict(good, "at the notice: logged, and nothing approved", f"{_last(refused)}; {_last(failed)}")
        vm.connect()
        vm.wait(lambda: bool(vm.azure.posts(event)))
        yield self.approved_when_drained(vm, event, began)
        vm.azure.start(event)
        vm.wait(lambda: vm.event_file(event).get("status") == "Started")
        vm.disconnect()
        vm.azure.end(event)
        failed = vm.wait(lambda: vm.logged("resume failed", began))
        yield Verdict(bool(failed) and vm.cordoned, "at the end: logged, and still cordoned", _last(failed))
        vm.connect()
        back = self.back(vm, event)
        yield Verdict(back and vm.states(began) == OUT_AND_BACK, "it is back: uncordoned", vm.states(began))


@dataclass(frozen=True, slots=True)
class PowerLoss(_Workloads):
    """The event itself: the VM reboots, and /run is empty afterwards."""

    def run(self, vm: Vm) -> Iterator[Verdict]:
        began = vm.now()
        self.pods(vm, "rebooted")
        event = vm.azure.announce()
        vm.wait(lambda: bool(vm.azure.posts(event)))
        yield self.approved_when_drained(vm, event, began)
        vm.azure.start(event)
        vm.wait(lambda: vm.event_file(event).get("status") == "Started")
        vm.lose_power()
        gone = not vm.event_file(event) and not vm.is_ready(event)
        vm.start_handshake()
        steady = vm.stays(lambda: vm.cordoned)
        yield Verdict(gone and steady, "after the reboot, without the agent: still cordoned")
        vm.start_agent()
        vm.wait(lambda: vm.event_file(event).get("status") == "Started")
        steady = vm.stays(lambda: vm.cordoned)
        yield Verdict(steady and vm.event_file(event).get("status") == "Started", "still Started: still cordoned")
        vm.azure.end(event)
        back = self.back(vm, event)
        good = back and vm.states(began) == OUT_AND_BACK and vm.azure.sent == 1
        yield Verdict(good, "ended: uncordoned, and approved once in all", vm.states(began))


@dataclass(frozen=True, slots=True)
class Permissions(_Workloads):
    """What the token of the handshake allows."""

    def run(self, vm: Vm) -> Iterator[Verdict]:
        account = vm.pod.object["spec"]["serviceAccountName"]
        role = self.kubectl.json("get", "clusterrole", f"{RELEASE}-{NAME}-handshake")
        wanted = granted(role["rules"])
        own = granted(self._rules(vm.kubectl)) - granted(self._rules(self._default(vm)))
        yield Verdict(own == wanted, f"the token of {account} allows only what the ClusterRole contains", _shown(own))
        listed = vm.kubectl("auth", "can-i", "--list")
        yield Verdict(
            listed.good and "pods/eviction" in listed.out, "kubectl auth can-i --list", _resources(listed.out)
        )
        denied: list[tuple[str, str, Json]] = [
            ("linux-0", "its own node", {"spec": {"unschedulable": True}}),
            ("linux-0", "its own node", {"metadata": {"labels": {LABEL: "true"}}}),
            (vm.node, "no label apart from its own", {"metadata": {"labels": {"example.com/pool": "other"}}}),
            (vm.node, "no label apart from its own", {"metadata": {"labels": {"kubernetes.io/arch": None}}}),
            (vm.node, "together with its label", {"spec": {"unschedulable": True}}),
            (vm.node, "only cordon and uncordon", {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
            (vm.node, "only cordon and uncordon", {"spec": {"providerID": "azure:///other"}}),
            (vm.node, "only cordon and uncordon", {"metadata": {"annotations": {"example.com/a": "b"}}}),
            (vm.node, "only cordon and uncordon", {"metadata": {"finalizers": ["example.com/a"]}}),
            (vm.node, "only cordon and uncordon", {"metadata": {"ownerReferences": [OWNER]}}),
        ]
        for node, words, patch in denied:
            answer = vm.kubectl("patch", "node", node, "--type", "merge", "--patch", json.dumps(patch))
            which = "its own node" if node == vm.node else "another node"
            good = not answer.good and words in answer.err
            yield Verdict(good, f"{which}, {json.dumps(patch)}: denied", answer.refusal or "accepted")
        for wrong in (("get", "secrets"), ("delete", "node", "linux-0"), ("get", "nodes")):
            answer = vm.kubectl(*wrong, "--namespace", "kube-system")
            yield Verdict("forbidden" in answer.err, f"{' '.join(wrong)}: forbidden", answer.refusal or "accepted")
        paths = {part["name"]: _mounted(part) for part in vm.pod.object["spec"]["containers"]}
        good = TOKEN in paths["handshake"] and TOKEN not in paths["agent"]
        good = good and vm.pod.object["spec"].get("automountServiceAccountToken") is False
        where = ", ".join(name for name, mounted in paths.items() if TOKEN in mounted)
        good = good and READY in paths["agent"]
        yield Verdict(good, "only the handshake's container mounts the token", where)

    def _default(self, vm: Vm) -> Client:
        """kubectl as an account without any role, in the same namespace."""
        token = self.kubectl.must("create", "token", "default", "--namespace", NAMESPACE).strip()
        config = json.loads(vm.kubectl.kubeconfig.read_text(encoding="utf-8"))
        config["users"][0]["user"] = {"token": token}
        path = vm.kubectl.kubeconfig.with_name("default.kubeconfig")
        path.touch(mode=0o600)
        path.write_text(json.dumps(config), encoding="utf-8")
        return Client(vm.kubectl.path, path, vm.kubectl.home)

    def _rules(self, kubectl: Client) -> list[Json]:
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
        review = json.dumps({**kind, "spec": {"namespace": NAMESPACE}})
        answer = json.loads(kubectl.must("create", "--validate=false", "-o", "json", "-f", "-", stdin=review))
        rules: list[Json] = answer["status"]["resourceRules"]
        return rules


def granted(rules: list[Json]) -> frozenset[tuple[str, str, str]]:
    """Return each API group, resource, and verb that rules of RBAC grant."""
    return frozenset(
        (group, resource, verb)
        for rule in rules
        for group in rule.get("apiGroups", [])
        for resource in rule.get("resources", [])
        for verb in rule["verbs"]
    )


# -- objects


def deployment(name: str, labels: Json, replicas: int, node: str, ready_after: str) -> Json:
    """Return a Deployment whose pods prefer a node, else are on `SPARE`, and are ready after a time."""
    own, both = (
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": values}]}
        for values in ([node], [node, SPARE])
    )
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [both]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": own}],
    }
    spec = {
        "affinity": {"nodeAffinity": affinity},
        "containers": [{"name": "main", "image": f"registry.example.com/{name}:1"}],
    }
    metadata = {"labels": labels, "annotations": {"example.com/ready-after": ready_after}}
    template = {"metadata": metadata, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def budget(name: str, labels: Json, available: int | str) -> Json:
    """Return a PodDisruptionBudget."""
    spec = {"minAvailable": available, "selector": {"matchLabels": labels}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}


def bare_pod(name: str, node: str) -> Json:
    """Return a pod without a controller, on a node whatever its taints."""
    spec: Json = {"nodeName": node, "tolerations": [{"operator": "Exists"}]}
    spec["containers"] = [{"name": "main", "image": "registry.example.com/bare:1"}]
    metadata = {"name": name, "labels": {"example.com/name": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def static_pod(name: str, node: str) -> Json:
    """Return the mirror pod that a kubelet creates for a static pod."""
    pod = bare_pod(f"{name}-{node}", node)
    pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "0" * 32}
    return pod


# -- texts


def _is_running(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _query(server: Daemon, expression: str) -> list[dict[str, Any]]:
    return server.query(expression)


def _mounted(container: Json) -> set[str]:
    return {mount["mountPath"] for mount in container["volumeMounts"]}


def _shown(rules: frozenset[tuple[str, str, str]]) -> str:
    return ", ".join(sorted(f"{verb} {resource}" for _, resource, verb in rules))


def _resources(table: str) -> str:
    """Return the resources of kubectl's table, without those of every user."""
    names = [line.split()[0] for line in table.splitlines()[1:] if line and not line.startswith(" ")]
    return ", ".join(name for name in names if not name.startswith("self"))


def _last(lines: list[Any]) -> str:
    return str(getattr(lines[-1], "text", lines[-1])) if lines else "no line"


def _indented(lines: list[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
