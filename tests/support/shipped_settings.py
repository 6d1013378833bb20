"""The settings that the project ships, by way to install them, and the output of the real `check` for each."""

from __future__ import annotations

import functools
import json
import ntpath
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from exporter.commands.service.install import config_template

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
CONFIG_FILE: Final = "SCHEDULED_EVENTS_CONFIG_FILE"
PREFIX: Final = "SCHEDULED_EVENTS_"
CREDENTIALS: Final = "/run/credentials/azure-scheduled-events-exporter.service"
"""Where systemd puts the credentials of the packages' unit."""
PROGRAM_DATA: Final = r"C:\ProgramData\azure-scheduled-events-exporter"
CONNECTION_STRING: Final = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
PLACES: Final = {"@NAMESPACE@": "example.servicebus.windows.net", "@EVENT_HUB@": "scheduled-events"}
"""Values that a reader fills in."""


def one(path: Path) -> Any:
    """Return the only document of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _variables(text: str) -> dict[str, str]:
    """Return the settings in lines NAME=VALUE, as in a systemd unit or an EnvironmentFile."""
    found = re.findall(rf"^(?:Environment=)?({PREFIX}\w+)=(.*)$", text, re.MULTILINE)
    return {name: " ".join(shlex.split(value)) for name, value in found}


def _unit(folder: Path) -> dict[str, str]:
    unit = (DEPLOY / "systemd" / "azure-scheduled-events-exporter.service").read_text(encoding="utf-8")
    (folder / "config.toml").write_bytes((DEPLOY / "systemd" / "config.toml").read_bytes())
    variables = _variables(unit)
    assert variables.pop(CONFIG_FILE) == "/etc/azure-scheduled-events-exporter/config.toml"
    return {**variables, CONFIG_FILE: str(folder / "config.toml")}


def _drop_in(folder: Path) -> dict[str, str]:
    """Return the same with the drop-in that passes the connection string."""
    (folder / "event-hubs").write_text(f"{CONNECTION_STRING};EntityPath=scheduled-events")
    text = (DEPLOY / "systemd" / "event-hubs.conf").read_text(encoding="utf-8")
    assert CREDENTIALS in text
    return {**_unit(folder), **_variables(text.replace(CREDENTIALS, str(folder)))}


def _cloud_init(folder: Path) -> dict[str, str]:
    """Return the unit's settings, the `environment` that overrides them, and the file that it names."""
    content: dict[str, str] = {}
    for entry in one(DEPLOY / "azure" / "cloud-init.yaml")["write_files"]:
        for place, value in PLACES.items():
            content[entry["path"]] = content.get(entry["path"], entry["content"]).replace(place, value)
    variables = {**_unit(folder), **_variables(content["/etc/azure-scheduled-events-exporter/environment"])}
    (folder / "fleet.toml").write_text(content[variables[CONFIG_FILE]], encoding="utf-8")
    return {**variables, CONFIG_FILE: str(folder / "fleet.toml")}


def _windows(folder: Path) -> dict[str, str]:
    """Return the text with a folder of this system instead of ProgramData."""
    lines = config_template(PROGRAM_DATA, usual=True).splitlines()
    here = [line.replace("\\", "/") if PROGRAM_DATA in line else line for line in lines]
    text = "\n".join(here).replace(PROGRAM_DATA.replace("\\", "/"), folder.as_posix())
    (folder / "config.toml").write_text(text, encoding="utf-8")
    return {CONFIG_FILE: str(folder / "config.toml")}


def _image(folder: Path) -> dict[str, str]:  # noqa: ARG001  # it has no file
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert not re.search(rf"^(?:ENV)?\s+{PREFIX}", text, re.MULTILINE)
    return {}


