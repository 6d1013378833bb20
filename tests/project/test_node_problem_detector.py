"""The plugin for node-problem-detector: its script in each shell, with event files of the agent's own writer.

tests/cluster/conditions.py runs it with the real node-problem-detector on a real API server.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from exporter.core.records import Vm
from exporter.core.snapshot import Status
from exporter.core.state import SourceStatus
from exporter.event_files.folder import Folder
from exporter.event_files.writer import Reconciler
from exporter.log.protocol import NullLogger
from tests.cluster.programs import DETECTOR
from tests.support.peers import lacking, need
from tests.support.statuses import FREEZE, REBOOT, EventScenario, crowded_scenario, failing_status, started

pytestmark = pytest.mark.linux("is about a script for sh")

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "kubernetes" / "node-problem-detector"
PLUGIN: Final = FOLDER / "scheduled-maintenance"
CONFIGURATIONS: Final = ("scheduled-maintenance.json", "scheduled-maintenance-types.json")
SHELLS: Final = ("dash", "bash", "busybox")
OWN: Final = ("date", "head", "sed", "sort", "stat")
NONE, EVENT, UNKNOWN = 0, 1, 2
NOT_BEFORE: Final = "not before 2025-11-21T12:22:00Z"
REBOOT_MESSAGE: Final = f"Reboot Scheduled, {NOT_BEFORE}, source Platform, event {REBOOT['EventId']}"

Run = tuple[int, str]


class Plugin:
    """The plugin in one shell, with a directory of event files."""

    def __init__(self, folder: Path, shell: str) -> None:
        self.events, self.scenario = folder / "events", EventScenario()
        self.events.mkdir()
        self._command, self._path = [shell], os.environ["PATH"]
        if shell == "busybox":  # with its own programs instead of those of GNU
            busybox = shutil.which("busybox") or lacking("busybox is not installed")
            (programs := folder / "programs").mkdir()
            for name in OWN:
                (programs / name).symlink_to(busybox)
            self._command, self._path = [busybox, "sh"], str(programs)

    def write(self, status: Status | None = None, *, running: bool = True) -> None:
        """Write the files of a status as the agent does, by default of the scenario."""
        writer = Reconciler(
            Folder(str(self.events)),
            (),
            version="1",
            log=NullLogger(),
            now=lambda: datetime.now(UTC),
            monotonic=lambda: 0.0,
        )
        writer.reconcile(status or self.scenario.status(), running=running)
        assert writer.error == ""

    def read(self, *events: dict[str, Any]) -> None:
        """Write the files of a document with these events."""
        self.scenario.read(*events)
        self.write()

    def age(self, seconds: float) -> None:
        """Set the age of status.json."""
        then = time.time() - seconds
        os.utime(self.events / "status.json", (then, then))

    def run(self, *arguments: str) -> Run:
        """Return exit code and output. It must not write to standard error, which node-problem-detector logs."""
        command = [*self._command, str(PLUGIN), *arguments]
        environment = {"PATH": self._path, "EVENTS": str(self.events)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
        assert done.stderr == ""
        return done.returncode, done.stdout.removesuffix("\n")


def replace(path: Path, old: str, new: str) -> None:
    """Replace a text in a file."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture(params=SHELLS)
def plugin(request: pytest.FixtureRequest, tmp_path: Path) -> Plugin:
    if shutil.which(request.param) is None:
        lacking(f"{request.param} is not installed")
    return Plugin(tmp_path, request.param)


def test_conditions_follow_the_life_of_an_event(plugin: Plugin) -> None:
    """None, Scheduled, Started, and none again; only the condition of its type changes too."""
    plugin.read()
    assert (plugin.run(), plugin.run("Reboot")) == ((NONE, "none"), (NONE, "none"))
    plugin.read(REBOOT)
    assert (plugin.run(), plugin.run("Reboot")) == ((EVENT, REBOOT_MESSAGE),) * 2
    assert plugin.run("Freeze") == (NONE, "none")
    plugin.read(started(REBOOT))
    assert plugin.run() == (EVENT, f"Reboot Started, source Platform, event {REBOOT['EventId']}")
    plugin.read()
    assert plugin.run() == (NONE, "none")


