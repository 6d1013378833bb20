"""The syntax of the faults of all simulated services: `[WHERE/]NAME[:ARG][*COUNT]`.

NAME is one of the service's fault kinds. ARG is a number, a duration (`500ms`), or an error condition, depending on the
kind. COUNT is how often the fault occurs: a number, or `always`. WHERE is a place of a service that has several.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from exporter.text.format import parse_duration
from exporter.text.values import unknown_word

SPELLING: Final = "[WHERE/]NAME[:ARG][*COUNT]"
EVERYWHERE: Final = "all"
_SPEC: Final = re.compile(
    r"(?:(?P<where>[a-z]+)/)?(?P<name>[a-z0-9-]+)(?::(?P<argument>[A-Za-z0-9.:-]+))?(?:\*(?P<count>[1-9]\d{0,8}|always))?"
)


class FaultError(ValueError):
    """An invalid fault; the text contains the reason."""


class FaultKind(NamedTuple):
    """A kind of fault: its effect as a line of a list, and the default of its argument, a number or AMQP condition.

    `where` is the only place where it occurs, "" for any; `times` is how often, None for as long as it is set.
    """

    does: str
    argument: float | None = None
    condition: str = ""
    where: str = ""
    times: int | None = None


class Fault(NamedTuple):
    """An active fault at a place, which occurs `times` times more; None for as long as it is set."""

    name: str
    where: str
    argument: float = 0.0
    condition: str = ""
    times: int | None = None


class Faults:
    """The active faults, of these kinds and places (the first is the default). Thread-safe."""

    def __init__(self, kinds: Mapping[str, FaultKind], places: tuple[str, ...] = ()) -> None:
        self._kinds, self._places = kinds, places
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def set(self, *specs: str) -> None:
        """Replace all faults by these. If one is invalid, raise FaultError and change nothing."""
        faults = [self.parse(spec) for spec in specs]
        with self._lock:
            self._faults = faults

    def add(self, spec: str) -> None:
        """Add a fault after the others. Raises FaultError."""
        fault = self.parse(spec)
        with self._lock:
            self._faults.append(fault)

    def pending(self) -> int:
        """Return how many more times faults occur; one without an end counts once."""
        with self._lock:
            return sum(fault.times or 1 for fault in self._faults)

    def take(self, where: str, applies: Callable[[Fault], bool] = lambda _: True) -> Fault | None:
        """Return the first active fault at this place that `applies`, and count it; None for none."""
        with self._lock:
            for index, fault in enumerate(self._faults):
                if fault.where in (where, EVERYWHERE) and applies(fault):
                    left = None if fault.times is None else fault.times - 1
                    self._faults[index : index + 1] = [] if left == 0 else [fault._replace(times=left)]
                    return fault
        return None

    def parse(self, spec: str) -> Fault:
        """Parse a fault. Raises FaultError if it is invalid or unknown."""
        if (match := _SPEC.fullmatch(spec)) is None:
            raise FaultError(f"{spec!r}: not a fault; expected {SPELLING}")
        name, where, text, count = match["name"], match["where"], match["argument"], match["count"]
        if (kind := self._kinds.get(name)) is None:
            raise FaultError(unknown_word("fault", name, self._kinds))
        if where and where not in self._places:
            raise FaultError(f"fault {spec!r}: {unknown_word('place', where, sorted(self._places))}")
        if text and kind.argument is None and not kind.condition:
            raise FaultError(f"{spec!r}: this fault takes no argument")
        argument = _number(spec, text) if text and not kind.condition else kind.argument or 0.0
        times = kind.times if count is None else None if count == "always" else int(count)
        return Fault(name, kind.where or where or self._places[0], argument, text or kind.condition, times)


def _number(spec: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        try:
            number = parse_duration(text)
        except ValueError:
            number = math.nan
    if not 0 <= number <= 86400:  # noqa: PLR2004  # a day: longer than any fault in a test
        raise FaultError(
            f"{spec!r}: expected a number from 0 to 86400 after the colon, or a duration, for example 500ms"
        )
    return number
