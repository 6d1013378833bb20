"""Every seed of the fuzzers, and every input that once caused a failure, goes through its target."""

from __future__ import annotations

import pytest

from tests.fuzz.seeds import TARGETS, seeds


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_and_earlier_findings_cause_no_failure(target: str) -> None:
    """Real inputs, and inputs that once caused a failure, are accepted or rejected without an error."""
    for data in seeds(target):
        TARGETS[target](data)
