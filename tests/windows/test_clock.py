"""What Windows says of the rate of its clock: on libraries that are made here, and on the system's own."""

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
def test_the_rate_is_how_far_the_adjustment_is_from_the_increment(numbers: tuple[int, int, bool], rate: float) -> None:
    """In seconds per second, faster or slower; nothing where the adjustment is switched off."""
    assert slew(*numbers) == pytest.approx(rate)


def test_numbers_that_mean_nothing_are_an_error() -> None:
    with pytest.raises(OSError, match="for each 0"):
        slew(156_250, 0, False)


def answers(adjustment: int, increment: int, disabled: bool = False, works: bool = True) -> Callable[..., int]:
    """A function of the system's: it writes its answer to where three pointers lead."""

    def ask(*pointers: Any) -> int:
        for pointer, number in zip(pointers, (adjustment, increment, disabled), strict=True):
            pointer._obj.value = number
        return int(works)

    return ask


def libraries(**functions: Callable[..., int]) -> Callable[[str], Any]:
    """The system's libraries: the classic function in kernel32, the precise one in kernelbase where there is one."""
    found = {
        "kernel32": SimpleNamespace(GetSystemTimeAdjustment=functions["classic"]),
        "kernelbase": SimpleNamespace(
            **({"GetSystemTimeAdjustmentPrecise": functions["precise"]} if "precise" in functions else {})
        ),
    }
    return found.__getitem__


def test_the_precise_function_is_asked_where_there_is_one() -> None:
    """Its numbers need more than 32 bits; before Windows 10, and under Wine, there is the classic one."""
    classic, precise = answers(156_250, 156_250), answers(15_000_000_000, 10_000_000_000)
    assert slew_reader(libraries(classic=classic, precise=precise))() == pytest.approx(0.5)
    assert slew_reader(libraries(classic=classic))() == 0.0


def test_it_is_read_anew_each_time() -> None:
    """The rate changes while the agent runs."""
    functions = iter([answers(156_250, 156_250), answers(160_000, 156_250)])

    def asked(*pointers: Any) -> int:
        return next(functions)(*pointers)

    read = slew_reader(libraries(classic=asked))
    assert [read(), read()] == pytest.approx([0.0, 0.024])


def test_a_function_that_fails_is_an_error() -> None:
    """Not a rate of 0: what is not known is not said to be well."""
    with pytest.raises(OSError, match="GetSystemTimeAdjustment failed"):
        slew_reader(libraries(classic=answers(0, 0, works=False)))()


@pytest.mark.linux("elsewhere there are such libraries")
def test_elsewhere_there_is_nothing_to_read() -> None:
    with pytest.raises(OSError, match="not Windows"):
        slew_reader()


@pytest.mark.windows
def test_the_real_system_says_its_rate() -> None:
    """A number that a clock can have."""
    assert 0.0 <= slew_reader()() <= 0.5
