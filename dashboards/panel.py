"""Texts, colours, and columns that the panels of both boards share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from dashboards.queries import FAR, NONE, SCHEDULED, STALE, STARTED, WARMING

GOOD, SOON, BAD, UNKNOWN, NEUTRAL = "green", "orange", "red", "purple", "blue"
"""One colour, one meaning, in every panel: purple is "unknown", never "nothing scheduled"."""

Steps = Sequence[tuple[float | None, str]]
"""Thresholds: the value from which a colour applies. The first has no bound."""

PURPLE: Final = ((None, UNKNOWN),)
CAREFUL: Final = ((None, UNKNOWN), (0, GOOD), (1, SOON))
ALARMING: Final = ((None, UNKNOWN), (0, GOOD), (1, BAD))
COUNTDOWN_STEPS: Final = ((None, UNKNOWN), (0, BAD), (600, SOON), (86400, "yellow"))
COUNTDOWN_CELLS: Final = ((None, "text"), *COUNTDOWN_STEPS[1:])
"""The same for a cell, which may be empty."""

NO_DATA: Final = "Unknown: no data"
"""Text of a panel without any series."""
NONE_CURRENT: Final = "Unknown: no exporter has current data"
NO_RULES: Final = "Unknown: no exporter, or alerts/rules.yml is not loaded"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the field as the query names it, the heading, and how its values are shown."""

    field: str
    heading: str
    unit: str = ""
    mappings: Sequence[model.ValueMapping] = ()
    steps: Steps = ()
    cell: str = "auto"
    link: str = ""
    link_title: str = "Show this VM"
    width: int = 0
    hidden: bool = False
    """Only links use it."""
    blank: str = "–"
    """Text of a cell without a value; by default Grafana shows the no-value text of the panel there."""


# -- texts instead of values


def words_for(meanings: Mapping[int, tuple[str, str]] | Mapping[str, tuple[str, str]]) -> model.ValueMap:
    """Map numbers, or label values, to texts with a colour."""
    return model.ValueMap(
        options={
            str(number): model.ValueMappingResult(text=text, color=colour, index=index)
            for index, (number, (text, colour)) in enumerate(meanings.items())
        }
    )


def word_for_range(low: float, high: float, text: str, colour: str) -> model.RangeMap:
    """Map every number from `low` to `high` to a text."""
    result = model.ValueMappingResult(text=text, color=colour, index=50)
    return model.RangeMap(options=model.DashboardRangeMapOptions(from_val=low, to=high, result=result))


def word_for_nothing(text: str) -> model.SpecialValueMap:
    """Map an empty or missing label to a text."""
    result = model.ValueMappingResult(text=text, index=60)
    options = model.DashboardSpecialValueMapOptions(match=model.SpecialValueMatch.NULL_AND_NAN, result=result)
    return model.SpecialValueMap(options=options)


STATE_WORDS: Final = words_for(
    {
        NONE: ("Nothing scheduled", GOOD),
        SCHEDULED: ("Scheduled", SOON),
        STARTED: ("Started", BAD),
        WARMING: ("Not known yet", NEUTRAL),
        STALE + NONE: ("Unknown", UNKNOWN),
        STALE + SCHEDULED: ("Unknown; last: scheduled", UNKNOWN),
        STALE + STARTED: ("Unknown; last: started", UNKNOWN),
    }
)
_DUE: Final = word_for_range(-FAR / 10, 0, "At any moment", BAD)
COUNTDOWN_WORDS: Final = (
    words_for({FAR: ("Nothing scheduled", GOOD), 2 * FAR: ("None seen, some unknown", UNKNOWN)}),
    _DUE,
)
VM_COUNTDOWN_WORDS: Final = (
    words_for({FAR: ("–", GOOD), -FAR: ("–", UNKNOWN), -2 * FAR: ("–", NEUTRAL), -3 * FAR: ("–", BAD)}),
    _DUE,
)
"""The panel next to it shows the state in words."""
EVENT_WORDS: Final = words_for(
    {
        "nothing scheduled": ("nothing scheduled", GOOD),
        "none seen, some VMs unknown": ("none seen, some VMs unknown", UNKNOWN),
        "not known yet": ("not known yet", NEUTRAL),
        "unknown": ("unknown", UNKNOWN),
    }
)
STATUS_WORDS: Final = words_for({"Scheduled": ("Scheduled", SOON), "Started": ("Started", BAD)})
DATA_STATES: Final = words_for(
    {0: ("current", GOOD), 1: ("not known yet", NEUTRAL), 2: ("stale", UNKNOWN), 3: ("down", BAD)}
)
DECISION_WORDS: Final = words_for({"approved": ("approved", GOOD)})
STARTED_BY_WORDS: Final = words_for(
    {
        "this_vm": ("this VM", "text"),
        "other": ("another approver", SOON),
        "not_before": ("NotBefore passed", "text"),
        "unknown": ("unknown", UNKNOWN),
    }
)
OUTCOME_WORDS: Final = words_for(
    {
        "completed": ("completed", GOOD),
        "canceled": ("canceled", "text"),
        "ended": ("not seen", UNKNOWN),
        "open": ("open", SOON),
    }
)
MODE_WORDS: Final = words_for({"enforce": ("enforce", NEUTRAL)})
SEVERITY_WORDS: Final = words_for({"critical": ("critical", BAD), "warning": ("warning", SOON)})
ALERT_WORDS: Final = words_for({"none": ("none firing or pending", GOOD)})
SEEN_WORDS: Final = words_for({"none: all data is current": ("none", GOOD)})
