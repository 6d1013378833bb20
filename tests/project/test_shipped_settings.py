"""The settings that the project ships: the real `check` reads them, and the pages' statements about them are true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from exporter.config.load import read_policy
from exporter.core.decision import match
from exporter.core.policy import Mode, Policy
from tests.support.core_documents import one
from tests.support.documentation import all_blocks, prose
from tests.support.shipped_settings import (
    CONFIG_FILE,
    CONNECTION_STRING,
    DEPLOY,
    PROGRAM_DATA,
    ROOT,
    SHIPPED,
    checked,
    hold_file,
)

pytestmark = pytest.mark.linux("starts `check` on files of Linux' packages")

PACKAGES: Final = ("deb, rpm", "cloud-init", "deb, rpm, drop-in for Event Hubs")
"""Packages that install the systemd unit, which creates the directories of event files and ready files."""
ENFORCING: Final = "compose file"
"""Settings with an agent that approves: it reaches no metadata service except the simulator."""
RUN: Final = "/run/azure-scheduled-events-exporter"


def settings(name: str) -> Any:
    return checked(name)["settings"]


def policy(name: str) -> Policy:
    """Return the policy that `check` prints."""
    read = read_policy(settings(name)["approval"])
    assert read.faults == ()
    return read.policy


def rule_for(name: str, **fields: Any) -> str | None:
    """Return the rule of these settings that matches an event with these fields; None: none, so the event is held."""
    rule = match(policy(name).rules, one(**fields))[0]
    return rule.name if rule is not None else None


# -- the shipped settings


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_settings_are_valid_and_approve_nothing(name: str) -> None:
    """`check` finds no error, and no warning except the emulator's; only the compose file's agent sends approvals."""
    assert [
        text for text in checked(name)["warnings"] if "emulator" not in text and "systemd service" not in text
    ] == []
    assert settings(name)["source"]["url"] == (
        "http://simulator:8080" if name == ENFORCING else "http://169.254.169.254"
    )
    assert (policy(name).mode is Mode.ENFORCE) == (name == ENFORCING)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_installation_has_the_same_settings(name: str) -> None:
    """Only the destinations differ. cloud-init's file replaces the package's, so it is complete."""
    package = {section: values for section, values in settings("deb, rpm").items() if section != "event_hubs"}
    assert {section: values for section, values in settings(name).items() if section != "event_hubs"} == package


def test_every_file_with_settings_is_checked() -> None:
    """Each file below deploy/ that sets something for an agent is among those that these tests read."""
    sets = re.compile(
        r"^\s*(?:- name: |Environment=)?SCHEDULED_EVENTS_[A-Z_]+(?:[=:]|$)|^\s*\[approval\]", re.MULTILINE
    )
    files = [
        path
        for path in DEPLOY.rglob("*")
        if path.is_file() and path.suffix in {"", ".yaml", ".toml", ".conf", ".service", ".env", ".sh"}
    ]
    found = {path.relative_to(DEPLOY).as_posix() for path in files if sets.search(path.read_text(encoding="utf-8"))}
    chart = {
        name for name in found if name.startswith("helm/")
    }  # rendered with its values: tests/project/test_chart.py
    callers = {"image-test", "standalone-test", "packages/scripts/common.sh"}  # start an agent, or `check` of its file
    assert found - chart - callers == {
        "azure/cloud-init.yaml",
        "compose/compose.yaml",
        "kubernetes/base/daemonset.yaml",
        "kubernetes/components/event-files/daemonset.yaml",
        "kubernetes/components/event-hubs/daemonset.yaml",
        "kubernetes/components/handshake/daemonset.yaml",
        "kubernetes/components/handshake/settings.yaml",
        "systemd/azure-scheduled-events-exporter.service",
        "systemd/config.toml",
        "systemd/event-hubs.conf",
    }


# -- examples in pages

APART: Final = {
    "docs/event-files.md": "shows what the packages have set",
    "docs/policy-review.md": "the policy is a file for `replay`",
}
"""Pages with a block that isn't added to the shipped settings, and why."""


