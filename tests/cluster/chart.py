"""The chart, packed as it is published: installed, upgraded, rolled back, and uninstalled by Helm."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.cluster import crds, nodes, values
from tests.cluster.agents import NAME, SELECTOR, Agents
from tests.cluster.clients import Answer, Client, Json
from tests.cluster.daemons import ClusterError, wait_for
from tests.cluster.manifests import ROOT, STRICT
from tests.cluster.plane import Plane
from tests.cluster.programs import Programs
from tests.cluster.values import Values
from tests.cluster.verdicts import Verdicts
from tests.cluster.watch import Watch, most_unavailable

CHART: Final = ROOT / "deploy" / "helm" / NAME
DOCUMENTATION: Final = ROOT / "docs" / "kubernetes.md"
RELEASE: Final = "agent"
NAMESPACE: Final = "monitoring"
SECONDS: Final = 60.0
NEITHER: Final = "events,events.events.k8s.io,pods.metrics.k8s.io"


@dataclass(frozen=True, slots=True)
class Chart:
    """The proofs with Helm, in their order. `helm` is the Helm of this round."""

    plane: Plane
    programs: Programs
    verdicts: Verdicts
    folder: Path
    helm: Client
    archive: Path

    def run(self) -> None:
        """Run the proofs without any CRD first, then with them."""
        self._refuse()
        self._life()
        self._without_definitions()
        with self._installed({**values.TLS}, "with TLS and a password"):
            self._agents.land(self.verdicts, "its pods land")
        with self._installed(values.WINDOWS, "with Windows pools"):
            self._windows()
        self._side_by_side()
        crds.make(self._kubectl, self.programs)
        self._documented()
        with self._installed(values.EVERYTHING, "with everything on"):
            everywhere = nodes.names("linux") | nodes.names("windows")
            self._agents.land(self.verdicts, "its pods land on Linux and on Windows", everywhere)
            self._selected(crds.OPERATOR)
        with self._installed(values.AZURE, "for Azure's managed Prometheus, by a managed identity"):
            self._selected(crds.AZURE)
        crds.remove(self._kubectl)

    def run_briefly(self) -> None:
        """Run the proof of another Helm: the life of a release."""
        self._life()

    @property
    def _kubectl(self) -> Client:
        return self.plane.kubectl

    @property
    def _agents(self) -> Agents:
        return Agents(self._kubectl, NAMESPACE)

    # -- Helm

    def _helm(self, command: str, *arguments: str | Path, own: Values | None = None) -> Answer:
        """Run a command about the release; `own` are the values."""
        chosen: tuple[str | Path, ...] = ()
        if own is not None:
            path = self.folder / "values.json"
            path.write_text(json.dumps(own), encoding="utf-8")  # JSON is YAML
            chosen = (self.archive, "--values", path)
        return self.helm(command, RELEASE, *chosen, "--namespace", NAMESPACE, *arguments)

    def _install(self, own: Values, *arguments: str) -> Answer:
        return self._helm("install", "--create-namespace", "--wait", "--timeout", "90s", *arguments, own=own)

    @contextlib.contextmanager
    def _installed(self, own: Values, name: str) -> Iterator[None]:
        """Install it for the block; judge that it is accepted, and that no object of it remains."""
        say, before = self.verdicts.say, self._everything()
        template = self._helm("template", "--api-versions", f"{crds.OPERATOR}/v1", own=own)
        strict = self._kubectl("apply", STRICT, "--dry-run=server", "-f", "-", stdin=template.out)
        say(strict.good and not strict.warnings, f"{name}: valid, strictly", template.refusal or strict.recorded)
        answer = self._install(own)
        say(answer.good and not answer.warnings, f"{name}: installed", answer.recorded)
        yield
        gone = self._helm("uninstall", "--wait")
        left = wait_for(lambda: not self._everything() - before, SECONDS)
        seen = gone.refusal or ", ".join(sorted(self._everything() - before)) or "nothing left"
        say(gone.good and left, f"{name}: uninstalled without a trace", seen)

    def _everything(self) -> frozenset[str]:
        """Return every object of the namespace, and every cluster-wide one; no events, and no leases of nodes."""
        self._kubectl("create", "namespace", NAMESPACE)
        found: set[str] = set()
        for scope in ("true", "false"):
            kinds = self._kubectl.must("api-resources", "--verbs=list", f"--namespaced={scope}", "-o", "name").split()
            wanted = ",".join(kind for kind in kinds if kind not in NEITHER.split(","))
            found |= set(self._kubectl.must("get", wanted, "--namespace", NAMESPACE, "-o", "name").split())
        return frozenset(one for one in found if not one.startswith(("csinode", "lease")))

    # -- proofs

    def _refuse(self) -> None:
        for one in values.REFUSED:
            answer = self._helm("template", own=one.values)
            said = " ".join(answer.err.split())
            what = f"rejected: {one.name}"
            self.verdicts.say(not answer.good and one.words in said, what, said[-200:] or "accepted")

    def _life(self) -> None:
        """Install, upgrade, roll back, and uninstall, with the default values except for the changes."""
        say, agents, wanted = self.verdicts.say, self._agents, nodes.names("linux")
        with self._installed({}, "default values"):
            agents.land(self.verdicts, "a ready pod on each Linux VM and no other")
            first = self._daemon_set()
            answer = self._upgrade({})
            same = self._daemon_set()["metadata"]["generation"] == first["metadata"]["generation"]
            say(answer.good and same, "an upgrade that changes nothing rolls nothing", answer.refusal)
            before = agents.uids()
            with Watch(self._kubectl, "pods", "--namespace", NAMESPACE, "--selector", SELECTOR) as watch:
                wait_for(lambda: len(watch.changes()) >= len(wanted), SECONDS)
                answer = self._upgrade({"log": {"format": "logfmt"}, "settings": {"records": {"scope": "all"}}})
                rolled = agents.wait() and answer.good and not before & agents.uids()
                most = most_unavailable((change.event for change in watch.changes()), wanted)
            recorded = answer.refusal or f"{len(agents.uids())} new pods, at most {most} node without a ready one"
            say(rolled and most == 1, "changed values roll out, one node at a time", recorded)
            second = self._daemon_set()
            same = second["spec"]["selector"] == first["spec"]["selector"]
            same = same and second["metadata"]["uid"] == first["metadata"]["uid"]
            say(same, "it is the same DaemonSet, by its selector")
            self._upgrade({"image": {"tag": "broken"}}, wait=False)
            stopped = agents.stop_at_the_first(wanted)
            back = self._helm("rollback", "--wait", "--timeout", "90s")
            format_ = _environment(self._daemon_set())["SCHEDULED_EVENTS_LOG_FORMAT"]
            what = "an upgrade with an image that never gets ready stops at the first node, and helm rollback fixes it"
            repaired = back.good and agents.wait() and format_ == "logfmt"
            say(stopped and repaired, what, back.refusal or f"{format_} again")
            agents.land(self.verdicts, "and a ready pod is on each Linux VM again")

    def _without_definitions(self) -> None:
        """A release with objects of an unknown kind fails with a message before it has created anything."""
        before = self._everything()
        answer = self._install(values.MONITORED)
        left = sorted(self._everything() - before - {f"secret/sh.helm.release.v1.{RELEASE}.v1"})
        clear = "ensure CRDs are installed first" in answer.err
        what = "PodMonitor, PrometheusRule and GrafanaDashboard without their CRDs are rejected with a clear message"
        self.verdicts.say(not answer.good and clear and not left, what, answer.refusal or "accepted")
        self._helm("uninstall", "--wait", "--ignore-not-found")

    def _windows(self) -> None:
        say, agents = self.verdicts.say, self._agents
        wanted = nodes.names("linux") | nodes.names("windows")
        agents.land(self.verdicts, "a ready pod on each Linux and Windows VM, tainted or not, and no other", wanted)
        mixed = [
            pod["metadata"]["name"]
            for one in agents.daemon_sets()
            for pod in agents.pods()
            if one["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
            and pod["metadata"]["ownerReferences"][0]["uid"] != one["metadata"]["uid"]
        ]
        say(not mixed, "no DaemonSet selects a pod of the other", ", ".join(mixed))
        systems = {node.name: node.system for node in nodes.NODES}
        hosted = {systems[pod["spec"]["nodeName"]]: _is_host_process(pod) for pod in agents.pods()}
        say(hosted == {"linux": False, "windows": True}, "only Windows' pods are HostProcess pods", hosted)

    def _side_by_side(self) -> None:
        """Two releases in a namespace, each for its own nodes, don't affect each other's pods."""
        before = self._everything()
        for name, own in values.POOLS.items():
            path = self.folder / f"{name}.json"
            path.write_text(json.dumps(own), encoding="utf-8")
            self.helm.must("install", name, self.archive, "--values", path, "--namespace", NAMESPACE, "--wait")
        self._agents.land(
            self.verdicts, "two releases for different nodes: one ready pod on each Linux VM, of one of them"
        )
        for name in values.POOLS:
            self.helm.must("uninstall", name, "--namespace", NAMESPACE, "--wait")
        wait_for(lambda: not self._everything() - before, SECONDS)

    def _documented(self) -> None:
        """The documented values work with the CRDs that the documentation names."""
        for heading, own in values.documented(DOCUMENTATION):
            template = self._helm("template", own=own)
            strict = self._kubectl("apply", STRICT, "--dry-run=server", "-f", "-", stdin=template.out)
            good = template.good and strict.good and not strict.warnings
            what = f"the values under “{heading}” of docs/{DOCUMENTATION.name}: valid, strictly"
            self.verdicts.say(good, what, template.refusal or strict.recorded)

    def _selected(self, group: str) -> None:
        """The PodMonitor finds the existing pods."""
        monitors = self._kubectl.items(f"podmonitors.{group}", "--namespace", NAMESPACE)
        pods = self._agents.pods()
        ports = {port["name"] for pod in pods for port in pod["spec"]["containers"][0]["ports"]}
        good = len(monitors) == 1 and bool(pods)
        for monitor in monitors:
            wanted = monitor["spec"]["selector"]["matchLabels"].items()
            good = good and all(wanted <= pod["metadata"]["labels"].items() for pod in pods)
            good = good and {one["port"] for one in monitor["spec"]["podMetricsEndpoints"]} <= ports
        self.verdicts.say(good, f"its PodMonitor ({group}) selects every pod, and a port that it has")

    def _upgrade(self, own: Values, *, wait: bool = True) -> Answer:
        return self._helm("upgrade", *(("--wait", "--timeout", "90s") if wait else ()), own=own)

    def _daemon_set(self) -> Json:
        found = self._agents.daemon_sets()
        if len(found) != 1:
            raise ClusterError(f"{len(found)} DaemonSets where one was installed")
        return found[0]


def packed(helm: Client, folder: Path) -> Path:
    """Return the chart as an archive. Raises ClusterError if Helm can't pack it."""
    helm.must("package", CHART, "--destination", folder)
    return next(folder.glob("*.tgz"))


def helms(plane: Plane) -> list[Client]:
    """Return Helm 4, and Helm 3 if the tests' own is installed."""
    other = shutil.which("helm", path=str(Path(sys.executable).parent))
    return [plane.helm, *([replace(plane.helm, path=Path(other))] if other else [])]


def _is_host_process(pod: Json) -> bool:
    return bool(pod["spec"]["securityContext"].get("windowsOptions", {}).get("hostProcess"))


def _environment(daemon_set: Json) -> Json:
    containers = daemon_set["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value") for container in containers for one in container["env"]}
