"""Words, colours and columns that panels have in common, whichever board shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from dashboards.queries import BLIND, CALM, FAR, SCHEDULED, STARTED, WARMING

GOOD, SOON, BAD, UNKNOWN, NEUTRAL = "green", "orange", "red", "purple", "blue"
"""One colour, one meaning, in every panel: purple is "nobody knows", and never calm."""

Steps = Sequence[tuple[float | None, str]]
"""Thresholds: from which value on a colour holds. The first has no bound."""

PURPLE: Final = ((None, UNKNOWN),)
CAREFUL: Final = ((None, UNKNOWN), (0, GOOD), (1, SOON))
ALARMING: Final = ((None, UNKNOWN), (0, GOOD), (1, BAD))
COUNTDOWN_STEPS: Final = ((None, UNKNOWN), (0, BAD), (600, SOON), (86400, "yellow"))
COUNTDOWN_CELLS: Final = ((None, "text"), *COUNTDOWN_STEPS[1:])
"""The same for a cell, which may well be empty."""

NO_DATA: Final = "Not known: no data"
"""What a panel says whose series are gone altogether."""
NOBODY: Final = "Not known: no exporter sees"
NO_RULES: Final = "Not known: no exporter, or alerts/rules.yml is not loaded"


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
    blank: str = "–"
    """What a cell without a value shows; Grafana would put the no-value text of the whole panel into it."""


# -- words in place of values


def words_for(meanings: Mapping[int, tuple[str, str]] | Mapping[str, tuple[str, str]]) -> model.ValueMap:
    """Numbers that stand for a word, or words for a clearer one, each with its colour."""
    return model.ValueMap(
        options={
            str(number): model.ValueMappingResult(text=text, color=colour, index=index)
            for index, (number, (text, colour)) in enumerate(meanings.items())
        }
    )


def word_for_range(low: float, high: float, text: str, colour: str) -> model.RangeMap:
    """A word in place of every number from `low` to `high`."""
    result = model.ValueMappingResult(text=text, color=colour, index=50)
    return model.RangeMap(options=model.DashboardRangeMapOptions(from_val=low, to=high, result=result))


def word_for_nothing(text: str) -> model.SpecialValueMap:
    """A word in place of an empty or missing label."""
    result = model.ValueMappingResult(text=text, index=60)
    options = model.DashboardSpecialValueMapOptions(match=model.SpecialValueMatch.NULL_AND_NAN, result=result)
    return model.SpecialValueMap(options=options)


STATE_WORDS: Final = words_for(
    {
        CALM: ("Nothing scheduled", GOOD),
        SCHEDULED: ("Scheduled", SOON),
        STARTED: ("Under way", BAD),
        WARMING: ("Not known yet", NEUTRAL),
        BLIND + CALM: ("Not known", UNKNOWN),
        BLIND + SCHEDULED: ("Not known; last: scheduled", UNKNOWN),
        BLIND + STARTED: ("Not known; last: under way", UNKNOWN),
    }
)
COUNTDOWN_WORDS: Final = (
    words_for(
        {
            FAR: ("Nothing scheduled", GOOD),
            2 * FAR: ("Nothing seen, some not known", UNKNOWN),
            -FAR: ("Not known", UNKNOWN),
            -2 * FAR: ("Not known yet", NEUTRAL),
            -3 * FAR: ("Under way", BAD),
        }
    ),
    word_for_range(-FAR / 10, 0, "At any moment", BAD),
)
EVENT_WORDS: Final = words_for(
    {
        "nothing scheduled": ("nothing scheduled", GOOD),
        "nothing seen, some VMs not known": ("nothing seen, some VMs not known", UNKNOWN),
        "not known yet": ("not known yet", NEUTRAL),
        "not known": ("not known", UNKNOWN),
    }
)
STATUS_WORDS: Final = words_for({"Scheduled": ("Scheduled", SOON), "Started": ("Under way", BAD)})
SIGHT_WORDS: Final = words_for(
    {0: ("sees", GOOD), 1: ("not known yet", NEUTRAL), 2: ("blind", UNKNOWN), 3: ("down", BAD)}
)
MODE_WORDS: Final = words_for({"enforce": ("enforce", NEUTRAL)})
SEVERITY_WORDS: Final = words_for({"critical": ("critical", BAD), "warning": ("warning", SOON)})
ALERT_WORDS: Final = words_for({"none": ("none fires, none is pending", GOOD)})
SEEN_WORDS: Final = words_for({"every VM is seen": ("every VM is seen", GOOD)})
