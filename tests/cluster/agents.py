"""The agent's pods in a namespace: their nodes, and the reasons against rejected ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.cluster import nodes
from tests.cluster.clients import Client, Json
from tests.cluster.daemons import wait_for
from tests.cluster.verdicts import Verdicts
from tests.cluster.watch import is_ready

NAME: Final = "azure-scheduled-events-exporter"
SELECTOR: Final = f"app.kubernetes.io/name={NAME}"
SECONDS: Final = 90.0
STEADY_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Agents:
    """The agents of one namespace."""

    kubectl: Client
    namespace: str

    def pods(self) -> list[Json]:
        """The pods that are not being deleted."""
        found = self.kubectl.items("pods", "--namespace", self.namespace, "--selector", SELECTOR)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def ready_nodes(self) -> list[str]:
        """The node of each ready pod; a node with two occurs twice."""
        return sorted(pod["spec"]["nodeName"] for pod in self.pods() if is_ready(pod))

    def uids(self) -> frozenset[str]:
        return frozenset(pod["metadata"]["uid"] for pod in self.pods())

    def stop_at_the_first(self, wanted: frozenset[str]) -> bool:
        """Whether a rollout that can't succeed removes the ready pod of one of these nodes and of no second one."""
        if not wait_for(lambda: len(self.ready_nodes()) < len(wanted), SECONDS):
            return False
        # Without a limit, the next one would be removed within a second.
        wait_for(lambda: len(self.ready_nodes()) < len(wanted) - 1, STEADY_SECONDS)
        return len(self.ready_nodes()) == len(wanted) - 1

    def daemon_sets(self) -> list[Json]:
        return self.kubectl.items("daemonsets", "--namespace", self.namespace, "--selector", SELECTOR)

    def rolled_out(self) -> bool:
        """Whether every DaemonSet's controller has seen its last change, and every pod of it is new and ready."""
        return all(_is_rolled_out(one) for one in self.daemon_sets()) and bool(self.pods())

    def wait(self) -> bool:
        """Wait until the rollout ends; return False if it doesn't."""
        return wait_for(self.rolled_out, SECONDS)

    def refusals(self) -> list[str]:
        """The messages of the DaemonSet's controller about rejected pods, each once."""
        events = self.kubectl.items("events", "--namespace", self.namespace)
        return sorted({str(event["message"]) for event in events if event["reason"] == "FailedCreate"})

    def land(self, verdicts: Verdicts, sentence: str, wanted: frozenset[str] | None = None) -> bool:
        """Judge that a ready pod is on each of these nodes and on no other; by default, on every Linux VM."""
        wanted = nodes.names("linux") if wanted is None else wanted
        rolled_out = self.wait()
        landed = [pod["spec"].get("nodeName", "nowhere") for pod in self.pods()]
        ready = self.ready_nodes()
        seen = f"{len(ready)} pods ready"
        if missing := wanted.difference(ready):
            seen += f", none on {', '.join(sorted(missing))}"
        if unscheduled := sorted({why for pod in self.pods() for why in _unscheduled(pod)}):
            seen += f"; {'; '.join(unscheduled)}"
        if others := sorted(set(landed) - wanted):
            seen += f", one on {', '.join(others)}"
        return verdicts.say(rolled_out and sorted(landed) == sorted(wanted) == ready, sentence, seen)


def _is_rolled_out(daemon_set: Json) -> bool:
    status = daemon_set["status"]
    if status.get("observedGeneration") != daemon_set["metadata"]["generation"]:
        return False
    desired = status["desiredNumberScheduled"]
    return bool(status.get("updatedNumberScheduled", 0) == desired == status.get("numberAvailable", 0))


def _unscheduled(pod: Json) -> list[str]:
    """The reason why the scheduler finds no node for it."""
    conditions = pod["status"].get("conditions", [])
    return [one["message"] for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False"]
