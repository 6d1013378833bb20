"""What a probe answers with: findings, each one sentence with what to do, and the facts that probes are compared by."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec import Struct


class Verdict(StrEnum):
    """How bad a finding is. Only FAIL makes `check --probe` end with 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True):
    """One line of `check --probe`. `topic` is what was probed, `sentence` what was found and what to do about it."""

    verdict: Verdict
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
    return Finding(Verdict.OK, topic, sentence)


def warn(topic: str, sentence: str) -> Finding:
    """A finding that somebody should know of, with which the agent works."""
    return Finding(Verdict.WARN, topic, sentence)


def fail(topic: str, sentence: str) -> Finding:
    """A finding with which the agent, or one of its outputs, does not work."""
    return Finding(Verdict.FAIL, topic, sentence)
