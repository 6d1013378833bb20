"""What a probe answers with: findings, each one sentence with what to do, and the facts that probes are compared by.

And whether an address can be reached at all: tried below every protocol, so that a firewall is not taken for a peer.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct


class FindingVerdict(StrEnum):
    """How bad a finding is. Only FAIL makes `check --probe` end with 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True):
    """One line of `check --probe`. `topic` is what was probed, `sentence` what was found and what to do about it."""

    verdict: FindingVerdict
    topic: str
    sentence: str


class ClockReading(Struct, frozen=True):
    """How far the clock of `peer` is ahead of ours, in seconds, give or take `error` seconds."""

    peer: str
    ahead: float
    error: float


class Report(Struct, frozen=True):
    """All that one probe found.

    `vm_id` is that of this VM where the metadata service was probed, that of the outbox's owner where the outbox was.
    """

    findings: tuple[Finding, ...] = ()
    clocks: tuple[ClockReading, ...] = ()
    vm_id: str = ""


class Timeouts(Struct, frozen=True):
    """Seconds for a connection, for an answer on it, and for all probes together."""

    connect: float = 3.0
    answer: float = 5.0
    total: float = 10.0


@dataclass(frozen=True, slots=True)
class ProbeEnvironment:
    """What lies outside of the settings.

    `wall` gives Unix seconds. `credential` makes an asyncio credential of Azure, None takes azure-identity's.
    """

    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    wall: Callable[[], float] = time.time
    credential: Callable[[], Any] | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def in_kubernetes(self) -> bool:
        """Whether this is a pod: Kubernetes gives every pod the address of its own service."""
        return bool(self.environ.get("KUBERNETES_SERVICE_HOST"))


def ok(topic: str, sentence: str) -> Finding:
    """A finding that all is well."""
    return Finding(FindingVerdict.OK, topic, sentence)


def warn(topic: str, sentence: str) -> Finding:
    """A finding that somebody should know of, with which the agent works."""
    return Finding(FindingVerdict.WARN, topic, sentence)


def fail(topic: str, sentence: str) -> Finding:
    """A finding with which the agent, or one of its outputs, does not work."""
    return Finding(FindingVerdict.FAIL, topic, sentence)


UNKNOWN_NAME: Final = "has a name that is not known"


def reach(host: str, port: int, seconds: float) -> str:
    """Connect and close, within `seconds` for each address of the name. What the address does instead of taking the
    connection, for a sentence that begins with it; "" if it takes it."""
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except (socket.gaierror, UnicodeError):
        return UNKNOWN_NAME
    except ConnectionRefusedError:
        return "refuses connections"
    except TimeoutError:
        return "does not answer"
    except ConnectionResetError:
        return ""  # somebody took the connection, and hung up before we could look at it
    except OSError:
        return "has no route from here"
    return ""


def clock_of(peer: str, date: str, ours: float, took: float) -> tuple[ClockReading, ...]:
    """The reading that an answer's Date header (whole seconds) gives; none where it is no date.

    The answer came at `ours`, in Unix seconds of this machine, `took` seconds after the request.
    """
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, OSError):
        return ()
    return (ClockReading(peer, theirs + 0.5 - (ours - took / 2), 0.5 + took / 2),)
