"""Phrases for the account of an event that is over (`core.record_factory.account`), for page and timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from exporter.core.interruption import THRESHOLD_SECONDS
from exporter.core.state import StartedBy
from exporter.text.format import span

UNKNOWN: Final = "not known"
SHORTEST_INTERRUPTION: Final = f"≥\u00a0{THRESHOLD_SECONDS:g}\u00a0s"
"""The shortest interruption that the observer reports."""


def announced_duration(seconds: int | None) -> str:
    """The length of an interruption that Azure announces (`DurationInSeconds`, where -1 is "not known")."""
    if seconds is None or seconds < 0:
        return "Azure does not say"
    return f"{'none' if seconds == 0 else span(seconds)}, says Azure"


def started_by(starter: str | None, rule: str = "") -> str:
    """Who let an event start (a word of `StartedBy`), with the rule if this agent approved it."""
    match starter:
        case StartedBy.US:
            return f"us (rule {rule})" if rule else "us"
        case StartedBy.NOT_US:
            return "somebody else, before NotBefore"
        case StartedBy.TIME:
            return "nobody: its time had come"
        case _:
            return UNKNOWN


def approved_by(account: Mapping[str, Any]) -> str:
    """Who approved an event that is over."""
    if account["started_at"] is None and account["approved_at"] is None:
        return "nobody, as far as seen"
    if account["started_at"] is None or account["approved_by"] == StartedBy.US:
        return started_by(StartedBy.US, account["rule"] or "")
    return started_by(account["approved_by"])


def observed_interruption(account: Mapping[str, Any]) -> str:
    """How long this VM was interrupted, as observed. Never 0: what is too short is not observed."""
    count, total = account["interruptions_observed"], account["interruption_seconds"]
    if count is None:
        return "not watched"
    if not count or total is None:
        words = f"none observed ({SHORTEST_INTERRUPTION})"
    elif count == 1:
        words = span(total)
    else:
        words = f"{span(total)} in {count} pieces, the longest {span(account['interruption_longest_seconds'])}"
    if account["gaps"]:
        gap = account["gap_seconds"]
        words += "; not watched for " + ("a time that is not known" if gap is None else span(gap))
    return words
