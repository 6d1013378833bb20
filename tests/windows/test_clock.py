"""The rate of the Windows clock, from simulated libraries and from the system's own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.windows.system import slew, slew_reader

CASES = [
    ((156_250, 156_250, False), 0.0),
    ((78_125, 156_250, False), 0.5),
    ((234_375, 156_250, False), 0.5),
    ((10_000_500, 10_000_000, False), 0.00005),
    ((78_125, 156_250, True), 0.0),
    ((0, 0, True), 0.0),
]


@pytest.mark.parametrize(("numbers", "rate"), CASES)
def test_rate_is_the_difference_of_adjustment_and_increment(numbers: tuple[int, int, bool], rate: float) -> None:
    """In seconds per second, faster or slower; zero if the adjustment is disabled."""
    assert slew(*numbers) == pytest.approx(rate)


def test_invalid_numbers_are_an_error() -> None:
    with pytest.raises(OSError, match="for each 0"):
        slew(156_250, 0, False)


def answers(adjustment: int, increment: int, disabled: bool = False, works: bool = True) -> Callable[..., int]:
    """Return a function like the system's: it writes its results to three pointers."""

    def ask(*pointers: Any) -> int:
        for pointer, number in zip(pointers, (adjustment, increment, disabled), strict=True):
            pointer._obj.value = number
        return int(works)

    return ask


def libraries(**functions: Callable[..., int]) -> Callable[[str], Any]:
    """Return a library loader: the classic function is in kernel32, the precise one (if any) in kernelbase."""
    found = {
        "kernel32": SimpleNamespace(GetSystemTimeAdjustment=functions["classic"]),
        "kernelbase": SimpleNamespace(
            **({"GetSystemTimeAdjustmentPrecise": functions["precise"]} if "precise" in functions else {})
        ),
    }
    return found.__getitem__


def test_precise_function_is_used_if_available() -> None:
    """Its numbers need more than 32 bits; before Windows 10, and under Wine, only the classic one exists."""
    classic, precise = answers(156_250, 156_250), answers(15_000_000_000, 10_000_000_000)
    assert slew_reader(libraries(classic=classic, precise=precise))() == pytest.approx(0.5)
    assert slew_reader(libraries(classic=classic))() == 0.0


def test_rate_is_read_again_on_each_call() -> None:
    """The rate changes while the agent runs."""
    functions = iter([answers(156_250, 156_250), answers(160_000, 156_250)])

    def asked(*pointers: Any) -> int:
        return next(functions)(*pointers)

    read = slew_reader(libraries(classic=asked))
    assert [read(), read()] == pytest.approx([0.0, 0.024])


def test_failing_function_is_an_error() -> None:
    """Not a rate of 0, since an unknown rate isn't a normal one."""
    with pytest.raises(OSError, match="GetSystemTimeAdjustment failed"):
        slew_reader(libraries(classic=answers(0, 0, works=False)))()


@pytest.mark.linux("elsewhere there are such libraries")
def test_other_systems_have_no_rate_to_read() -> None:
    with pytest.raises(OSError, match="not Windows"):
        slew_reader()


@pytest.mark.windows
def test_real_system_returns_a_plausible_rate() -> None:
    assert 0.0 <= slew_reader()() <= 0.5
