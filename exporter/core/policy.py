"""Types of the policy and of decisions: modes, rules, reasons, and the context and result of a decision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field

from exporter.core.document import Event
from exporter.core.hours import Hours
from exporter.core.lifecycle import EVENT_MEMORY_BYTES
from exporter.core.records import VmIdentity
from exporter.core.scope import EventNow
from exporter.core.state import EMPTY, Instant


class Mode(StrEnum):
    """Whether decisions are made (not in `off`) and approvals sent (only in `enforce`)."""

    OFF = "off"
    DRY_RUN = "dry-run"
    ENFORCE = "enforce"


class Coordination(StrEnum):
    """Which of the VMs in `Resources` may approve: the first name, any, or only a VM that is the single name."""

    LEADER = "leader"
    ANY = "any"
    SINGLE = "single"


class Presence(StrEnum):
    """Whether a file exists at a path. Only a clear "no such file" is ABSENT, only a regular file is PRESENT.

    UNTRUSTED: an account that is no administrator may decide what is there. It holds like UNKNOWN.
    """

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"
    UNTRUSTED = "untrusted"


class Verdict(StrEnum):
    """The result of a decision."""

    APPROVE = "approve"
    HOLD = "hold"


class Reason(StrEnum):
    """Why an event is held, in the order in which the reasons are tried."""

    OFF = "off"
    NOT_SCHEDULED = "not-scheduled"
    IDENTITY_UNKNOWN = "identity-unknown"
    IDENTITY_CONFLICT = "identity-conflict"
    NOT_THIS_VM = "not-this-vm"
    MALFORMED = "malformed"
    UNKNOWN_TYPE = "unknown-type"
    ALREADY_APPROVED = "already-approved"
    SOURCE_RESET = "source-reset"
    NO_RULE = "no-rule"
    SEVERAL_RESOURCES = "several-resources"
    NOT_LEADER = "not-leader"
    SETTLING = "settling"
    NOT_PREPARED = "not-prepared"
    NOT_QUIET = "not-quiet"
    TOO_MANY_RESOURCES = "too-many-resources"
    OUT_OF_HOURS = "out-of-hours"
    HELD = "held"
    OUTBOX_UNWRITABLE = "outbox-unwritable"
    DRY_RUN = "dry-run"
    NONE = ""
    """No reason applies: the event is approved."""


OF_CONTENT: Final = frozenset(
    {
        Reason.NOT_THIS_VM,
        Reason.MALFORMED,
        Reason.UNKNOWN_TYPE,
        Reason.NO_RULE,
        Reason.SEVERAL_RESOURCES,
        Reason.NOT_LEADER,
        Reason.TOO_MANY_RESOURCES,
    }
)
"""Reasons that depend only on the event's content: an approved event that changes into one of these is outdated."""
NOT_PUBLISHED: Final = frozenset({Reason.NOT_SCHEDULED, Reason.ALREADY_APPROVED})
"""Reasons that the event's own records already show."""


class Rule(Struct, frozen=True):
    """The conditions for approving an event, as in the settings file: `[approval] rules`.

    Values match exactly and keep their order; durations are seconds; None sets no condition. `settle` is for how many
    seconds the event must be unchanged. `require_file` is the path of a file that must exist. `when_quiet` requires
    that no other event is Started. `max_resources` is the maximum number of names in `Resources`, and `hours` are when
    the event may be approved.
    """

    name: str
    event_type: tuple[str, ...]
    event_source: tuple[str, ...] | None = None
    min_duration: int | None = None
    max_duration: int | None = None
    settle: float | None = None
    require_file: str = ""
    when_quiet: bool = False
    max_resources: int | None = None
    hours: Hours | None = None

    @property
    def asks_duration(self) -> bool:
        """Whether the rule limits `DurationInSeconds`."""
        return self.min_duration is not None or self.max_duration is not None

    def unreadable(self, event: Event) -> str:
        """Return Azure's name of the field that this rule needs and that can't be read; empty if there is none."""
        if self.event_source is not None and event.source is None:
            return "EventSource"
        return "DurationInSeconds" if self.asks_duration and event.duration is None else ""

    def differs(self, event: Event) -> str:
        """Return Azure's name of the first field that doesn't match; empty if the rule matches."""
        if event.event_type not in self.event_type:
            return "EventType"
        if self.event_source is not None and event.source not in self.event_source:
            return "EventSource"
        duration, high = event.announced_seconds, self.max_duration  # an unknown duration meets no bound
        known = duration is not None and (self.min_duration or 0) <= duration and (high is None or duration <= high)
        return "DurationInSeconds" if self.asks_duration and not known else ""


DEFAULT_RULES: Final = (
    Rule("user-initiated", ("Reboot", "Redeploy"), ("User",)),
    Rule("short-freeze", ("Freeze",), min_duration=0, max_duration=8),
)


