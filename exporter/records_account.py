"""The account: the whole story of an event that is over, as its closing record tells it."""

from __future__ import annotations

from typing import Any

from exporter.events import MINIMUM_NOTICE
from exporter.lifecycle import Tracked
from exporter.records import optional_timestamp, rounded, timestamp


def account(tracked: Tracked, unseen: tuple[str, ...] = (), *, watching: bool = True) -> dict[str, Any]:
    """The whole story of an event that is over. Times are RFC 3339, spans are seconds, null is "not known"."""
    event = tracked.event
    notice = None
    if tracked.first_not_before is not None and tracked.scheduled_seen:
        notice = (tracked.first_not_before - tracked.first_seen).total_seconds()
    felt = tracked.felt
    return {
        "first_seen": timestamp(tracked.first_seen),
        "seen_before": tracked.seen_before.value,
        "notice_seconds": rounded(notice),
        "documented_minimum_notice_seconds": MINIMUM_NOTICE.get(event.event_type or ""),
        "approved_by": tracked.started_by.value if tracked.started_by else None,
        "approved_at": optional_timestamp(tracked.approval.accepted_at),
        "rule": tracked.approval.rule or None,
        "approval_attempts": tracked.approval.attempts,
        "waited_seconds": rounded(tracked.waited_seconds),
        "started_at": optional_timestamp(tracked.started_at),
        "started_seconds": rounded(tracked.started_seconds),
        "gone_at": optional_timestamp(tracked.closed_at),
        "outcome": tracked.outcome.value if tracked.outcome else None,
        "unseen": list(unseen),
        "updates": tracked.updates,
        "updates_while_started": tracked.updates_while_started,
        "gaps": tracked.gaps,
        "gap_seconds": rounded(tracked.gap_seconds),
        "announced_duration_seconds": event.duration,
        "interruptions_observed": felt.count if watching else None,
        "interruption_seconds": rounded(felt.total) if felt.count else None,
        "interruption_longest_seconds": rounded(felt.longest) if felt.count else None,
    }
