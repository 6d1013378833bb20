"""What `check` says of the folder for event files."""

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


def test_it_is_probed_where_it_is_configured(tmp_path: Path) -> None:
    """And leaves nothing behind."""
    assert "event_files" not in probes_for(loaded())
    assert "event_files" in probes_for(settings_of(tmp_path))
    (finding,) = findings_of(probe_event_files, settings_of(tmp_path))
    assert (finding.verdict, finding.sentence) == (OK, f"{tmp_path} can be written")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_a_warning(tmp_path: Path) -> None:
    """The unit may make it when it starts."""
    sentence_of(findings_of(probe_event_files, settings_of(tmp_path / "no")), WARN, "event_files", "is missing")
    assert not (tmp_path / "no").exists()


def test_what_is_no_folder_is_a_failure(tmp_path: Path) -> None:
    """A file, or a path through one."""
    (tmp_path / "file").write_text("")
    sentence_of(findings_of(probe_event_files, settings_of(tmp_path / "file")), FAIL, "event_files", "no folder")


def test_another_programs_status_is_a_failure(tmp_path: Path) -> None:
    """The agent would not replace it."""
    (tmp_path / "status.json").write_text("{}")
    finding = findings_of(probe_event_files, settings_of(tmp_path))
    sentence_of(finding, FAIL, "event_files", "another program", "a separate directory")


@pytest.mark.linux("looks through another user's eyes")
def test_what_this_user_may_not_do_is_a_failure(tmp_path: Path) -> None:
    """To write there."""
    if sys.platform == "win32":
        return
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if not os.stat(folder).st_mode & 0o001:
            pytest.skip(f"{folder} lets nobody else in")
    root = os.geteuid() == 0
    if root:
        os.seteuid(UNKNOWN_USER)
    try:
        refused = findings_of(probe_event_files, settings_of(closed))
    finally:
        if root:
            os.seteuid(0)
    sentence_of(refused, FAIL, "event_files", "not writable", "(event_files.path)")


@pytest.mark.linux("access lists are not judged")
def test_a_folder_that_everybody_may_write_is_warned_of(tmp_path: Path) -> None:
    """Local software would believe what anybody says there."""
    assert open_to_writers(loaded()) == []
    assert open_to_writers(settings_of(tmp_path / "no")) == []
    assert open_to_writers(settings_of(tmp_path)) == []
    tmp_path.chmod(0o1777)
    (warning,) = open_to_writers(settings_of(tmp_path))
    assert warning.startswith(f"event_files.path: every user of this machine may write to {tmp_path}")
