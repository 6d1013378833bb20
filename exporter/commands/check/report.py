"""The result of a probe: findings, each one sentence with its remedy, and the facts that are compared between probes.

`reach` tests whether an address accepts connections at all, below every protocol, so that a firewall isn't mistaken
for a faulty peer.
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
    """The severity of a finding. Only FAIL makes `check --probe` exit with 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True):
    """One line of `check --probe`. `topic` is what was probed; `sentence` is the result and, if not OK, the remedy."""

    verdict: FindingVerdict
    topic: str
    sentence: str


class ClockReading(Struct, frozen=True):
    """The seconds by which the clock of `peer` is ahead of this machine's, accurate to ± `error` seconds."""

    peer: str
    ahead: float
    error: float


class Report(Struct, frozen=True):
    """The result of one probe.

    `vm_id` is this VM's (probe of the metadata service) or that of the outbox's owner (probe of the outbox), else "".
    """

    findings: tuple[Finding, ...] = ()
    clocks: tuple[ClockReading, ...] = ()
    vm_id: str = ""


class Timeouts(Struct, frozen=True):
    """Limits in seconds: for a connection, for the response on it, and for all probes together."""

    connect: float = 3.0
    answer: float = 5.0
    total: float = 10.0


@dataclass(frozen=True, slots=True)
class ProbeEnvironment:
    """The parts of the process's environment that probes use and the settings don't contain.

    `wall` returns Unix seconds. `credential` creates an asyncio credential of Azure; None: that of azure-identity.
    """

    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    wall: Callable[[], float] = time.time
    credential: Callable[[], Any] | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def in_kubernetes(self) -> bool:
        """Whether this is a pod: Kubernetes sets the address of its API service in every pod."""
        return bool(self.environ.get("KUBERNETES_SERVICE_HOST"))


def ok(topic: str, sentence: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(FindingVerdict.OK, topic, sentence)


def warn(topic: str, sentence: str) -> Finding:
    """Return a finding that needs attention, but doesn't stop the agent."""
    return Finding(FindingVerdict.WARN, topic, sentence)


def fail(topic: str, sentence: str) -> Finding:
    """Return a finding that stops the agent or one of its outputs."""
    return Finding(FindingVerdict.FAIL, topic, sentence)


UNKNOWN_NAME: Final = "has a name that does not resolve"


def reach(host: str, port: int, seconds: float) -> str:
    """Connect and close, within `seconds` for each address of the name.

    Return the obstacle as a predicate that follows the address in a sentence; "" if the connection is accepted.
    """
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except (socket.gaierror, UnicodeError):
        return UNKNOWN_NAME
    except ConnectionRefusedError:
        return "refuses connections"
    except TimeoutError:
        return "does not respond"
    except ConnectionResetError:
        return ""  # a peer accepted the connection and closed it right away
    except OSError:
        return "is not reachable from this machine"
    return ""


def clock_of(peer: str, date: str, ours: float, took: float) -> tuple[ClockReading, ...]:
    """Return the reading from a response's Date header (whole seconds); empty if the header isn't a date.

    The response arrived at `ours`, in Unix seconds of this machine, `took` seconds after the request.
    """
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, OSError):
        return ()
    return (ClockReading(peer, theirs + 0.5 - (ours - took / 2), 0.5 + took / 2),)
