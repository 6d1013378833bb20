"""kustomize: the base, the example overlay, and the components on the API server, and the nodes of the pods."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from tests.cluster import crds, nodes
from tests.cluster.agents import NAME, SELECTOR, Agents
from tests.cluster.clients import Answer, Client, together
from tests.cluster.daemons import wait_for
from tests.cluster.plane import Plane
from tests.cluster.programs import Programs
from tests.cluster.verdicts import Verdicts
from tests.cluster.watch import Watch, most_unavailable

ROOT: Final = Path(__file__).parents[2]
KUSTOMIZE: Final = ROOT / "deploy" / "kubernetes"
NAMESPACE: Final = "azure-scheduled-events"
STRICT: Final = "--validate=strict"
SECONDS: Final = 60.0

AGAINST_RESTRICTED: Final = (
    "host namespaces (hostNetwork=true)",
    'hostPort (container "agent" uses hostPort 10169)',
    'unrestricted capabilities (container "own-the-outbox" must not include "CHOWN", "FOWNER" '
    "in securityContext.capabilities.add)",
    'restricted volume types (volume "outbox" uses restricted volume type "hostPath")',
    'runAsNonRoot != true (container "own-the-outbox" must not set securityContext.runAsNonRoot=false)',
    'runAsUser=0 (container "own-the-outbox" must not set runAsUser=0)',
)
"""All objections of the level `restricted` of the Pod Security Standards to the agent, as the docs list them."""
AGAINST_BASELINE: Final = (
    "host namespaces (hostNetwork=true)",
    'hostPath volumes (volume "outbox")',
    'hostPort (container "agent" uses hostPort 10169)',
)
REFUSED: Final = re.compile(r'violate(?:s)? PodSecurity "(\w+):[\w.]+": (.*)')
OBJECTION: Final = re.compile(r"(?:[^,(]|\([^()]*\))+")


def objections(sentence: str) -> tuple[str, tuple[str, ...]]:
    """Return the level, and its objections to a pod, from a warning or a rejection of Pod Security admission."""
    found = REFUSED.search(sentence)
    if not found:
        return "", ()
    return found[1], tuple(one.strip() for one in OBJECTION.findall(found[2]))


@dataclass(frozen=True, slots=True)
class Manifests:
    """The proofs with kustomize, in their order."""

    plane: Plane
    programs: Programs
    verdicts: Verdicts
    folder: Path

    def run(self) -> None:
        with self._applied(KUSTOMIZE, "the base"):
            self._land()
            self._outlive()
            self._refuse_unknown()
            self._roll_out()
        with self._applied(KUSTOMIZE / "overlays" / "example", "the example overlay, without any CRD,"):
            self._agents.land(self.verdicts, "its pods land as those of the base")
        self._components()
        self._pod_security()
        self._quota()

    @property
    def _kubectl(self) -> Client:
        return self.plane.kubectl

    @property
    def _agents(self) -> Agents:
        return Agents(self._kubectl, NAMESPACE)

    @contextlib.contextmanager
    def _applied(self, folder: Path, name: str) -> Iterator[None]:
        """Apply it for the block; judge that it is accepted, is the same a second time, and is deleted."""
        say, kubectl = self.verdicts.say, self._kubectl
        answer = kubectl("apply", STRICT, "-k", folder)
        recorded = answer.recorded or f"{len(answer.out.splitlines())} objects, no warning"
        say(answer.good and not answer.warnings, f"{name} is accepted, validated strictly", recorded)
        again = kubectl("diff", "-k", folder)
        say(again.good, f"{name} applied again changes nothing", again.refusal or again.out[:300])
        yield
        gone = kubectl("delete", "-k", folder, "--wait")
        left = kubectl("get", "namespace", NAMESPACE)
        say(gone.good and "NotFound" in left.err, f"{name} goes by kubectl delete", gone.refusal)

    def _land(self) -> None:
        say, agents = self.verdicts.say, self._agents
        agents.land(
            self.verdicts, "a ready pod on each Linux VM (tainted, cordoned, arm64, control plane) and no other"
        )
        pods = agents.pods()
        priorities = {(pod["spec"]["priorityClassName"], pod["spec"]["priority"]) for pod in pods}
        wanted = {("system-node-critical", 2000001000)}
        say(priorities == wanted, f"system-node-critical is admitted outside kube-system, in {NAMESPACE}", priorities)
        mounted = [volume for pod in pods for volume in pod["spec"]["volumes"] if "projected" in volume]
        say(not mounted, "no pod has a token of the API server", f"{len(mounted)} projected volumes")

    def _outlive(self) -> None:
        """Add, remove, and taint nodes."""
        say, kubectl, agents = self.verdicts.say, self._kubectl, self._agents
        kubectl.must("create", "-f", "-", stdin=json.dumps(nodes.LATE.manifest()))
        late = wait_for(lambda: nodes.LATE.name in agents.ready_nodes(), SECONDS)
        say(late, "a node that joins later gets its pod", nodes.LATE.name)
        kubectl.must("delete", "node", nodes.LATE.name)
        wait_for(lambda: len(agents.pods()) == len(nodes.names("linux")), SECONDS)
        before = agents.uids()
        drained = kubectl("drain", "linux-0", "--ignore-daemonsets", "--timeout=30s")
        kubectl.must("taint", "node", "linux-1", "example.com/out-of-service=:NoExecute")
        say(
            drained.good and agents.uids() == before,
            "a drained node and one tainted NoExecute keep theirs",
            "same pods",
        )
        kubectl.must("uncordon", "linux-0")
        kubectl.must("taint", "node", "linux-1", "example.com/out-of-service-")

    def _roll_out(self) -> None:
        """`maxUnavailable: 10%` of ten nodes is one."""
        say, agents, wanted = self.verdicts.say, self._agents, nodes.names("linux")
        agents.wait()
        before = agents.uids()
        with Watch(self._kubectl, "pods", "--namespace", NAMESPACE, "--selector", SELECTOR) as watch:
            wait_for(lambda: len(watch.changes()) >= len(wanted), SECONDS)
            self._set_image("example.com/agent:next")
            done = agents.wait()
            events = [change.event for change in watch.changes()]
        after = agents.uids()
        most = most_unavailable(events, wanted)
        say(
            done and most == 1 and not before & after and len(after) == len(wanted),
            "a new image reaches all ten nodes, one at a time",
            f"{len(after - before)} new pods, at most {most} of {len(wanted)} nodes without a ready one",
        )
        self._set_image("example.com/agent:broken")
        stopped = agents.stop_at_the_first(wanted)
        say(stopped, "an image that never gets ready stops at the first node", f"{len(agents.ready_nodes())} ready")
        self._kubectl.must("--namespace", NAMESPACE, "rollout", "undo", f"daemonset/{NAME}")
        agents.land(self.verdicts, "kubectl rollout undo fixes it")

    def _set_image(self, image: str) -> None:
        self._kubectl.must("--namespace", NAMESPACE, "set", "image", f"daemonset/{NAME}", f"agent={image}")

    def _refuse_unknown(self) -> None:
        """The validation rejects an unknown field."""
        text = self._kubectl.must("kustomize", KUSTOMIZE).replace("hostNetwork:", "hostNetwrok:")
        answer = self._kubectl("apply", STRICT, "--dry-run=server", "-f", "-", stdin=text)
        refused = 'unknown field "spec.template.spec.hostNetwrok"' in answer.err
        self.verdicts.say(refused, "a misspelt field is rejected", answer.refusal)

    # -- components

    def _components(self) -> None:
        """All components work in a user's overlay, with and without the CRDs."""
        say = self.verdicts.say
        components = sorted(path.name for path in (KUSTOMIZE / "components").iterdir())
        overlay = self._overlay(*components)
        answer = self._kubectl("apply", STRICT, "-k", overlay)
        recorded = 'no matches for kind "PodMonitor"' in answer.err and "ensure CRDs are installed first" in answer.err
        say(
            not answer.good and recorded,
            "the pod-monitor component without its CRD is rejected with a clear message",
            answer.refusal,
        )
        self._kubectl.must("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
        crds.make(self._kubectl, self.programs)
        with self._applied(overlay, f"an overlay with {', '.join(components)}, with the CRDs,"):
            monitors = self._kubectl.items(f"podmonitors.{crds.OPERATOR}", "--namespace", NAMESPACE)
            selectors = [monitor["spec"]["selector"]["matchLabels"] for monitor in monitors]
            matched = all(_matches(selector, pod) for selector in selectors for pod in self._agents.pods())
            say(len(selectors) == 1 and matched, "its PodMonitor selects the pods", selectors)
            ports = {port["name"] for pod in self._agents.pods() for port in pod["spec"]["containers"][0]["ports"]}
            asked = {endpoint["port"] for monitor in monitors for endpoint in monitor["spec"]["podMetricsEndpoints"]}
            say(asked and asked <= ports, "and names a port that they have", asked)
        crds.remove(self._kubectl)

    def _overlay(self, *components: str) -> Path:
        """Return a user's folder; kustomize accepts only relative paths."""
        folder = self.folder / "overlay"
        folder.mkdir()
        base = Path(os.path.relpath(KUSTOMIZE, folder.resolve()))
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": NAMESPACE,
            "resources": [str(base / "base")],
            "components": [str(base / "components" / component) for component in components],
        }
        (folder / "kustomization.yaml").write_text(json.dumps(kustomization), encoding="utf-8")
        return folder

    # -- admission

    def _pod_security(self) -> None:
        """A level that only warns lists its objections to the agent; an enforced one leaves no pod."""
        say = self.verdicts.say
        for level, wanted in (("restricted", AGAINST_RESTRICTED), ("baseline", AGAINST_BASELINE)):
            with self._labelled("warn", level) as answer:
                found = [objections(warning) for warning in answer.warnings]
                what = f"{level} as a warning: exactly the documented objections"
                say(answer.good and found == [(level, wanted)], what, "; ".join(answer.warnings) or "no warning")
                self._agents.land(self.verdicts, "and the pods land")
            with self._labelled("enforce", level):
                refusals = wait_for(self._agents.refusals, SECONDS)
                refused = bool(refusals) and all(objections(one) == (level, wanted) for one in refusals)
                what = f"{level} enforced: no pod, and an event with the reason"
                say(refused and not self._agents.pods(), what, refusals[0] if refusals else "no event")

    @contextlib.contextmanager
    def _labelled(self, mode: str, level: str) -> Iterator[Answer]:
        """Apply the base to a foreign namespace with this label of Pod Security, for the block."""
        labels = {f"pod-security.kubernetes.io/{mode}": level}
        metadata = {"name": NAMESPACE, "labels": labels}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        self._kubectl.must("create", "-f", "-", stdin=json.dumps(namespace))
        objects = yaml.safe_load_all(self._kubectl.must("kustomize", KUSTOMIZE))
        others = together(one for one in objects if one["kind"] != "Namespace")
        yield self._kubectl("apply", STRICT, "-f", "-", stdin=others)
        self._kubectl.must("delete", "namespace", NAMESPACE, "--wait")

    def _quota(self) -> None:
        """Requests for both, and a limit of memory: the requirements of quotas that forbid pods without them."""
        kubectl = self._kubectl
        hard = {"requests.cpu": "1", "requests.memory": "1Gi", "limits.memory": "4Gi", "pods": "20"}
        metadata = {"name": "quota", "namespace": NAMESPACE}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        kubectl.must("create", "-f", "-", stdin=together((namespace, quota)))
        kubectl.must("apply", "-k", KUSTOMIZE)
        self._agents.land(self.verdicts, "a namespace with a quota of processor and memory takes them all")
        kubectl.must("delete", "-k", KUSTOMIZE, "--wait")


def _matches(labels: dict[str, str], pod: dict[str, dict[str, dict[str, str]]]) -> bool:
    return labels.items() <= pod["metadata"]["labels"].items()
