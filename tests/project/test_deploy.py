"""The deployment files: systemd unit, manifests, compose file, and image recipe, checked with their own tools."""

from __future__ import annotations

import argparse
import json
import os
import posixpath
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import bcrypt
import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from deploy import healthcheck
from exporter.config.load import load
from exporter.config.places import SERVICE_VARIABLE, hold_place, ready_place
from exporter.config.schema import catalogue
from exporter.simulator.metadata.scenario import load as load_scenario
from exporter.simulator.metadata.service import MetadataService
from tests.support.certificates import Authority, write
from tests.support.peers import need

pytestmark = pytest.mark.linux("is about systemd, containers and Kubernetes")

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
HOLD_FILE: Final = hold_place("linux")
UNIT: Final = DEPLOY / "systemd" / "azure-scheduled-events-exporter.service"
KUBERNETES: Final = DEPLOY / "kubernetes"
COMPOSE: Final = DEPLOY / "compose"
EXAMPLE: Final = DEPLOY / "systemd" / "config.toml"
SETTINGS: Final = {setting.env for setting in catalogue()} | {"SCHEDULED_EVENTS_CONFIG_FILE"}
EXPOSURE: Final = 11
"""The unit's exposure in tenths, as `systemd-analyze security` of systemd 252 counts it."""


def settings_named(text: str) -> set[str]:
    return set(re.findall(r"SCHEDULED_EVENTS_[A-Z_]+[A-Z]", text))


def one(path: Path) -> dict[str, Any]:
    """Return the only document of a YAML file."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def test_no_shipped_unit_writes_a_core_dump() -> None:
    """A core dump of the process would contain its credentials."""
    units = list(DEPLOY.glob("**/*.service"))
    assert UNIT in units
    for unit in units:
        assert "LimitCORE=0" in unit.read_text(encoding="utf-8").splitlines(), unit


def manifests() -> list[Path]:
    return [path for path in sorted(KUBERNETES.rglob("*.yaml")) if path.name != "kustomization.yaml"]


# -- systemd


@pytest.mark.peer("systemd")
def test_systemd_accepts_the_unit_and_its_drop_ins(tmp_path: Path) -> None:
    """`systemd-analyze verify` accepts the unit, without and with each drop-in."""
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text()))
    (folder := tmp_path / f"{UNIT.name}.d").mkdir()
    for drop_in in (None, *sorted(UNIT.parent.glob("*.conf"))):
        if drop_in is not None:
            shutil.copy(drop_in, folder)
        command = [need("systemd-analyze"), "verify", "--man=no", str(unit)]
        done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", ""), drop_in


@pytest.mark.peer("systemd")
def test_the_unit_is_hardened() -> None:
    """systemd counts no more exposure than when the unit was written."""
    command = [
        need("systemd-analyze"),
        "security",
        "--offline=true",
        "--no-pager",
        f"--threshold={EXPOSURE}",
        str(UNIT),
    ]
    done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def directives(text: str) -> dict[str, str]:
    """Return the unit's lines, the last of each name."""
    return dict(re.findall(r"^([A-Za-z]+)=(.*)$", text, re.MULTILINE))


