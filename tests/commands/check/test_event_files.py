"""`check` and the directory for event files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pytest

from exporter.commands.check.disk import open_to_writers, probe_event_files
from exporter.commands.check.probe import probes_for
from exporter.commands.check.report import FindingVerdict
from exporter.config.schema import Settings
from tests.support.configuration import loaded
from tests.support.probing import findings_of, sentence_of

OK, WARN, FAIL = FindingVerdict.OK, FindingVerdict.WARN, FindingVerdict.FAIL
UNKNOWN_USER: Final = 65534


def settings_of(path: Path) -> Settings:
    return loaded(f"--event-files.path={path}")


def test_configured_directory_is_probed(tmp_path: Path) -> None:
    """The probe leaves nothing behind."""
    assert "event_files" not in probes_for(loaded())
    assert "event_files" in probes_for(settings_of(tmp_path))
    (finding,) = findings_of(probe_event_files, settings_of(tmp_path))
    assert (finding.verdict, finding.sentence) == (OK, f"{tmp_path} is writable")
    assert list(tmp_path.iterdir()) == []


def test_missing_directory_is_a_warning(tmp_path: Path) -> None:
    """The agent's unit may create it when it starts."""
    sentence_of(findings_of(probe_event_files, settings_of(tmp_path / "no")), WARN, "event_files", "does not exist")
    assert not (tmp_path / "no").exists()


def test_path_of_a_file_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sentence_of(
        findings_of(probe_event_files, settings_of(tmp_path / "file")),
        FAIL,
        "event_files",
        "not an accessible directory",
    )


def test_another_programs_status_is_a_failure(tmp_path: Path) -> None:
    """The agent doesn't replace it."""
    (tmp_path / "status.json").write_text("{}")
    finding = findings_of(probe_event_files, settings_of(tmp_path))
    sentence_of(finding, FAIL, "event_files", "another program", "a separate directory")


@pytest.mark.linux("runs as another user")
def test_directory_without_write_permission_is_a_failure(tmp_path: Path) -> None:
    if sys.platform == "win32":
        return
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if not os.stat(folder).st_mode & 0o001:
            pytest.skip(f"{folder} is closed to other users")
    root = os.geteuid() == 0
    if root:
        os.seteuid(UNKNOWN_USER)
    try:
        refused = findings_of(probe_event_files, settings_of(closed))
    finally:
        if root:
            os.seteuid(0)
    sentence_of(refused, FAIL, "event_files", "not writable", "(event_files.path)")


@pytest.mark.linux("checks modes, not access lists")
def test_world_writable_directory_is_a_warning(tmp_path: Path) -> None:
    """Every user could forge event files, which local software trusts."""
    assert open_to_writers(loaded()) == []
    assert open_to_writers(settings_of(tmp_path / "no")) == []
    assert open_to_writers(settings_of(tmp_path)) == []
    tmp_path.chmod(0o1777)
    (warning,) = open_to_writers(settings_of(tmp_path))
    assert warning.startswith(f"event_files.path: every user of this machine can forge event files in {tmp_path}")
