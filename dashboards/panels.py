"""Panels with everything that a panel of ours must have: title, description, unit, thresholds and a no-value text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common as words
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.queries import BLIND, CALM, FAR, SCHEDULED, STARTED, WARMING

SOURCE: Final = words.DataSourceRef(type_val="prometheus", uid="${datasource}")
GOOD, SOON, BAD, UNKNOWN, NEUTRAL = "green", "orange", "red", "purple", "blue"
"""One colour, one meaning, in every panel: purple is "nobody knows", and never calm."""

Steps = Sequence[tuple[float | None, str]]


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel. `legend` names the series, or the column of a table."""

    expr: str
    legend: str = "__auto"
    interval: str = ""


@dataclass(frozen=True, slots=True)
class About:
    """What every panel says about itself. `steps` are the thresholds, the first without a bound."""

    title: str
    description: str
    no_value: str
    unit: str = "short"
    steps: Steps = ((None, GOOD),)
    mappings: Sequence[model.ValueMapping] = ()
    decimals: float | None = None


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
COUNTDOWN_STEPS: Final = ((None, UNKNOWN), (0, BAD), (600, SOON), (86400, "yellow"))
COUNTDOWN_CELLS: Final = ((None, "text"), *COUNTDOWN_STEPS[1:])
"""The same for a cell, which may well be empty."""

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


AnyPanel = stat.Panel | table.Panel | timeseries.Panel | statetimeline.Panel | bargauge.Panel
Line = list[tuple[int, AnyPanel]]
"""Panels side by side, each with its width."""

P = TypeVar("P", stat.Panel, table.Panel, timeseries.Panel, statetimeline.Panel, bargauge.Panel)


def _dress(panel: P, about: About) -> P:
    panel = panel.title(about.title).description(about.description).datasource(SOURCE).no_value(about.no_value)
    panel = panel.unit(about.unit).thresholds(_thresholds(about.steps)).mappings(list(about.mappings))
    return panel if about.decimals is None else panel.decimals(about.decimals)


def _ask(panel: P, queries: Sequence[Query], *, instant: bool, as_table: bool = False) -> P:
    for number, query in enumerate(queries):
        panel = panel.with_target(target(query, chr(ord("A") + number), instant=instant, as_table=as_table))
    return panel


def target(query: Query, ref: str, *, instant: bool, as_table: bool = False) -> prometheus.Dataquery:
    """A query as Grafana's Prometheus data source wants it."""
    built = prometheus.Dataquery().datasource(SOURCE).ref_id(ref).expr(query.expr).legend_format(query.legend)
    built = built.instant() if instant else built.range()
    if query.interval:
        built = built.interval(query.interval)
    return built.format(PromQueryFormat.TABLE if as_table else PromQueryFormat.TIME_SERIES)


def figure(about: About, *queries: Query, solid: bool = True) -> stat.Panel:
    """One big number or word per query, for now."""
    panel = _ask(_dress(stat.Panel(), about), queries, instant=True)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel = panel.graph_mode(words.BigValueGraphMode.NONE).justify_mode(words.BigValueJustifyMode.CENTER)
    mode = words.BigValueColorMode.BACKGROUND_SOLID if solid else words.BigValueColorMode.VALUE
    return panel.color_mode(mode).color_scheme(_by_thresholds()).text_mode(words.BigValueTextMode.AUTO)


def bars(about: About, *queries: Query) -> bargauge.Panel:
    """One bar per query or series, for now or for the whole range."""
    panel = _ask(_dress(bargauge.Panel(), about), queries, instant=True)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)).min(0)
    panel = panel.orientation(words.VizOrientation.HORIZONTAL).display_mode(words.BarGaugeDisplayMode.BASIC)
    panel = panel.name_placement(words.BarGaugeNamePlacement.TOP)
    return panel.color_scheme(_by_thresholds()).value_mode(words.BarGaugeValueMode.COLOR)


