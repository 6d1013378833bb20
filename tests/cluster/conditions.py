"""Node conditions: the real node-problem-detector runs `deploy/kubernetes/node-problem-detector` on a node of kwok.

Its arguments, environment, and files are those of the applied pod, its token is the ServiceAccount's, and the agent's
own writer writes the event files. No container runs: the paths of the pod are replaced by folders.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import httpx

from exporter.event_files.folder import Folder
from exporter.event_files.writer import Reconciler
from exporter.log.protocol import NullLogger
from tests.cluster import nodes
from tests.cluster.clients import Answer, Client, Json
from tests.cluster.daemons import Daemon, wait_for
from tests.cluster.manifests import KUSTOMIZE, NAMESPACE, STRICT, objections
from tests.cluster.plane import Plane
from tests.cluster.programs import DETECTOR, Programs
from tests.cluster.verdicts import Verdicts
from tests.support.statuses import FREEZE, REBOOT, EventScenario, failing_status, started

NAME: Final = "azure-scheduled-events-node-problem-detector"
NODE: Final = "linux-0"
SOURCES: Final = ("azure-scheduled-events", "azure-scheduled-events-types")
TYPES: Final = ("Reboot", "Redeploy", "Freeze", "Preempt", "Terminate")
AGAINST_RESTRICTED: Final = 'restricted volume types (volume "event-files" uses restricted volume type "hostPath")'
SECONDS: Final = 90.0
"""More than a slow machine needs for several runs of the plugin, each 5 s after the last."""


class Files:
    """The event files of a scenario, written by the agent's own writer."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.scenario = folder, EventScenario()
        self._writer = Reconciler(
            Folder(str(folder)),
            (),
            version="1",
            log=NullLogger(),
            now=lambda: datetime.now(UTC),
            monotonic=time.monotonic,
        )
        self.responds = True

    def read(self, *events: dict[str, Any]) -> None:
        """Read a document with these events."""
        self.scenario.read(*events)

    def write(self, *, running: bool = True) -> None:
        """Write what has changed, and status.json every few seconds."""
        status = self.scenario.status() if self.responds else failing_status(self.scenario)
        self._writer.reconcile(status, running=running)

    def die(self) -> None:
        """Leave status.json as a dead agent does after a minute."""
        old = time.time() - 60
        os.utime(self.folder / "status.json", (old, old))


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of the node."""

    status: str
    reason: str
    message: str

    @classmethod
    def of(cls, found: Json) -> Self:
        return cls(found["status"], found["reason"], found["message"])


@dataclass(frozen=True, slots=True)
class Conditions:
    """The proofs, in their order."""

    plane: Plane
    programs: Programs
    verdicts: Verdicts
    folder: Path

    def run(self) -> None:
        say, kubectl = self.verdicts.say, self._kubectl
        kubectl.must("apply", "-f", KUSTOMIZE / "base" / "namespace.yaml")
        kubectl.must("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/warn=restricted")
        answer = kubectl("apply", STRICT, "-k", self._kustomization)
        objects = f"{len(answer.out.splitlines())} objects"
        say(answer.good, "the kustomization is accepted, validated strictly", answer.refusal or objects)
        found = [objections(warning) for warning in answer.warnings]
        only = found == [("restricted", (AGAINST_RESTRICTED,))]
        say(only, "the level restricted objects only to the directory of the event files", "; ".join(answer.warnings))
        again = kubectl("diff", "-k", self._kustomization)
        say(again.good, "applied again it changes nothing", again.refusal or again.out[:300])
        wanted = sorted(nodes.names("linux"))
        landed = wait_for(lambda: self._landed() == wanted, SECONDS)
        say(landed, "a pod on each Linux VM and no other", ", ".join(self._landed()))
        (pod,) = (pod for pod in self._pods() if pod["spec"]["nodeName"] == NODE)
        (container,) = pod["spec"]["containers"]
        command, image = container["command"][0], container["image"]
        tested = (command, image.rpartition(":")[2]) == ("/node-problem-detector", DETECTOR)
        say(tested, f"it runs the version that is tested, {DETECTOR}", image)
        self._rights(self._as(pod))
        files = Files(self.folder / "events")
        files.read()
        with self._detector(pod, files):
            self._report(files)
        self._start_unknown(pod, files)
        self._events()
        gone = kubectl("delete", "-k", self._kustomization, "--wait")
        left = kubectl("get", "clusterrole,clusterrolebinding", "-o", "name").out
        say(gone.good and NAME not in left, "it goes by kubectl delete", gone.refusal)
        kubectl.must("delete", "namespace", NAMESPACE, "--wait")

    @property
    def _kubectl(self) -> Client:
        return self.plane.kubectl

    @property
    def _kustomization(self) -> Path:
        return KUSTOMIZE / "node-problem-detector"

    def _pods(self) -> list[Json]:
        return self._kubectl.items("pods", "--namespace", NAMESPACE, "--selector", f"app.kubernetes.io/name={NAME}")

    def _landed(self) -> list[str]:
        return sorted(pod["spec"].get("nodeName", "nowhere") for pod in self._pods())

    # -- its identity

    def _as(self, pod: Json) -> Client:
        """Return a kubectl with the token of the pod's ServiceAccount, bound to this pod as the kubelet's is."""
        account, name = pod["spec"]["serviceAccountName"], pod["metadata"]["name"]
        bound = ("--bound-object-kind", "Pod", "--bound-object-name", name)
        token = self._kubectl.must("--namespace", NAMESPACE, "create", "token", account, *bound).strip()
        config = json.loads(self._kubectl.kubeconfig.read_text(encoding="utf-8"))
        config["users"][0]["user"] = {"token": token}
        path = self.folder / "detector.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config), encoding="utf-8")
        return Client(self._kubectl.path, path, self.folder)

    def _rights(self, own: Client) -> None:
        """It can do what it needs, and nothing else."""
        patch = '{"metadata": {"labels": {"example.com/label": "x"}}, "spec": {"unschedulable": true}}'
        refused = {
            "list nodes": own("get", "nodes"),
            "list pods": own("get", "pods", "--all-namespaces"),
            "read Secrets": own("get", "secrets", "--namespace", NAMESPACE),
            "label and cordon its node": own("patch", "node", NODE, "--patch", patch),
            "delete its node": own("delete", "node", NODE),
            "evict a pod": own(
                "create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/x/eviction", "-f", "-", stdin="{}"
            ),
            "delete events": own("delete", "events", "--all"),
        }
        permitted = [what for what, answer in refused.items() if not _is_forbidden(answer)]
        self.verdicts.say(not permitted, f"it can't {', '.join(refused)}", "; ".join(permitted) or "all are forbidden")
        code = self._patch_status(own, '{"spec": {"unschedulable": true}}')
        self.verdicts.say(
            code == httpx.codes.OK and "unschedulable" not in self._node()["spec"],
            "its right to patch the status of nodes can't cordon one",
            f"HTTP {code}, and {NODE} is schedulable",
        )

    def _patch_status(self, own: Client, patch: str) -> int:
        """Return the HTTP status of a patch as node-problem-detector sends it; kubectl would read the status first."""
        config = json.loads(own.kubeconfig.read_text(encoding="utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        headers = {"Authorization": f"Bearer {user['token']}", "Content-Type": "application/strategic-merge-patch+json"}
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        url = f"{cluster['server']}/api/v1/nodes/{NODE}/status"
        return httpx.patch(url, content=patch, headers=headers, verify=context, trust_env=False).status_code

    # -- its process

    @contextlib.contextmanager
    def _detector(self, pod: Json, files: Files) -> Iterator[Daemon]:
        """Run node-problem-detector as the pod does, for the block."""
        (container,) = pod["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        plugin = self.folder / "plugin"
        plugin.mkdir(exist_ok=True)
        (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == "plugin")
        name = volume["configMap"]["name"]
        data = self._kubectl.json("--namespace", NAMESPACE, "get", "configmap", name)["data"]
        for key, text in data.items():
            path = plugin / key
            path.unlink(missing_ok=True)
            path.write_text(_moved(text, mounts["plugin"], plugin), encoding="utf-8")
            path.chmod(volume["configMap"]["defaultMode"])
        _, *arguments = container["command"]
        kubeconfig = self._as(pod).kubeconfig
        own = [_moved(argument, mounts["plugin"], plugin) for argument in arguments]
        own.append(f"--apiserver-override=https://cluster?inClusterConfig=false&auth={kubeconfig}")
        environment = {"PATH": os.environ["PATH"], "EVENTS": str(files.folder)}
        for variable in container["env"]:
            environment[variable["name"]] = pod["spec"]["nodeName"]
            assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
        with Daemon([self.programs.node_problem_detector, *own], self.folder, environment) as daemon:
            yield daemon
            daemon.check()

    def _node(self) -> Json:
        return self._kubectl.json("get", "node", NODE)

    def _all(self) -> dict[str, Condition]:
        """Return the conditions by type."""
        return {one["type"]: Condition.of(one) for one in self._node()["status"]["conditions"]}

    def _becomes(self, files: Files, is_so: Callable[[dict[str, Condition]], object], sentence: str) -> None:
        """Judge that the conditions become so while the agent writes."""

        def look() -> bool:
            files.write()
            return bool(is_so(self._all()))

        holds = wait_for(look, SECONDS)
        self.verdicts.say(holds, sentence, self._summary())

    def _summary(self) -> str:
        found = self._all()
        main = found.get("ScheduledMaintenance", "none")
        others = [f"{name}={found[name].status}" for name in map(_type, TYPES) if name in found]
        return f"{main} {' '.join(others)}"

    # -- what it reports

    def _report(self, files: Files) -> None:
        """Walk through the life of two events."""
        self._becomes(files, lambda all: _statuses(all) == {"False"}, "no event: all conditions are False")
        reboot, freeze = {**REBOOT}, {**FREEZE}
        files.read(reboot)
        self._becomes(
            files,
            lambda all: (
                _is(all, "ScheduledEvent", "Reboot Scheduled, not before 2025-11-21T12:22:00Z, source Platform,")
                and _true(all) == {"ScheduledMaintenance", "ScheduledReboot"}
                and all["ScheduledReboot"].reason == "RebootEvent"
            ),
            "a scheduled Reboot: True, with its type, time, and id",
        )
        self.verdicts.say(_is_ready(self._node()), "the kubelet's conditions remain", ", ".join(self._all()))
        files.read({**reboot, "NotBefore": "Fri, 21 Nov 2025 12:42:00 GMT"})
        self._becomes(
            files,
            lambda all: _is(all, "ScheduledEvent", "Reboot Scheduled, not before 2025-11-21T12:42:00Z"),
            "a new time is shown",
        )
        files.read(reboot, freeze)
        self._becomes(
            files,
            lambda all: (
                _is(all, "ScheduledEvent", "Freeze Scheduled, not before 2025-11-21T12:15:00Z")
                and all["ScheduledMaintenance"].message.endswith(", and 1 more")
                and _true(all) == {"ScheduledMaintenance", "ScheduledReboot", "ScheduledFreeze"}
            ),
            "two events: the most urgent one, and a condition for each type",
        )
        files.read(started(reboot), freeze)
        self._becomes(files, lambda all: _is(all, "ScheduledEvent", "Reboot Started"), "the start is shown")
        files.responds = False
        files.read(started(reboot))
        self._becomes(
            files,
            lambda all: (
                _true(all) == {"ScheduledMaintenance", "ScheduledReboot"} and all["ScheduledFreeze"].status == "Unknown"
            ),
            "the metadata service is silent: the known event stays True, and the others are Unknown",
        )
        files.responds = True
        files.read()
        self._becomes(files, lambda all: _statuses(all) == {"False"}, "all events have ended: all conditions are False")
        files.write(running=False)
        unknown = wait_for(lambda: _statuses(self._all()) == {"Unknown"}, SECONDS)
        self.verdicts.say(unknown, "the agent was stopped: all conditions are Unknown", self._summary())
        self._becomes(files, lambda all: _statuses(all) == {"False"}, "the agent runs again: False")
        files.read(reboot)
        files.write()
        files.die()
        unknown = wait_for(lambda: _statuses(self._all()) == {"Unknown"}, SECONDS)
        self.verdicts.say(unknown, "the agent is dead: Unknown, although an event was known", self._summary())

    def _start_unknown(self, pod: Json, files: Files) -> None:
        """node-problem-detector's own default at its start would be False."""
        before = self._heartbeat()
        seen: set[str] = set()

        def look() -> bool:
            seen.update(_statuses(self._all()))
            return self._heartbeat() > before

        with self._detector(pod, files):
            written = wait_for(look, SECONDS)
        seen |= _statuses(self._all())
        say = self.verdicts.say
        say(
            written and seen == {"Unknown"},
            "node-problem-detector starts without the agent: Unknown, never False",
            seen,
        )

    def _heartbeat(self) -> str:
        (found,) = (one for one in self._node()["status"]["conditions"] if one["type"] == "ScheduledMaintenance")
        return str(found["lastHeartbeatTime"])

    def _events(self) -> None:
        """Each change of a condition is an event."""
        of_nodes = self._kubectl.items("events", "--all-namespaces", "--field-selector", "involvedObject.kind=Node")
        events = [event for event in of_nodes if event["source"].get("component") in SOURCES]
        found = {(event["type"], event["reason"]) for event in events if event["involvedObject"]["name"] == NODE}
        wanted = {("Warning", "ScheduledEvent"), ("Warning", "RebootEvent"), ("Normal", "NoKnownScheduledEvent")}
        spaces = {event["metadata"]["namespace"] for event in events}
        say = self.verdicts.say
        say(wanted <= found, "Kubernetes events have the changes, with a reason for each type", (sorted(found), spaces))


def _moved(text: str, path: str, folder: Path) -> str:
    return text.replace(path, str(folder))


def _type(event_type: str) -> str:
    return f"Scheduled{event_type}"


def _ours(conditions: dict[str, Condition]) -> dict[str, Condition]:
    names = ("ScheduledMaintenance", *map(_type, TYPES))
    return {name: conditions[name] for name in names if name in conditions}


def _statuses(conditions: dict[str, Condition]) -> set[str]:
    """Return the statuses of the plugin's conditions; all must exist."""
    ours = _ours(conditions)
    return {one.status for one in ours.values()} if len(ours) == 1 + len(TYPES) else set()


def _true(conditions: dict[str, Condition]) -> set[str]:
    return {name for name, one in _ours(conditions).items() if one.status == "True"}


def _is(conditions: dict[str, Condition], reason: str, begins: str) -> bool:
    found = conditions["ScheduledMaintenance"]
    return (found.status, found.reason) == ("True", reason) and found.message.startswith(begins)


def _is_ready(node: Json) -> bool:
    conditions = node["status"]["conditions"]
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)


def _is_forbidden(answer: Answer) -> bool:
    return not answer.good and "forbidden" in answer.err.lower()