def test_most_urgent_of_several_events_is_shown(plugin: Plugin) -> None:
    """A started event comes first, then the one that starts soonest; the others are counted."""
    plugin.read(REBOOT, FREEZE)
    assert plugin.run()[1].startswith("Freeze Scheduled, not before 2025-11-21T12:15:00Z, ")
    assert plugin.run()[1].endswith(", and 1 more")
    assert plugin.run("Reboot") == (EVENT, REBOOT_MESSAGE)
    plugin.read(started(REBOOT), FREEZE)
    code, message = plugin.run()
    assert (code, message.startswith("Reboot Started, "), message.endswith(", and 1 more")) == (EVENT, True, True)


def test_fifty_events_fit_into_the_message(plugin: Plugin) -> None:
    """That is the agent's limit. Unknown types count too, and the message is shorter than the configured limit."""
    plugin.write(crowded_scenario().status())
    code, message = plugin.run()
    assert (code, message.startswith("Levitate Scheduled, not before "), message.endswith("49 more")) == (
        EVENT,
        True,
        True,
    )
    longest = {**REBOOT, "EventId": "x" * 100, "EventType": "T" * 40, "EventSource": "S" * 20}
    plugin.write(scenario_of(*[{**longest, "EventId": f"{'x' * 97}{number:03}"} for number in range(50)]).status())
    limit = min(json.loads((FOLDER / name).read_text())["pluginConfig"]["max_output_length"] for name in CONFIGURATIONS)
    assert plugin.run()[1].endswith(", and 49 more")
    assert len(plugin.run()[1]) <= limit


def scenario_of(*events: dict[str, Any]) -> EventScenario:
    scenario = EventScenario()
    scenario.read()
    scenario.read(*events)
    return scenario


@pytest.mark.parametrize(
    "hostile",
    [
        '"\n  "status": "Started",\n  "event_type": "Terminate",\n',
        '\r  "status": "Started"\u2028  "event_type": "Terminate"\x1b[2J',
        '%s%n $(touch hacked) `id` * \\" \\n  "status": "Started"',
        "x" * 200_000,
    ],
    ids=["members", "line ends", "shell", "long"],
)
def test_text_from_azure_does_not_reach_the_message(plugin: Plugin, hostile: str) -> None:
    """A description changes nothing, and other hostile values are omitted. The message must not contain `%`, because
    node-problem-detector uses it as a format."""
    plugin.read({**REBOOT, "Description": hostile, "status": "Started"})
    assert plugin.run() == (EVENT, REBOOT_MESSAGE)
    hostile = hostile[:900]
    plugin.read({**REBOOT, "EventSource": hostile, "EventType": hostile, "Description": hostile})
    assert plugin.run() == (EVENT, f"Event Scheduled, {NOT_BEFORE}, event {REBOOT['EventId']}")
    assert plugin.run("Terminate")[0] == UNKNOWN


def test_id_that_is_no_file_name_is_shown_as_its_digest(plugin: Plugin) -> None:
    plugin.read({**REBOOT, "EventId": '../%s"; 1'})
    code, message = plugin.run()
    digest = message.rpartition("event ")[2]
    assert (code, len(digest), set(digest) <= set("0123456789abcdef")) == (EVENT, 64, True)


@pytest.mark.parametrize(
    "change",
    [
        lambda plugin: plugin.write(running=False),
        lambda plugin: plugin.age(15),
        lambda plugin: plugin.age(-60),
        lambda plugin: (plugin.events / "status.json").unlink(),
        lambda plugin: (plugin.events / "status.json").write_bytes(b""),
        lambda plugin: (plugin.events / "status.json").write_bytes(bytes(300)),
        lambda plugin: (plugin.events / "status.json").write_text('{"up": true, "running": true}\n'),
        lambda plugin: replace(plugin.events / "status.json", "status.v1", "status.v2"),
        lambda plugin: shutil.rmtree(plugin.events),
        lambda plugin: plugin.write(plugin.scenario.status(vm=Vm())),
    ],
    ids=["stopped", "old", "future", "missing", "empty", "blank", "foreign", "next version", "no folder", "no name"],
)
@pytest.mark.parametrize("event", [None, REBOOT], ids=["no event", "event"])
def test_dead_agent_is_unknown(
    plugin: Plugin, change: Callable[[Plugin], object], event: dict[str, Any] | None
) -> None:
    """Neither an event nor none, with an explanation."""
    plugin.read(*([event] if event else []))
    assert plugin.run()[0] == (EVENT if event else NONE)
    change(plugin)
    code, message = plugin.run()
    assert (code, message != "") == (UNKNOWN, True)
    assert plugin.run("Reboot") == (code, message)