def curves(
    about: About, *queries: Query, stacked: bool = False, as_bars: bool = False, points: bool = False
) -> timeseries.Panel:
    """Series over time."""
    panel = _ask(_dress(timeseries.Panel(), about), queries, instant=False)
    panel = panel.color_scheme(build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC)).min(0)
    panel = panel.fill_opacity(80 if as_bars else 30 if stacked else 10).line_width(0 if as_bars else 2)
    panel = panel.draw_style(words.GraphDrawStyle.BARS if as_bars else words.GraphDrawStyle.LINE)
    panel = panel.show_points(words.VisibilityMode.ALWAYS if points else words.VisibilityMode.AUTO)
    if about.decimals == 0:
        panel = panel.axis_soft_max(5)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(words.StackingMode.NORMAL).group("A"))
    legend = common.VizLegendOptions().show_legend(True).display_mode(words.LegendDisplayMode.LIST)
    tooltip = common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI).sort(words.SortOrder.DESCENDING)
    return panel.legend(legend.placement(words.LegendPlacement.BOTTOM).calcs([])).tooltip(tooltip)


def lanes(about: About, *queries: Query) -> statetimeline.Panel:
    """States over time, one lane per series."""
    panel = _ask(_dress(statetimeline.Panel(), about), queries, instant=False)
    legend = common.VizLegendOptions().show_legend(False).display_mode(words.LegendDisplayMode.LIST)
    panel = panel.legend(legend.placement(words.LegendPlacement.BOTTOM).calcs([]))
    panel = panel.show_value(words.VisibilityMode.AUTO).merge_values(True).row_height(0.8).fill_opacity(80)
    return panel.color_scheme(_by_thresholds()).line_width(0)


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
    width: int = 0
    blank: str = "–"
    """What a cell without a value shows; Grafana would put the no-value text of the whole panel into it."""

    def properties(self) -> list[model.DynamicConfigValue]:
        """The overrides that dress this column."""
        dressed: dict[str, Any] = {}
        if self.unit:
            dressed["unit"] = self.unit
        if self.mappings:
            dressed["mappings"] = list(self.mappings)
        if self.steps or self.cell == "color-text":
            dressed["thresholds"] = _thresholds(self.steps or ((None, "text"),)).build()
        if self.cell != "auto":
            dressed["custom.cellOptions"] = {"type": self.cell}
        if self.link:
            dressed["links"] = [{"title": "Show this VM", "url": self.link}]
        if self.width:
            dressed["custom.width"] = self.width
        dressed["noValue"] = self.blank
        return [model.DynamicConfigValue(id_val=name, value=value) for name, value in dressed.items()]


def rows(about: About, columns: Sequence[Column], *queries: Query) -> table.Panel:
    """A table: rows of the queries merged over their common labels, with these columns and no others, in this order."""
    panel = _ask(_dress(table.Panel(), about), queries, instant=True, as_table=True)
    panel = panel.cell_height(words.TableCellHeight.SM).color_scheme(_by_thresholds())
    panel = panel.align(words.FieldTextAlignment.LEFT)
    if len(queries) > 1:
        panel = panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    keep = {"include": {"names": [column.field for column in columns]}}
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="filterFieldsByName", options=keep))
    order = {
        "indexByName": {column.field: place for place, column in enumerate(columns)},
        "renameByName": {column.field: column.heading for column in columns},
        "excludeByName": {},
    }
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=order))
    for column in columns:
        panel = panel.override_by_name(column.heading, column.properties())
    return panel


def coloured(panel: P, **colours: str) -> P:
    """The same panel with a fixed colour for the series whose name begins so (underscores stand for blanks)."""
    for name, colour in colours.items():
        fixed = model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})
        panel = panel.override_by_regexp(f"/^{name.replace('_', ' ')}/", [fixed])
    return panel


def _by_thresholds() -> build.FieldColor:
    return build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)


def _thresholds(steps: Steps) -> build.ThresholdsConfig:
    marks = [model.Threshold(value=value, color=colour) for value, colour in steps]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(marks)
