"""Every seed of the fuzzers, and every input that once broke something, goes through its target."""

from __future__ import annotations

import pytest

from tests.fuzz.seeds import TARGETS, seeds


@pytest.mark.parametrize("target", TARGETS)
def test_what_fuzzers_start_from_and_have_found_breaks_nothing(target: str) -> None:
    """Real inputs, and those that a fuzzer found to break something, are taken or refused in good order."""
    for data in seeds(target):
        TARGETS[target](data)