def before_the_start() -> list[str]:
    """Return the commands that the unit runs before the agent, each with all rights and permitted to fail: for the
    directories, and for the owner of the event files."""
    commands = re.findall(r"^ExecStartPre=-\+(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 2, commands
    return [command.replace("%%", "%") for command in commands]


def test_the_hold_file_is_visible_inside_the_unit() -> None:
    """The unit creates the directories of the example's hold file and ready files, and has no private /tmp that hides
    them."""
    unit = directives(UNIT.read_text(encoding="utf-8"))
    assert unit["PrivateTmp"] == "yes"
    settings = load(argparse.Namespace(**{"config.file": str(EXAMPLE)}), {SERVICE_VARIABLE: "1"})
    assert settings.warnings == ()
    assert settings.approval.mode == "dry-run"
    assert settings.approval.hold_file == HOLD_FILE
    assert posixpath.dirname(HOLD_FILE) == f"/etc/{unit['ConfigurationDirectory']}"
    assert int(unit["ConfigurationDirectoryMode"], 8) & 0o005 == 0o005
    (ready,) = [rule.require_file for rule in settings.approval.rules if rule.require_file]
    assert ready == ready_place("linux")
    assert posixpath.dirname(ready) in before_the_start()[0].split()
    assert "RuntimeDirectory" not in unit


def test_the_folder_of_ready_files_is_readable_and_keeps_its_owner(tmp_path: Path) -> None:
    """The unit's first command makes both directories readable under its own umask, and changes no existing one."""
    unit = directives(UNIT.read_text(encoding="utf-8"))
    command = before_the_start()[0].replace("/run/", f"{tmp_path}/")
    ready = tmp_path / "azure-scheduled-events-exporter" / "ready"
    events = ready.with_name("events")
    script = f"umask {unit['UMask']} && {command}"
    subprocess.run(["/bin/sh", "-c", script], check=True, timeout=30)
    assert [folder.stat().st_mode & 0o777 for folder in (ready.parent, ready, events)] == [0o755] * 3
    ready.chmod(0o2770)
    (ready / "event").touch()
    subprocess.run(["/bin/sh", "-c", script], check=True, timeout=30)
    assert (ready.stat().st_mode & 0o7777, (ready / "event").exists()) == (0o2770, True)


def test_the_agent_owns_the_event_files_while_it_runs(tmp_path: Path) -> None:
    """The unit creates the directory of the packaged settings, gives it to the owner of the state, and takes it back;
    its group stays."""
    if os.geteuid() != 0:
        pytest.skip("root alone gives files away: run as root")
    text = UNIT.read_text(encoding="utf-8")
    unit = directives(text)
    settings = load(argparse.Namespace(**{"config.file": str(EXAMPLE)}), {})
    path = settings.event_files.path
    assert path in before_the_start()[0].split()
    assert f"\nReadWritePaths=-{path}\n" in text
    state = f"/var/lib/{unit['StateDirectory']}"
    (events := tmp_path / "events").mkdir()
    (private := tmp_path / "private").mkdir()
    os.chown(events, 0, 1234)
    os.chown(private, 61184, 61184)
    (tmp_path / "state").symlink_to(private)
    for command, owner in ((before_the_start()[1], 61184), (unit["ExecStopPost"].removeprefix("-+"), 0)):
        assert path in command
        here = command.replace(path, str(events)).replace(state, str(tmp_path / "state"))
        subprocess.run(["/bin/sh", "-c", here], check=True, timeout=30)
        assert (events.stat().st_uid, events.stat().st_gid) == (owner, 1234)


def test_units_name_only_existing_settings() -> None:
    """Unit, drop-ins, manifests, and compose file name only existing settings."""
    files = [path for path in DEPLOY.rglob("*") if path.suffix in {".service", ".conf", ".yaml", ".md"}]
    named = set().union(*(settings_named(path.read_text(encoding="utf-8")) for path in files))
    assert named >= {"SCHEDULED_EVENTS_SOURCE_NODE_NAME", "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING_FILE"}
    assert named <= SETTINGS


@contextmanager
def agent(source: str, folder: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start `run` as a service manager does; kill it if it is still running at the end."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "SCHEDULED", "NOTIFY"))}
    recorded = {
        "SCHEDULED_EVENTS_SOURCE_URL": source,
        "SCHEDULED_EVENTS_OUTBOX_PATH": str(folder / "outbox.db"),
        "SCHEDULED_EVENTS_WEB_LISTEN_ADDRESS": "127.0.0.1:0",
    }
    command = [sys.executable, "-m", "exporter", "run"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**clean, **recorded, **environ}, cwd=ROOT, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)


def test_the_agent_notifies_its_service_manager(tmp_path: Path) -> None:
    """It sends READY with a status, then a keep-alive with every poll, then STOPPING; the health check agrees; exit
    code 0."""
    scenario = load_scenario("live-migration")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, MetadataService(scenario) as service:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        with agent(service.url, tmp_path, NOTIFY_SOCKET=str(tmp_path / "notify")) as process:
            ready = manager.recv(4096).decode()
            status = re.fullmatch(r"READY=1\nSTATUS=serving on (\d+)", ready)
            assert status, ready
            assert [manager.recv(4096) for _ in range(2)] == [b"WATCHDOG=1"] * 2
            assert healthcheck.main({"SCHEDULED_EVENTS_WEB_LISTEN_ADDRESS": f"0.0.0.0:{status[1]}"}) == 0
            process.send_signal(signal.SIGTERM)
            while (said := manager.recv(4096)) == b"WATCHDOG=1":
                pass
            assert said == b"STOPPING=1"
            assert process.wait(30) == 0
    assert healthcheck.main({"SCHEDULED_EVENTS_WEB_LISTEN_ADDRESS": f"127.0.0.1:{status[1]}"}) == 1


@pytest.mark.parametrize(
    ("tls", "why"),
    [
        (None, "401"),
        ({}, "401"),
        ({"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.crt"}, "client certificate"),
    ],
    ids=["password", "tls and password", "client certificate"],
)
def test_an_agent_that_requires_credentials_is_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tls: dict[str, str] | None, why: str
) -> None:
    """An agent that requires a password or a client certificate has responded: it is not reported as unhealthy."""
    authority = Authority()
    write(tmp_path, "web", *authority.issue("127.0.0.1"))
    (tmp_path / "ca.crt").write_text(authority.pem)
    wants: dict[str, object] = {"basic_auth_users": {"scraper": bcrypt.hashpw(b"password", bcrypt.gensalt(4)).decode()}}
    if tls is not None:
        wants["tls_server_config"] = {"cert_file": "web.crt", "key_file": "web.key", **tls}
    (tmp_path / "web.yml").write_text(json.dumps(wants))
    environ = {"SCHEDULED_EVENTS_WEB_CONFIG_FILE": str(tmp_path / "web.yml")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        with agent("http://127.0.0.1:9", tmp_path, NOTIFY_SOCKET=str(tmp_path / "notify"), **environ):
            port = manager.recv(4096).decode().rpartition(" ")[2]
            address = {"SCHEDULED_EVENTS_WEB_LISTEN_ADDRESS": f"127.0.0.1:{port}"}
            assert healthcheck.main(environ | address) == 0
            assert why in capsys.readouterr().out


# -- Kubernetes


@pytest.mark.parametrize("version", ["1.29", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("path", sorted((KUBERNETES / "base").glob("[!k]*.yaml")), ids=lambda path: path.stem)
def test_a_manifest_is_valid_for_kubernetes(path: Path, version: str) -> None:
    """Each manifest of the base is valid against the API's own schema, which rejects unknown keys."""
    kubernetes_validate.validate(one(path), version, strict=True)


def test_each_manifest_is_listed() -> None:
    """Every file is listed in the kustomization of its directory, and every listed file exists."""
    for path in KUBERNETES.rglob("kustomization.yaml"):
        recorded = one(path)
        named = [*recorded.get("resources", ()), *recorded.get("components", ())]
        named += [patch["path"] for patch in recorded.get("patches", ())]
        assert all((path.parent / name).exists() for name in named), path
        beside = {found.name for found in path.parent.glob("*.yaml")} - {path.name}
        assert beside <= set(named), path


def test_kustomize_builds_the_overlays() -> None:
    """Base and example overlay build, with the image replaced everywhere and everything in one namespace."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed here, and Debian has no package of it")
    for folder in (KUBERNETES, KUBERNETES / "overlays" / "example"):
        done = subprocess.run(["kubectl", "kustomize", str(folder)], text=True, capture_output=True, check=True)
        built = {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}
        assert {document["apiVersion"] for document in built.values()} == {"v1", "apps/v1"}
        kubernetes_validate.validate(built["DaemonSet"], "1.29", strict=True)
        spaces = {document["metadata"].get("namespace") for kind, document in built.items() if kind != "Namespace"}
        assert spaces == {"azure-scheduled-events"}
    assert set(re.findall(r"image: (\S+)", done.stdout)) == {
        "registry.example.com/azure-scheduled-events-exporter:0.1.0"
    }
    env = {entry["name"] for entry in pod_of(built["DaemonSet"])["containers"][0]["env"]}
    assert {"SCHEDULED_EVENTS_SOURCE_NODE_NAME", "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING_FILE"} <= env


def test_no_applied_object_needs_a_crd() -> None:
    """Base and overlays contain only Kubernetes' own kinds; what needs an operator is a component of none of them."""
    for path in [
        KUBERNETES / "kustomization.yaml",
        *KUBERNETES.glob("base/k*.yaml"),
        *KUBERNETES.glob("overlays/*/k*.yaml"),
    ]:
        assert {"v1", "apps/v1"} >= {made["apiVersion"] for made in reached(path)}, path


def reached(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a kustomization and of those that it names."""
    recorded = one(path)
    for name in (*recorded.get("resources", ()), *recorded.get("components", ())):
        found = path.parent / name
        if found.is_dir():
            yield from reached(found / "kustomization.yaml")
        else:
            yield one(found)


def test_one_line_adds_the_pod_monitor(tmp_path: Path) -> None:
    """With the example's line uncommented, the overlay builds with the PodMonitor, in the same namespace."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed here, and Debian has no package of it")
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "overlays" / "example"
    text = (overlay / "kustomization.yaml").read_text(encoding="utf-8")
    (overlay / "kustomization.yaml").write_text(text.replace("# - ../", "- ../"))
    done = subprocess.run(["kubectl", "kustomize", str(overlay)], text=True, capture_output=True, check=True)
    built = {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}
    assert built["PodMonitor"]["metadata"]["namespace"] == built["DaemonSet"]["metadata"]["namespace"]


def pod_of(daemonset: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return pod


def test_the_pod_has_only_what_it_needs() -> None:
    """Host network, every node, and the outbox on the host; no token, root only to own the outbox, no other writable
    path."""
    daemonset = one(KUBERNETES / "base" / "daemonset.yaml")
    pod = pod_of(daemonset)
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["automountServiceAccountToken"] is False
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["outbox"]["hostPath"]["type"] == "DirectoryOrCreate"
    (container,), (init,) = pod["containers"], pod["initContainers"]
    for each in (container, init):
        context = each["securityContext"]
        assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
        assert context["capabilities"]["drop"] == ["ALL"]
    assert container["securityContext"]["runAsNonRoot"] is True
    assert "add" not in container["securityContext"]["capabilities"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env["SCHEDULED_EVENTS_APPROVAL_MODE"] == "off"
    # The directory exists also without the ConfigMap: a hold file in a missing directory holds.
    assert env["SCHEDULED_EVENTS_APPROVAL_HOLD_FILE"] == HOLD_FILE
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    place = mounts[posixpath.dirname(HOLD_FILE)]
    assert place["readOnly"] is True
    assert volumes[place["name"]]["configMap"]["optional"] is True
    load(argparse.Namespace(), {name: value for name, value in env.items() if value})


def test_the_pod_monitor_finds_the_pods() -> None:
    """It selects by labels of the pods, and by a port that they name. (The operator's schema isn't available here.)"""
    monitor = one(KUBERNETES / "components" / "pod-monitor" / "podmonitor.yaml")
    template = one(KUBERNETES / "base" / "daemonset.yaml")["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert endpoint["path"] == "/metrics"


# -- compose


def test_the_compose_file_is_consistent() -> None:
    """What it mounts and waits for exists, and the agent's settings are valid and match the emulator's hub."""
    recorded = one(COMPOSE / "compose.yaml")
    services = recorded["services"]
    for name, service in services.items():
        assert "image" in service, name
        assert set(service.get("depends_on", ())) <= set(services)
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in recorded["volumes"] or (COMPOSE / source).is_file(), volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
    settings = load(argparse.Namespace(), services["agent"]["environment"])
    entities = json.loads((COMPOSE / "event-hubs.json").read_text())["UserConfig"]["NamespaceConfig"][0]["Entities"]
    assert settings.event_hubs.event_hub in {entity["Name"] for entity in entities}
    assert settings.source.url == "http://simulator:8080"
    one(COMPOSE / "grafana" / "datasources.yml")
    one(COMPOSE / "grafana" / "dashboards.yml")


@pytest.mark.peer("prometheus")
def test_promtool_accepts_the_compose_configuration(tmp_path: Path) -> None:
    """promtool accepts the compose file's Prometheus configuration together with the alerts."""
    shutil.copy(COMPOSE / "prometheus.yml", tmp_path)
    shutil.copy(ROOT / "alerts" / "rules.yml", tmp_path)
    command = [need("promtool"), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# -- the image, and what all builds are made of


def test_the_image_does_not_run_as_root() -> None:
    """The image ends with a numeric user that owns its one volume, and with a health check."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "USER 65532:65532" in text
    assert "\nHEALTHCHECK " in text
    assert 'VOLUME ["/var/lib/azure-scheduled-events-exporter"]' in text


def test_every_stage_has_the_same_base_image() -> None:
    """Every stage begins from the one base, named by tag and digest; a tested image replaces that tag."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    bases = [line.split()[1] for line in text.splitlines() if line.startswith("FROM ")]
    assert set(bases) == {"${PYTHON_IMAGE}"}
    (base,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base)
    (line,) = re.findall(r"^base=.*$", (DEPLOY / "image-test").read_text(encoding="utf-8"), re.MULTILINE)
    script = f'{line}\nprintf %s "$base"'
    done = subprocess.run(["/bin/sh", "-c", script], cwd=ROOT, text=True, capture_output=True, check=True, timeout=30)
    assert done.stdout == base.partition("@")[0]


def test_the_image_has_the_directory_of_the_hold_file() -> None:
    """The directory is in the image: if nothing is mounted there, the hold file is verifiably absent."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    name = posixpath.basename(posixpath.dirname(HOLD_FILE))
    assert re.search(rf"^RUN mkdir -p .*/places/{name}\b", text, re.MULTILINE)
    assert f"COPY --from=build /places/ {posixpath.dirname(posixpath.dirname(HOLD_FILE))}/\n" in text


LOCKS: Final = sorted(DEPLOY.glob("*.txt"))


def locked(path: Path) -> dict[str, str]:
    """Return the entries of a lock with their versions; every one of them has a hash."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", path.read_text(encoding="utf-8")):
        if match := re.match(r"([A-Za-z0-9._-]+)==([^ ;\\]+)", entry):
            assert "--hash=sha256:" in entry, f"{path.name}: {match[1]}"
            found[match[1].lower()] = match[2]
        else:
            assert entry.startswith("#"), f"{path.name}: {entry}"
    return found


def test_the_locks_fit_the_project() -> None:
    """Each dependency, of the extra too, and each build requirement is locked at an allowed version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    recorded = project["project"]
    runs = (*recorded["dependencies"], *recorded["optional-dependencies"]["identity"])
    for name, lines in {"constraints.txt": runs, "build.txt": project["build-system"]["requires"]}.items():
        versions = locked(DEPLOY / name)
        for line in lines:
            wanted = Requirement(line)
            version = versions[wanted.name.lower()]
            assert wanted.specifier.contains(version), f"{line} is locked at {version}: make lock"
    for source in DEPLOY.glob("*.in"):
        named = {Requirement(line).name for line in source.read_text(encoding="utf-8").splitlines()}
        assert named <= set(locked(source.with_suffix(".txt"))), f"{source.name}: make lock"


def test_the_locks_agree() -> None:
    """A package has the same version in every lock: they are installed together."""
    assert {path.name for path in LOCKS} == {"build.txt", "constraints.txt", "release.txt", "standalone.txt"}
    versions: dict[str, set[str]] = {}
    for path in LOCKS:
        for name, version in locked(path).items():
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}
    assert set(locked(DEPLOY / "build.txt")).isdisjoint(
        locked(DEPLOY / "constraints.txt")
    )  # the image removes the first


FLOORS: Final = {
    "azure-core": "1.38.0",  # CVE-2026-21226
    "azure-identity": "1.16.1",  # CVE-2024-35255
    "aiohttp": "3.14.3",  # CVE-2026-69244
    "certifi": "2024.7.4",  # CVE-2024-39689
    "cryptography": "50.0.0",  # CVE-2026-69247
    "h11": "0.16.0",  # CVE-2025-43859
    "idna": "3.15",  # CVE-2026-45409
    "protobuf": "6.33.5",  # CVE-2026-0994
    "pyjwt": "2.12.0",  # CVE-2026-32597
    "requests": "2.33.0",  # CVE-2026-25645, CVE-2024-47081
    "urllib3": "2.7.0",  # CVE-2026-44431, CVE-2026-44432
}
"""The first version of each package without the advisory that is known of it."""


@pytest.mark.parametrize(("name", "first"), FLOORS.items(), ids=FLOORS)
def test_a_plain_install_has_no_known_advisory(name: str, first: str) -> None:
    """The project's own bounds exclude earlier versions, for installations without the lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    recorded = project["project"]
    lines = (*recorded["dependencies"], *recorded["optional-dependencies"]["identity"])
    (wanted,) = [found for line in lines if (found := Requirement(line)).name.lower() == name]
    (floor,) = [bound.version for bound in wanted.specifier if bound.operator == ">="]
    assert Version(floor) >= Version(first)


def installs(text: str) -> list[str]:
    """Yield each command of a script or Dockerfile that installs with pip, with continued lines joined."""
    joined = re.sub(r"\\\n\s*(&& )?", lambda match: "\n" if match[1] else " ", text)
    return [
        line for line in joined.splitlines() if re.search(r"(pip\"?|PIP\)) install\b", line) and "#" not in line[:1]
    ]


@pytest.mark.parametrize(
    ("name", "installing"),
    [
        ("Dockerfile", True),
        (".ci/venv.mk", True),
        ("deploy/standalone", True),
        ("deploy/image-test", False),
        ("deploy/Makefile", False),
    ],
)
def test_a_release_is_built_of_locked_packages(name: str, installing: bool) -> None:
    """A release installs only wheels with hashes, and the project's own code with a builder that is one of them."""
    found = installs((ROOT / name).read_text(encoding="utf-8"))
    if name == ".ci/venv.mk":  # the test environment may be new
        found = [line for line in found if "--editable" not in line]
    for line in found:
        hashed = "--require-hashes" in line and "--only-binary :all:" in line
        ours = "--no-deps" in line and "--no-build-isolation" in line and re.search(r" \.( |$)", line)
        assert hashed or ours, line
    assert bool(found) is installing


def test_a_wheel_is_built_with_locked_tools() -> None:
    """`make -C deploy dist` downloads no build environment: the builder is installed with the release's tools.

    The test of reproducibility builds in the same way, and the self-contained build sets the same variables.
    """
    script = (ROOT / "deploy" / "dist").read_text(encoding="utf-8")
    assert [line for line in script.splitlines() if "-m build" in line and "--no-isolation" not in line] == []
    for caller in ("Makefile", "reproducible"):
        assert re.search(r"(?:\./|deploy/)dist\b", (ROOT / "deploy" / caller).read_text(encoding="utf-8"))
    standalone = (ROOT / "deploy" / "standalone").read_text(encoding="utf-8")
    for word in ("umask 022", "PYTHONHASHSEED=0", "--sort=name", "--mtime=", "gzip -9n"):
        assert word in standalone, word
    text = (ROOT / ".ci" / "venv.mk").read_text(encoding="utf-8")
    assert "deploy/,constraints.txt build.txt release.txt)" in text
    inside = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY ((?:deploy/\S+ )+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert all(f"!{path}\n" in inside for line in copied for path in line.split())


@pytest.mark.parametrize(
    "script",
    [
        ".ci/run",
        ".ci/venv",
        ".ci/peers",
        ".ci/need",
        ".ci/debian",
        "deploy/dist",
        "deploy/lock",
        "deploy/image-test",
        "deploy/standalone",
        "deploy/standalone-test",
    ],
)
def test_a_script_is_executable_and_valid(script: str) -> None:
    """Each script is executable and has no syntax error."""
    path = ROOT / script
    assert os.access(path, os.X_OK)
    shell = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#!")
    subprocess.run([shell, "-n", str(path)], check=True, timeout=30)