@pytest.mark.parametrize("name", ["deb, rpm", "Windows: MSI, zip, pip"])
def test_examples_can_be_appended_to_the_shipped_settings(name: str, tmp_path: Path) -> None:
    """`check` accepts each page's example at the end of the file: TOML rejects a section that is already there."""
    on_windows = name.startswith("Windows")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "event-hubs").write_text(CONNECTION_STRING)
    variables = SHIPPED[name](tmp_path)
    shipped = Path(variables.pop(CONFIG_FILE)).read_text(encoding="utf-8")
    environ = {"PATH": os.environ.get("PATH", ""), "HOME": str(tmp_path), **variables}
    appended, apart = [], []
    for block in all_blocks("toml"):
        text = block.text
        if (PROGRAM_DATA in text) != on_windows:
            continue
        if "[approval]" in text or block.page == "docs/event-files.md":
            apart.append(block.page)
            continue
        for path in re.findall(re.escape(PROGRAM_DATA) + r"[^']*", text):
            text = text.replace(path, path.replace(PROGRAM_DATA, tmp_path.as_posix()).replace("\\", "/"))
        (file := tmp_path / "appended.toml").write_text(f"{shipped}\n{text}", encoding="utf-8")
        command = [sys.executable, "-m", "exporter", "check", "--config.file", str(file)]
        done = subprocess.run(command, cwd=ROOT, env=environ, text=True, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
        appended.append(block.page)
    assert set(apart) == (set() if on_windows else set(APART))
    expected = {"docs/handshake.md", "docs/windows.md"}
    if not on_windows:
        expected = {"README.md", "docs/installation.md", "docs/approvals.md", "docs/policy-review.md"}
    assert expected <= set(appended)


# -- what pages state about it


def by_default() -> bool:
    """Return what an agent without any settings does, as in the container image."""
    return policy("container image").mode is Mode.DRY_RUN


def begins_quietly() -> bool:
    found = checked("deb, rpm")
    listens = settings("deb, rpm")["web"]["listen_address"].endswith(":10169")
    return policy("deb, rpm").mode is Mode.DRY_RUN and not {"event_hubs", "otlp"} & set(found["summary"]) and listens


def cloud_init_is_the_package() -> bool:
    sections = ("approval", "event_files")
    return all(settings("cloud-init")[section] == settings("deb, rpm")[section] for section in sections)


def two_rules_approve_at_once() -> bool:
    users = [rule_for("cloud-init", EventType=kind, EventSource="User") for kind in ("Reboot", "Redeploy")]
    freezes = [
        rule_for("cloud-init", EventType="Freeze", EventSource="Platform", DurationInSeconds=seconds)
        for seconds in (0, 8)
    ]
    first = policy("cloud-init").rules[:2]
    at_once = not any(rule.require_file or rule.settle or rule.when_quiet or rule.hours for rule in first)
    return at_once and set(users + freezes) == {rule.name for rule in first}


def others_wait(*names: str) -> bool:
    """Return whether Freezes of more than 8 s or of unknown length, and the platform's reboots, match the last rule,
    which waits."""
    kinds: list[dict[str, Any]] = [{"EventType": kind} for kind in ("Reboot", "Redeploy")]
    kinds += [{"EventType": "Freeze", "DurationInSeconds": seconds} for seconds in (9, 3600, -1)]
    for name in names:
        *others, last = policy(name).rules
        waits = last.name == "prepared" and last.require_file == f"{RUN}/ready/{{event_id}}"
        matching = {rule_for(name, **{"EventSource": "Platform", **fields}) for fields in kinds}
        if not waits or any(rule.require_file for rule in others) or matching != {"prepared"}:
            return False
    return True


def all_else_is_held() -> bool:
    kinds = ("Preempt", "Terminate", "Defragment", "")
    return {
        rule_for("cloud-init", EventType=kind, EventSource=source) for kind in kinds for source in ("User", "Platform")
    } == {None}


def event_files_are_written(*names: str) -> bool:
    return all(settings(name)["event_files"]["path"] == f"{RUN}/events" for name in names)


def windows_waits_for_nothing() -> bool:
    rules = [(rule.name, rule.require_file) for rule in policy("Windows: MSI, zip, pip").rules]
    return not settings("Windows: MSI, zip, pip")["event_files"]["path"] and rules == [
        ("user-initiated", ""),
        ("short-freeze", ""),
    ]


CLAIMS: Final[list[tuple[str, str, Callable[[], bool]]]] = [
    ("README.md", "It sends nothing by default: approvals run in `dry-run` mode", by_default),
    ("docs/approvals.md", "`dry-run` (default)", by_default),
    (
        "docs/approvals.md",
        "`rules = []` holds every event",
        lambda: read_policy({**settings("cloud-init")["approval"], "rules": []}).policy.rules == (),
    ),
    ("docs/installation.md", "It starts in `dry-run` mode and sends no approvals.", by_default),
    (
        "docs/approvals.md",
        "other freezes, reboots, and redeployments, once the VM's software created a [ready file]",
        lambda: others_wait(*PACKAGES),
    ),
    (
        "docs/event-files.md",
        "The Linux packages set this path",
        lambda: event_files_are_written(*PACKAGES) and windows_waits_for_nothing(),
    ),
    ("docs/approvals.md", "In `enforce`, the first two rules approve at once.", two_rules_approve_at_once),
    ("docs/approvals.md", "Everything else, for example a Spot eviction, is held.", all_else_is_held),
    (
        "docs/approvals.md",
        "deb, rpm, cloud-init, pip with the unit | `touch /etc/azure-scheduled-events-exporter/hold`",
        lambda: {hold_file(name) for name in PACKAGES} == {"/etc/azure-scheduled-events-exporter/hold"},
    ),
    (
        "docs/approvals.md",
        r'Windows | `New-Item -ItemType File "$env:ProgramData\azure-scheduled-events-exporter\hold\hold"`',
        lambda: hold_file("Windows: MSI, zip, pip") == rf"{PROGRAM_DATA}\hold\hold",
    ),
    (
        "docs/approvals.md",
        "container | the file in `approval.hold_file`: set it beforehand",
        lambda: not settings("container image")["approval"]["hold_file"],
    ),
    (
        "docs/linux.md",
        "The service starts in `dry-run`, without a destination, with metrics on port 10169.",
        begins_quietly,
    ),
    (
        "docs/linux.md",
        "| `/etc/azure-scheduled-events-exporter/hold` | hold file |",
        lambda: {hold_file(name) for name in PACKAGES} == {"/etc/azure-scheduled-events-exporter/hold"},
    ),
    (
        "README.md",
        "in `enforce`, approve reboots and redeployments of users, and freezes of up to 8 s. "
        "Linux packages also approve others once a ready file exists. Everything else is held.",
        lambda: two_rules_approve_at_once() and others_wait(*PACKAGES) and all_else_is_held(),
    ),
    (
        "docs/installation.md",
        "Helm chart, kustomize; approvals off",
        lambda: policy("Helm chart, kustomize base").mode is Mode.OFF,
    ),
    (
        "docs/kubernetes.md",
        "The chart and the kustomize base set the [mode](concepts.md#mode) to `off`",
        lambda: policy("Helm chart, kustomize base").mode is Mode.OFF,
    ),
    ("docs/azure.md", "Approvals stay `dry-run`.", lambda: policy("cloud-init").mode is Mode.DRY_RUN),
    (
        "docs/azure.md",
        "`fleet.toml` has the mode, rules, hold file, and event files of the package",
        cloud_init_is_the_package,
    ),
    (
        "docs/azure.md",
        "In `enforce` the first two rules approve at once: reboots and redeployments of users, and freezes of up to 8",
        two_rules_approve_at_once,
    ),
    (
        "docs/azure.md",
        "Other freezes, reboots, and redeployments wait for their ready file",
        lambda: others_wait("cloud-init"),
    ),
    ("docs/azure.md", "Everything else is held.", all_else_is_held),
    (
        "docs/handshake.md",
        "The settings of the Linux packages and of [cloud-init](azure.md#cloud-init) write event files and contain the "
        "rule `prepared`.",
        lambda: event_files_are_written(*PACKAGES) and others_wait(*PACKAGES),
    ),
    (
        "docs/handshake.md",
        "With the shipped rules, these are reboots and redeployments by the platform, and freezes of more than 8 s or "
        "unknown duration.",
        lambda: others_wait(*PACKAGES),
    ),
    (
        "docs/handshake.md",
        "The rules before it approve user-requested reboots and short freezes at once.",
        two_rules_approve_at_once,
    ),
    (
        "docs/handshake.md",
        "The installed settings contain neither event files nor the rule.",
        windows_waits_for_nothing,
    ),
    (
        "docs/fleet.md",
        "they approve reboots and redeployments of users at once, and freezes of up to 8 s.",
        lambda: two_rules_approve_at_once() and windows_waits_for_nothing(),
    ),
    (
        "docs/fleet.md",
        "other freezes, reboots, and redeployments are approved once their ready file exists. Everything else is held",
        lambda: others_wait(*PACKAGES) and all_else_is_held(),
    ),
    (
        "docs/windows.md",
        "The installation writes a `config.toml` in which only the hold file is set.",
        lambda: bool(settings("Windows: MSI, zip, pip")["approval"]["hold_file"]) and windows_waits_for_nothing(),
    ),
]
"""Statements of the pages about shipped settings, with the check of each."""


@pytest.mark.parametrize(
    ("page", "sentence", "is_true"), CLAIMS, ids=[f"{page}: {sentence[:40]}" for page, sentence, _ in CLAIMS]
)
def test_statements_about_shipped_settings_are_true(page: str, sentence: str, is_true: Callable[[], bool]) -> None:
    """The sentence is on the page, and the settings match it."""
    text = re.sub(r"\s+", " ", prose(ROOT / page)).replace("**", "")
    assert sentence in text, f"{page} has another sentence now: adapt the claim to it"
    assert is_true()