def test_agent_without_a_document_is_unknown(plugin: Plugin) -> None:
    plugin.write(plugin.scenario.status(source=SourceStatus(up=True)))
    assert plugin.run() == (UNKNOWN, "the agent has read no events yet")


def test_status_of_14_seconds_is_current(plugin: Plugin) -> None:
    plugin.read()
    plugin.age(13)
    assert plugin.run() == (NONE, "none")


def test_silent_metadata_service_keeps_known_events(plugin: Plugin) -> None:
    """An event that is known stays; without one, nothing is certain any more. A single failed poll changes nothing."""
    plugin.scenario = EventScenario(datetime.now(UTC))
    plugin.read()
    plugin.write(failing_status(plugin.scenario))
    assert json.loads((plugin.events / "status.json").read_text())["up"] is False
    assert plugin.run() == (NONE, "none")  # the last document is a second old
    plugin.scenario = scenario_of()
    plugin.write(failing_status(plugin.scenario))
    assert plugin.run() == (UNKNOWN, "the metadata service does not respond")
    plugin.scenario = scenario_of(REBOOT)
    plugin.write(failing_status(plugin.scenario))
    assert (plugin.run(), plugin.run("Reboot")) == ((EVENT, REBOOT_MESSAGE),) * 2
    assert plugin.run("Freeze")[0] == UNKNOWN


@pytest.mark.parametrize(
    "content",
    [b"", b"{}\n", b'{\n  "status": "Scheduled",\n  "event_type": "Freeze"\n}\n', bytes(900), None],
    ids=["empty", "foreign", "no version", "blank", "missing"],
)
def test_unreadable_event_file_is_never_false(plugin: Plugin, content: bytes | None) -> None:
    """One event can't be read: unknown. With another one: its condition is true."""
    plugin.read(REBOOT, FREEZE)
    for event, expected in ((FREEZE, EVENT), (REBOOT, UNKNOWN)):
        path = plugin.events / f"{event['EventId']}.json"
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        assert plugin.run()[0] == expected
    assert plugin.run() == plugin.run("Freeze")


def test_event_without_a_status_file_entry_is_ignored(plugin: Plugin) -> None:
    """Only files that status.json lists are the agent's."""
    plugin.read()
    (plugin.events / "other.json").write_text("{}\n")
    assert plugin.run() == (NONE, "none")


def test_unknown_status_is_an_event(plugin: Plugin) -> None:
    """A status that a later version of the metadata service adds is no reason for False."""
    plugin.read({**REBOOT, "EventStatus": "Postponed"})
    assert plugin.run()[0] == EVENT


@pytest.mark.parametrize("missing", ["date", "head", "sed", "sort", "stat"])
def test_missing_program_is_unknown(tmp_path: Path, missing: str) -> None:
    """An image without one of the programs must not look like a node without events."""
    if shutil.which("busybox") is None:
        lacking("busybox is not installed")
    plugin = Plugin(tmp_path, "busybox")
    plugin.read(REBOOT)
    busybox = shutil.which("busybox")
    (programs := tmp_path / "dash").mkdir()
    for name in OWN:
        if name != missing:
            (programs / name).symlink_to(str(busybox))
    environment = {"PATH": str(programs), "EVENTS": str(plugin.events)}
    dash = shutil.which("dash") or lacking("dash is not installed")
    done = subprocess.run([dash, PLUGIN], env=environment, capture_output=True, timeout=30, check=False)
    assert done.returncode == UNKNOWN