class Policy(Struct, frozen=True):
    """What may be approved. `takeover_after` is in seconds, None for never; `hold_file` is empty for none."""

    mode: Mode = Mode.DRY_RUN
    coordination: Coordination = Coordination.LEADER
    takeover_after: float | None = None
    hold_file: str = ""
    rules: tuple[Rule, ...] = DEFAULT_RULES


class Context(Struct, frozen=True):
    """Inputs of a run besides state, observation, and policy, as the shell read them just before."""

    now: Instant
    process_start: Instant
    identity: VmIdentity = VmIdentity()
    files: Mapping[str, Presence] = EMPTY
    """Presence of each file that the policy names (`decision.files_to_check`)."""
    writable: bool = True
    """Whether the outbox accepts writes, so that decisions can be recorded."""
    pending: frozenset[str] = frozenset()
    """Keys of the events whose POST is in flight or queued."""
    sends: bool = True
    """Whether due approvals are returned to be sent. False in `replay`, which reads sent ones from the recording."""
    watching: bool = True
    """Whether interruptions are observed. False if only documents are replayed."""
    poll_interval: float = 1.0
    """Seconds."""
    all_events: bool = False
    """Whether records are also published for events of other VMs (`records.scope`)."""
    event_memory_bytes: int = EVENT_MEMORY_BYTES
    """Maximum size of the memory of ended events (`core.memory`)."""
    version: str = ""
    random_key: str = ""
    """VM key of record ids if neither the id nor the name of the VM is known."""


class Decision(Struct, frozen=True):
    """The decision on one event: verdict, reason, name of the rule that matched, and the fields that were used.

    `key` is the event's. `finding` is a clause with what was found for the reason; empty if the reason is enough.
    `fields` are JSON values under Azure's names, `vm_name`, and the rule's `hours` if it has some. `approved_now` are
    the keys of events that are approved on the same document but not marked in the state yet. `event` is the
    document's, the only basis of the decision; `now` is the event as last known.
    """

    key: str
    event: Event
    now: EventNow
    verdict: Verdict
    reason: Reason
    rule: str = ""
    finding: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    approved_now: frozenset[str] = frozenset()

    @property
    def published_values(self) -> tuple[str, str, str]:
        """Verdict, reason, and rule: a decision is published if one of them changes."""
        return (self.verdict.value, self.reason.value, self.rule)


_REASON_TEXTS: Final[Mapping[Reason, str]] = {
    Reason.OFF: "approvals are off",
    Reason.NOT_SCHEDULED: "it is no longer Scheduled",
    Reason.IDENTITY_UNKNOWN: "this VM's name is unknown, or not yet confirmed by the metadata service",
    Reason.IDENTITY_CONFLICT: "the configured VM name differs from the one that the metadata service returns",
    Reason.NOT_THIS_VM: "its resources do not include this VM",
    Reason.MALFORMED: "a field that the decision needs cannot be read",
    Reason.UNKNOWN_TYPE: "this version does not know its type",
    Reason.ALREADY_APPROVED: "Azure already accepted this VM's approval",
    Reason.SOURCE_RESET: "DocumentIncarnation went down recently",
    Reason.NO_RULE: "no rule matches",
    Reason.SEVERAL_RESOURCES: "it affects other VMs too",
    Reason.NOT_LEADER: "another VM of its resources is the leader",
    Reason.SETTLING: "it has not settled yet",
    Reason.NOT_PREPARED: "the ready file does not exist or cannot be verified",
    Reason.NOT_QUIET: "another event has started, or was approved and has not ended",
    Reason.TOO_MANY_RESOURCES: "it affects more VMs than the rule allows",
    Reason.OUT_OF_HOURS: "it is outside the rule's hours",
    Reason.HELD: "the hold file exists or its absence cannot be verified",
    Reason.OUTBOX_UNWRITABLE: "the decision could not be recorded",
    Reason.DRY_RUN: "it would be approved, but the mode is dry-run",
    Reason.NONE: "a rule matches",
}


def reason_text(decision: Decision) -> str:
    """Return the reason of a decision as a clause, with the finding."""
    rule = f" (rule {decision.rule})" if decision.rule else ""
    return f"{_REASON_TEXTS[decision.reason]}{rule}{f': {decision.finding}' if decision.finding else ''}"


def decision_summary(decision: Decision, mode: Mode) -> dict[str, str | None]:
    """Return the current decision as JSON values, for page, status, and event files."""
    return {
        "decision": decision.verdict.value,
        "reason": decision.reason.value or None,
        "rule": decision.rule or None,
        "finding": decision.finding or None,
        "mode": mode.value,
        "why": reason_text(decision),
    }


_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


def prepared_path(rule: Rule, event: Event) -> str | None:
    """Return the path of `require_file` for this event; None if there is none or the id is unsafe in a path."""
    if not rule.require_file:
        return None
    if "{event_id}" not in rule.require_file:
        return rule.require_file
    if not _PLAIN_ID.fullmatch(event.event_id):
        return None
    return rule.require_file.replace("{event_id}", event.event_id)
