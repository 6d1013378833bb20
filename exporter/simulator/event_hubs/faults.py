"""Faults of the broker, written `NAME[:CONDITION][*TIMES]`, each consumed by the next occasion of its stage.

`drop-before-store`, `rejected:com.microsoft:server-busy*3` and `silent*always` are faults. TIMES is 1 when left out.
Faults of one stage are consumed in the order in which they were added, independently of other stages.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from enum import Enum
from typing import Final, NamedTuple

from msgspec import Struct


class Stage(Enum):
    """The moment at which a fault is consumed."""

    CONNECT = "connect"  # a TCP connection was accepted
    CBS = "cbs"  # a put-token on $cbs
    ATTACH = "attach"  # a link to an event hub
    MANAGEMENT = "management"  # a request on $management
    SEND = "send"  # a complete transfer to an event hub, be it one event or a batch


class FaultKind(Enum):
    """The faults that there are, by name."""

    SILENT = "silent"  # accepts the connection, reads, never sends anything
    CBS_REFUSED = "cbs-refused"  # put-token is answered with 401
    CBS_SILENT = "cbs-silent"  # put-token is never answered
    ATTACH_REFUSED = "attach-refused"  # the link is answered and detached with the condition
    MANAGEMENT_SILENT = "management-silent"  # the request is never answered
    DROP_BEFORE_STORE = "drop-before-store"  # connection reset, nothing stored
    DROP_AFTER_STORE = "drop-after-store"  # stored, connection reset: the acknowledgement is lost
    NO_DISPOSITION = "no-disposition"  # stored, never acknowledged, connection stays up
    RELEASED = "released"  # not stored
    MODIFIED = "modified"  # not stored
    REJECTED = "rejected"  # not stored, the condition says why
    DETACH = "detach"  # not stored, the link is detached with the condition
    ACCEPT = "accept"  # no fault: one send succeeds


class Fault(Struct, frozen=True):
    """One fault; `condition` is an AMQP error condition where the kind takes one."""

    kind: FaultKind
    condition: str


class _Traits(NamedTuple):
    stage: Stage
    condition: str = ""


_TRAITS: Final[dict[FaultKind, _Traits]] = {
    FaultKind.SILENT: _Traits(Stage.CONNECT),
    FaultKind.CBS_REFUSED: _Traits(Stage.CBS),
    FaultKind.CBS_SILENT: _Traits(Stage.CBS),
    FaultKind.ATTACH_REFUSED: _Traits(Stage.ATTACH, "amqp:not-found"),
    FaultKind.MANAGEMENT_SILENT: _Traits(Stage.MANAGEMENT),
    FaultKind.DROP_BEFORE_STORE: _Traits(Stage.SEND),
    FaultKind.DROP_AFTER_STORE: _Traits(Stage.SEND),
    FaultKind.NO_DISPOSITION: _Traits(Stage.SEND),
    FaultKind.RELEASED: _Traits(Stage.SEND),
    FaultKind.MODIFIED: _Traits(Stage.SEND),
    FaultKind.REJECTED: _Traits(Stage.SEND, "com.microsoft:server-busy"),
    FaultKind.DETACH: _Traits(Stage.SEND, "com.microsoft:server-busy"),
    FaultKind.ACCEPT: _Traits(Stage.SEND),
}
_ALWAYS: Final = -1
_SPELLING: Final = re.compile(
    r"(?P<name>[a-z-]+)(?::(?P<condition>[a-z0-9.:-]+))?(?:\*(?P<times>[1-9]\d{0,5}|always))?"
)


def parse_fault(text: str) -> tuple[Fault, int]:
    """The fault and how often it happens, -1 for always. Raises ValueError with a sentence for any other spelling."""
    match = _SPELLING.fullmatch(text)
    kinds = {kind.value: kind for kind in FaultKind}
    if match is None or match["name"] not in kinds:
        raise ValueError(f"no such fault: {text!r}; expected NAME[:CONDITION][*TIMES], NAME one of {', '.join(kinds)}")
    kind = kinds[match["name"]]
    default = _TRAITS[kind].condition
    if match["condition"] and not default:
        raise ValueError(f"fault {kind.value!r} takes no condition: {text!r}")
    times = match["times"] or "1"
    return Fault(kind, match["condition"] or default), _ALWAYS if times == "always" else int(times)


class Faults:
    """The faults still to happen. Any thread may add and clear; the broker's loop takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[Stage, deque[tuple[Fault, int]]] = {stage: deque() for stage in Stage}

    def add(self, text: str) -> None:
        """Queue a fault. Raises ValueError for what is none."""
        fault, times = parse_fault(text)
        with self._lock:
            self._queues[_TRAITS[fault.kind].stage].append((fault, times))

    def clear(self) -> None:
        """Forget all faults."""
        with self._lock:
            for queue in self._queues.values():
                queue.clear()

    def pending(self) -> int:
        """How often faults are still to happen; one that always happens counts once."""
        with self._lock:
            return sum(max(times, 1) for queue in self._queues.values() for _fault, times in queue)

    def take(self, stage: Stage) -> Fault | None:
        """The fault of this stage, if there is one, consumed once."""
        with self._lock:
            queue = self._queues[stage]
            if not queue:
                return None
            fault, times = queue[0]
            if times == 1:
                queue.popleft()
            elif times != _ALWAYS:
                queue[0] = (fault, times - 1)
            return fault
