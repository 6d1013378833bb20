"""Two agents on one outbox: the second one does not start, or the first one holds, with any file removed in between."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from exporter.simulator.metadata.service import MetadataService
from tests.support.agent_environment import document
from tests.support.running import Run
from tests.system.test_faults_process import ENFORCE, UNREACHABLE, polls_on
from tests.system.test_run import REBOOT, mine, quiet

EVENTS: Final = 8

pytestmark = pytest.mark.linux("Windows removes and replaces no file that is open")


def lock(folder: Path) -> None:
    """Return whether a file looks like a lock."""
    (folder / "outbox.db.lock").unlink(missing_ok=True)


def database(folder: Path) -> None:
    (folder / "outbox.db").unlink()


def all_files(folder: Path) -> None:
    for name in os.listdir(folder):
        (folder / name).unlink()


def replaced(folder: Path) -> None:
    """Replace the file by a copy of itself, as a restored backup does."""
    shutil.copy(folder / "outbox.db", folder / "copy")
    os.replace(folder / "copy", folder / "outbox.db")


def whole_folder(folder: Path) -> None:
    os.rename(folder, folder.with_name("away"))
    folder.mkdir()


def announced(service: MetadataService, number: int, first: int) -> None:
    """Eight events that the default rules approve."""
    service.set_document(document(number, *(mine(f"{REBOOT[:-2]}{first + index}") for index in range(EVENTS))))


@pytest.mark.parametrize("remove", [lock, database, all_files, replaced, whole_folder])
def test_only_one_of_two_agents_approves(tmp_path: Path, remove: Callable[[Path], None]) -> None:
    """Eight events get one POST each.

    The first agent may notice the removal before the second one starts: the second one then ends. Otherwise the first
    one holds everything, records why, and continues to hold after the second one has ended, because it doesn't know
    what that one approved.
    """
    folder = tmp_path / "state"
    folder.mkdir()
    with quiet() as service:
        service.set_document(document(5))
        with Run(service.url, folder, ENFORCE, UNREACHABLE) as first:
            first.wait_for(lambda: first.get("/-/ready").status_code == 200)
            remove(folder)
            with Run(service.url, folder, ENFORCE, UNREACHABLE) as second:
                second.wait_for(lambda: second.process.poll() is not None or bool(second.said("agent.started")))
                both = second.process.poll() is None
                announced(service, 6, 10)
                first.wait_for(lambda: len({post.event_ids for post in service.posts}) == EVENTS)
                polls_on(first, service)
                assert len(service.posts) == EVENTS, [run.lines for run in (first, second)]
                if both:
                    first.wait_for(lambda: first.metric("outbox_writable") == 0)
                    assert any("another agent uses this outbox" in line for line in first.said("outbox.unwritable"))
                    assert second.metric("outbox_writable") == 1
                    assert second.stop() == 0
                else:
                    assert any("another agent uses this outbox" in line for line in second.lines)
            announced(service, 7, 40)
            polls_on(first, service)
            if both:
                assert len(service.posts) == EVENTS
            else:
                first.wait_for(lambda: len(service.posts) == 2 * EVENTS)
            assert not (both and remove is lock)
            assert first.stop() == 0