def _of_a_container(container: Mapping[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def _base(folder: Path) -> dict[str, str]:  # noqa: ARG001  # it has no file
    (container,) = one(DEPLOY / "kubernetes" / "base" / "daemonset.yaml")["spec"]["template"]["spec"]["containers"]
    return _of_a_container(container)


def _event_hubs_component(folder: Path) -> dict[str, str]:
    (folder / "connection-string").write_text(f"{CONNECTION_STRING};EntityPath=scheduled-events")
    patch = one(DEPLOY / "kubernetes" / "components" / "event-hubs" / "daemonset.yaml")
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    added = {
        name: value.replace("/run/secrets/event-hubs", str(folder))
        for name, value in _of_a_container(container).items()
    }
    return {**_base(folder), **added}


def _handshake_component(folder: Path) -> dict[str, str]:
    """Return the base's variables with those of both components, and the file of the ConfigMap."""
    variables = _base(folder)
    components = DEPLOY / "kubernetes" / "components"
    for component in ("event-files", "handshake"):
        pod = one(components / component / "daemonset.yaml")["spec"]["template"]["spec"]
        variables |= _of_a_container(next(one for one in pod["containers"] if one["name"] == "agent"))
    text: str = one(components / "handshake" / "settings.yaml")["data"]["config.toml"]
    (folder / "config.toml").write_text(text, encoding="utf-8")
    return {**variables, CONFIG_FILE: str(folder / "config.toml")}


def _compose(folder: Path) -> dict[str, str]:  # noqa: ARG001  # it has no file
    environment: dict[str, str] = one(DEPLOY / "compose" / "compose.yaml")["services"]["agent"]["environment"]
    return environment


SHIPPED: Final[Mapping[str, Callable[[Path], dict[str, str]]]] = {
    "deb, rpm": _unit,
    "cloud-init": _cloud_init,
    "Windows: MSI, zip, pip": _windows,
    "container image": _image,
    "Helm chart, kustomize base": _base,
    "compose file": _compose,
    "deb, rpm, drop-in for Event Hubs": _drop_in,
    "kustomize, component for Event Hubs": _event_hubs_component,
    "Helm chart, kustomize, with the handshake": _handshake_component,
}
"""Creates the environment of an agent with these settings, and its files in a folder."""


@functools.cache
def checked(name: str, mode: str = "") -> dict[str, Any]:
    """Return the output of `check --format json` for these settings, in another mode if one is given. They must be
    valid."""
    with tempfile.TemporaryDirectory() as folder:
        variables = SHIPPED[name](Path(folder))
        environ = {"PATH": os.environ.get("PATH", ""), "HOME": folder, **variables}
        command = [
            sys.executable,
            "-m",
            "exporter",
            "check",
            "--format",
            "json",
            *(["--approval.mode", mode] if mode else []),
        ]
        done = subprocess.run(command, cwd=ROOT, env=environ, text=True, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        printed: dict[str, Any] = json.loads(done.stdout)
        return printed


def hold_file(name: str) -> str:
    """Return the path of its hold file, on its system."""
    path: str = checked(name)["settings"]["approval"]["hold_file"]
    if not name.startswith("Windows"):
        return path
    return ntpath.join(PROGRAM_DATA, *PurePosixPath(path).parts[-2:])


def shipped_settings_table() -> str:
    """Return the mode and the rules of each way to install the agent as a Markdown table; equal ones share a row.

    Raises AssertionError if a rule's name means different rules: the page explains each name once.
    """
    rows: dict[str, list[str]] = {}
    rules: dict[str, str] = {}
    for name in SHIPPED:
        if "for Event Hubs" in name:  # the same with a destination
            continue
        approval, enforced = checked(name)["settings"]["approval"], checked(name, "enforce")["summary"]
        texts = [text for line, text in enforced.items() if line.startswith("rule")]
        names = [text.partition(":")[0] for text in texts]
        for rule, text in zip(names, texts, strict=True):
            assert rules.setdefault(rule, text) == text, f"{name}: {text}"
        row = f"`{approval['mode']}` | {', '.join(f'`{rule}`' for rule in names)}"
        rows.setdefault(row, []).append(name)
    lines = ["| Installed by | `approval.mode` | Rules, in this order |", "| --- | --- | --- |"]
    lines += [f"| {'; '.join(names)} | {row} |" for row, names in rows.items()]
    return "\n".join(lines) + "\n"