@pytest.mark.peer("shellcheck")
def test_shellcheck_accepts_the_plugin() -> None:
    done = subprocess.run([need("shellcheck"), str(PLUGIN)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert os.access(PLUGIN, os.X_OK)


# -- the configurations and the manifests


def test_configurations_need_no_wrong_default() -> None:
    """node-problem-detector's own default is False until the plugin has run: it isn't sent. Changed messages are. Each
    configuration has its own source, by which events are limited."""
    loaded = [json.loads((FOLDER / name).read_text(encoding="utf-8")) for name in CONFIGURATIONS]
    for one in loaded:
        settings = one["pluginConfig"]
        assert settings["skip_initial_status"] is True
        assert settings["enable_message_change_based_condition_update"] is True
        assert [rule["condition"] for rule in one["rules"]] == [condition["type"] for condition in one["conditions"]]
        assert len({rule["condition"] for rule in one["rules"]}) == len(one["rules"])  # else they would overwrite it
        assert settings["concurrency"] == len(one["rules"])
    assert len({one["source"] for one in loaded}) == len(loaded)
    types = [rule["args"] for rule in loaded[1]["rules"]]
    assert types == [[kind] for kind in ("Reboot", "Redeploy", "Freeze", "Preempt", "Terminate")]
    assert "args" not in loaded[0]["rules"][0]


def test_conditions_are_not_those_of_aks() -> None:
    """AKS's node-problem-detector sets conditions with these names from its own polls, and would overwrite ours."""
    theirs = {f"{kind}Scheduled" for kind in ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate", "VMEvent")}
    for name in CONFIGURATIONS:
        for condition in json.loads((FOLDER / name).read_text(encoding="utf-8"))["conditions"]:
            assert condition["type"] not in theirs


def objects() -> list[dict[str, Any]]:
    names = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    return [one for name in names for one in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))]


@pytest.mark.parametrize("version", ["1.29", kubernetes_validate.latest_version()])
def test_manifests_are_valid(version: str) -> None:
    """Each object is valid against the API's own schema, which rejects unknown keys."""
    for one in objects():
        kubernetes_validate.validate(one, version, strict=True)
    assert len(objects()) == 4


def test_pod_has_only_what_it_needs() -> None:
    """It mounts the plugin and the event files read-only, and runs the tested version without rights, as another user
    than the agent, on the same nodes."""
    daemonset = next(one for one in objects() if one["kind"] == "DaemonSet")
    pod = daemonset["spec"]["template"]["spec"]
    agent = yaml.safe_load((FOLDER.parent / "base" / "daemonset.yaml").read_text(encoding="utf-8"))
    agents = agent["spec"]["template"]["spec"]
    for name in ("affinity", "nodeSelector", "tolerations", "priorityClassName"):
        assert pod[name] == agents[name], name
    (container,) = pod["containers"]
    assert container["image"].rpartition(":")[2] == DETECTOR
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert all(mount["readOnly"] is True for mount in container["volumeMounts"])
    context = container["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"] == {"drop": ["ALL"]}
    user = pod["securityContext"]["runAsUser"]
    assert (pod["securityContext"]["runAsNonRoot"], user != 0) == (True, True)
    assert user != agents["containers"][0]["securityContext"]["runAsUser"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["event-files"]["hostPath"]["type"] == "Directory"  # never creates it, which would be as root
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert f"${{EVENTS:-{mounts['event-files']}}}" in PLUGIN.read_text(encoding="utf-8")
    for name in CONFIGURATIONS:
        assert f"{mounts['plugin']}/{name}" in " ".join(container["command"])
        rules = json.loads((FOLDER / name).read_text(encoding="utf-8"))["rules"]
        assert {rule["path"] for rule in rules} == {f"{mounts['plugin']}/{PLUGIN.name}"}


def test_rights_are_those_that_node_problem_detector_uses() -> None:
    (role,) = (one for one in objects() if one["kind"] == "ClusterRole")
    rights = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert rights == {("nodes", "get"), ("nodes/status", "patch"), ("events", "create"), ("events", "patch")}


def test_agent_still_has_no_token() -> None:
    """The plugin's rights belong to its own ServiceAccount."""
    accounts = {one["metadata"]["name"] for one in objects() if one["kind"] == "ServiceAccount"}
    (binding,) = (one for one in objects() if one["kind"] == "ClusterRoleBinding")
    assert (
        {subject["name"] for subject in binding["subjects"]}
        == accounts
        == {"azure-scheduled-events-node-problem-detector"}
    )
