"""What a probe has to say: findings, each one sentence with what to do, and the few facts that others draw from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Verdict(StrEnum):
    """How bad it is. Only FAIL makes `check --probe` end with 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor. `topic` is the thing that was tried."""

    verdict: Verdict
    topic: str
    sentence: str


@dataclass(frozen=True, slots=True)
class ClockReading:
    """How far `peer`'s clock is ahead of ours, in seconds, give or take `error`."""

    peer: str
    ahead: float
    error: float


@dataclass(frozen=True, slots=True)
class Report:
    """All that one probe found. `vm_id`: of this VM as Azure says it, or of the VM that an outbox belongs to."""

    findings: tuple[Finding, ...] = ()
    clocks: tuple[ClockReading, ...] = ()
    vm_id: str = ""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: for a connection, for an answer on it, and for all of `--probe`."""

    connect: float = 3.0
    answer: float = 5.0
    total: float = 10.0


@dataclass(frozen=True, slots=True)
class World:
    """What lies outside of the settings. `credential` makes an asyncio credential of Azure (None: azure-identity's)."""

    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    wall: Callable[[], float] = time.time
    credential: Callable[[], Any] | None = None
    patience: Patience = Patience()
    chassis: Path = Path("/sys/class/dmi/id/chassis_asset_tag")
    processes: Path = Path("/proc")
    mounts: Path = Path("/proc/self/mountinfo")

    @property
    def in_kubernetes(self) -> bool:
        """Kubernetes tells every pod where its own service is."""
        return bool(self.environ.get("KUBERNETES_SERVICE_HOST"))


def ok(topic: str, sentence: str) -> Finding:
    return Finding(Verdict.OK, topic, sentence)


def warn(topic: str, sentence: str) -> Finding:
    return Finding(Verdict.WARN, topic, sentence)


def fail(topic: str, sentence: str) -> Finding:
    return Finding(Verdict.FAIL, topic, sentence)
