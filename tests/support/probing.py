"""Shared code for the tests of `check --probe`: settings that use only loopback, and the command as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from exporter.commands.check.probe import Probe, run_probes
from exporter.commands.check.report import Finding, FindingVerdict, ProbeEnvironment, Timeouts
from exporter.config.schema import Settings
from tests.support.configuration import loaded
from tests.support.lines import rejoined

SHORT_TIMEOUTS = Timeouts(connect=5.0, answer=2.0, total=12.0)
"""The deadline for peers that never respond: short, yet long enough for a response on a busy machine."""
ENVIRONMENT = ProbeEnvironment(timeouts=Timeouts(connect=10.0, answer=20.0, total=40.0))
HURRIED_ENVIRONMENT = ProbeEnvironment(timeouts=SHORT_TIMEOUTS)
ROOT = Path(__file__).parents[2]


def findings_of(probe: Probe, settings: Settings, environment: ProbeEnvironment = ENVIRONMENT) -> list[Finding]:
    """Return the result of one probe, run as `check --probe` runs it."""
    return list(run_probes(settings, environment, {"tried": probe}))


def sentence_of(findings: Sequence[Finding], verdict: FindingVerdict, topic: str, *words: str) -> str:
    """Return the one message about that topic with these words; fail if there is none or another verdict."""
    of_topic = [finding for finding in findings if finding.topic == topic]
    assert [finding.verdict for finding in of_topic] == [verdict], findings
    sentence = of_topic[0].sentence
    for part in words:
        assert part in sentence, sentence
    return sentence


def settings_for(url: str, *flags: str) -> Settings:
    """Return settings with a metadata service at this URL."""
    return loaded(f"--source.url={url}", *flags)


def run_check(
    *flags: str,
    before: str = "",
    isolated: str = "",
    environ: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `check --probe` as a process. `isolated` are the namespaces that it gets (options of unshare), and `before`
    is a shell script that runs in them first. Skips if the system does not permit that."""
    command = [sys.executable, "-m", "exporter", "check", "--probe", *flags]
    if isolated:
        _need(["unshare", isolated, "sh", "-c", before or "true"])
        command = ["unshare", isolated, "sh", "-c", f'{before or "true"} && exec "$@"', "sh", *command]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "SCHEDULED"))}
    variables = inherited | {"PYTHONDONTWRITEBYTECODE": "1", **(environ or {})}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False)


def _need(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("this system does not permit separate namespaces")


def printed_line(process: subprocess.CompletedProcess[str], topic: str) -> str:
    """Return the process's lines about that topic, verdict first."""
    assert process.stderr == ""
    lines = [line.split() for line in rejoined(process.stdout).splitlines()]
    of_topic = [words for words in lines if words[1:2] == [topic] and words[0] in tuple(FindingVerdict)]
    assert len(of_topic) == 1, process.stdout
    return " ".join(of_topic[0])
