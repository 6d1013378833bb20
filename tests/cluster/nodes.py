"""The nodes that kwok simulates: one of each kind of AKS, and those on which the agent belongs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tests.cluster.clients import Client, together
from tests.cluster.daemons import wait_for

READY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Node:
    """`system` is its operating system, `taints` are KEY=VALUE:EFFECT; without `vm` it has no VM."""

    name: str
    system: str = "linux"
    taints: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    cordoned: bool = False
    vm: bool = True

    def manifest(self) -> dict[str, Any]:
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": self.system, "kubernetes.io/arch": "amd64"}
        spec: dict[str, Any] = {"taints": [_taint(taint) for taint in self.taints], "unschedulable": self.cordoned}
        metadata = {"name": self.name, "labels": labels | dict(self.labels)}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}


def _taint(text: str) -> dict[str, str]:
    key, _, rest = text.partition("=")
    value, _, effect = rest.partition(":")
    return {"key": key, "value": value, "effect": effect}


AKS: Final = (("kubernetes.azure.com/cluster", "MC_nodes"),)

NODES: Final = (
    *(Node(f"linux-{number}", labels=AKS) for number in range(4)),
    Node("linux-arm64", labels=(*AKS, ("kubernetes.io/arch", "arm64"))),
    Node("linux-gpu", taints=("sku=gpu:NoSchedule",), labels=AKS),
    Node("linux-spot", taints=("kubernetes.azure.com/scalesetpriority=spot:NoSchedule",), labels=AKS),
    Node("linux-batch", taints=("dedicated=batch:NoExecute",), labels=AKS),
    Node("linux-control-plane", taints=("node-role.kubernetes.io/control-plane=:NoSchedule",)),
    Node("linux-cordoned", cordoned=True, labels=AKS),
    Node("windows-0", "windows", labels=AKS),
    Node("windows-1", "windows", taints=("os=windows:NoSchedule",), labels=AKS),
    # AKS's virtual node: Azure Container Instances, which have no host to mount and no metadata service of a VM.
    Node(
        "virtual-node-aci-linux",
        taints=("virtual-kubelet.io/provider=azure:NoSchedule",),
        labels=(("type", "virtual-kubelet"), ("kubernetes.io/role", "agent")),
        vm=False,
    ),
)

LATE: Final = Node("linux-late", taints=("example.com/new=:NoSchedule",), labels=AKS)
"""A node that joins while the agent runs."""


def names(system: str) -> frozenset[str]:
    """Return the nodes of an operating system on which its agent belongs."""
    return frozenset(node.name for node in NODES if node.system == system and node.vm)


def make(kubectl: Client) -> bool:
    """Create all nodes; return True if they are ready."""
    kubectl.must("create", "-f", "-", stdin=together(node.manifest() for node in NODES))
    return wait_for(lambda: _all_ready(kubectl), READY_SECONDS)


def _all_ready(kubectl: Client) -> bool:
    return all(_is_ready(node) for node in kubectl.items("nodes"))


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
