"""A day of a small fleet through the real rules, a real Alertmanager, and a real webhook: messages by receiver."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from benchmarks.fleet_month import SCENARIOS, Scenario, written
from benchmarks.notifications import Engine, changes, play
from tests.support.peers import need

VMS: Final = 120
FACTOR: Final = 480.0

pytestmark = pytest.mark.peer("alertmanager")


def _scenario(words: str) -> Scenario:
    (scenario,) = (scenario for scenario in SCENARIOS if words in scenario.name)
    return scenario


@pytest.mark.parametrize("words", ["autoscale deletes", pytest.param("approved early", marks=pytest.mark.nightly)])
def test_events_that_need_no_action_raise_no_alert(words: str) -> None:
    """A tenth of the fleet is deleted, early or in time, with its targets down or removed afterwards: no alert
    fires."""
    assert changes(_scenario(words), VMS, Engine(Path(need("promtool")))) == []


@pytest.mark.parametrize(
    ("words", "recorded", "alerts"),
    [
        pytest.param("4 Spot VMs", {}, 1, marks=pytest.mark.nightly),
        ("region", {("operators", "firing"): 1, ("shop", "firing"): 1}, 80),
    ],
)
def test_many_alerts_are_one_notification_or_none(
    words: str, recorded: dict[tuple[str, str], int], alerts: int, tmp_path: Path
) -> None:
    """An outage of the metadata service notifies each receiver once; a few evictions notify no one."""
    scenario = _scenario(words)
    begun, notifications = play(scenario, changes(scenario, VMS, Engine(Path(need("promtool")))), FACTOR, tmp_path)
    assert begun.total() >= alerts
    assert dict(notifications) == recorded


def test_values_are_written_as_promtool_reads_them() -> None:
    """Runs, steps up and down, gaps, and the end of a series."""
    assert written([None, None, 1.0, 1.0, 1.0, 0.0]) == "_x2 1+0x2 0"
    assert written([0.0, 60.0, 120.0, None, None]) == "0+60x2 stale _x1"
    assert written([1.0, 0.0, None, 5.0]) == "1-1x1 stale 5"
