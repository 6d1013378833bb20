"""Panels and boards by the builders of Grafana's SDK: each function sets what all of its kind have with us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Required, TypedDict, TypeVar, Unpack

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import table as rows
from grafana_foundation_sdk.models import common as words
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.panel import GOOD, Column, Steps
from dashboards.queries import CARRIED, CHOICES

SOURCE: Final = words.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG: Final = "azure-scheduled-events"
WIDTH: Final = 24

AnyPanel = stat.Panel | rows.Panel | timeseries.Panel | statetimeline.Panel | bargauge.Panel
P = TypeVar("P", stat.Panel, rows.Panel, timeseries.Panel, statetimeline.Panel, bargauge.Panel)


# -- a panel


class Told(TypedDict, total=False):
    """What every kind of panel is told: `no_value` is its text for no data, `mappings` are words in place of values,
    and `interval` is the least time between two points of a curve, as Grafana writes it (`1h`)."""

    title: Required[str]
    description: Required[str]
    queries: Required[Sequence[prometheus.Dataquery]]
    no_value: Required[str]
    unit: str
    steps: Steps
    mappings: Sequence[model.ValueMapping]
    decimals: float
    interval: str


def query(expr: str, legend: str = "__auto") -> prometheus.Dataquery:
    """One query of a panel. `legend` names the series, or the column of a table."""
    return prometheus.Dataquery().datasource(SOURCE).expr(expr).legend_format(legend)


def figure(*, solid: bool = True, **told: Unpack[Told]) -> stat.Panel:
    """One big number or word per query, for now. `solid` colours the background instead of the value."""
    drawn = _common(stat.Panel(), told, instant=True)
    drawn = drawn.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    drawn = drawn.graph_mode(words.BigValueGraphMode.NONE).justify_mode(words.BigValueJustifyMode.CENTER)
    mode = words.BigValueColorMode.BACKGROUND_SOLID if solid else words.BigValueColorMode.VALUE
    return drawn.color_mode(mode).color_scheme(_by_thresholds()).text_mode(words.BigValueTextMode.AUTO)


def bars(**told: Unpack[Told]) -> bargauge.Panel:
    """One bar per query or series, for now or for the whole range."""
    drawn = _common(bargauge.Panel(), told, instant=True)
    drawn = drawn.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)).min(0)
    drawn = drawn.orientation(words.VizOrientation.HORIZONTAL).display_mode(words.BarGaugeDisplayMode.BASIC)
    drawn = drawn.name_placement(words.BarGaugeNamePlacement.TOP)
    return drawn.color_scheme(_by_thresholds()).value_mode(words.BarGaugeValueMode.COLOR)


def curves(
    *, stacked: bool = False, points: bool = False, colours: Mapping[str, str] | None = None, **told: Unpack[Told]
) -> timeseries.Panel:
    """Series over time. `colours` are by the beginning of a series' name."""
    drawn = _common(timeseries.Panel(), told, instant=False)
    drawn = drawn.color_scheme(build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC)).min(0)
    drawn = drawn.fill_opacity(30 if stacked else 10).line_width(2)
    drawn = drawn.draw_style(words.GraphDrawStyle.LINE)
    drawn = drawn.show_points(words.VisibilityMode.ALWAYS if points else words.VisibilityMode.AUTO)
    if told.get("decimals") == 0:
        drawn = drawn.axis_soft_max(5)
    if stacked:
        drawn = drawn.stacking(common.StackingConfig().mode(words.StackingMode.NORMAL).group("A"))
    legend = common.VizLegendOptions().show_legend(True).display_mode(words.LegendDisplayMode.LIST)
    tooltip = common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI).sort(words.SortOrder.DESCENDING)
    drawn = drawn.legend(legend.placement(words.LegendPlacement.BOTTOM).calcs([])).tooltip(tooltip)
    for name, colour in (colours or {}).items():
        fixed = model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})
        drawn = drawn.override_by_regexp(f"/^{name}/", [fixed])
    return drawn


def lanes(**told: Unpack[Told]) -> statetimeline.Panel:
    """States over time, one lane per series."""
    drawn = _common(statetimeline.Panel(), told, instant=False)
    legend = common.VizLegendOptions().show_legend(False).display_mode(words.LegendDisplayMode.LIST)
    drawn = drawn.legend(legend.placement(words.LegendPlacement.BOTTOM).calcs([]))
    drawn = drawn.show_value(words.VisibilityMode.AUTO).merge_values(True).row_height(0.8).fill_opacity(80)
    return drawn.color_scheme(_by_thresholds()).line_width(0)


def table(*, columns: Sequence[Column], **told: Unpack[Told]) -> rows.Panel:
    """Rows of the queries merged over their common labels, with these columns and no others, in this order."""
    drawn = _common(rows.Panel(), told, instant=True, as_table=True)
    drawn = drawn.cell_height(words.TableCellHeight.SM).color_scheme(_by_thresholds())
    drawn = drawn.align(words.FieldTextAlignment.LEFT)
    if len(told["queries"]) > 1:
        drawn = drawn.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    keep = {"include": {"names": [column.field for column in columns]}}
    drawn = drawn.with_transformation(model.DataTransformerConfig(id_val="filterFieldsByName", options=keep))
    order = {
        "indexByName": {column.field: place for place, column in enumerate(columns)},
        "renameByName": {column.field: column.heading for column in columns},
        "excludeByName": {},
    }
    drawn = drawn.with_transformation(model.DataTransformerConfig(id_val="organize", options=order))
    for column in columns:
        drawn = drawn.override_by_name(column.heading, _overrides(column))
    return drawn


def _overrides(column: Column) -> list[model.DynamicConfigValue]:
    values: dict[str, Any] = {}
    if column.unit:
        values["unit"] = column.unit
    if column.mappings:
        values["mappings"] = list(column.mappings)
    if column.steps or column.cell == "color-text":
        values["thresholds"] = _thresholds(column.steps or ((None, "text"),)).build()
    if column.cell != "auto":
        values["custom.cellOptions"] = {"type": column.cell}
    if column.link:
        values["links"] = [{"title": column.link_title, "url": column.link}]
    if column.width:
        values["custom.width"] = column.width
    values["noValue"] = column.blank
    return [model.DynamicConfigValue(id_val=name, value=value) for name, value in values.items()]


def _common(drawn: P, told: Told, *, instant: bool, as_table: bool = False) -> P:
    """What every panel has: its words, its thresholds and its queries."""
    drawn = drawn.title(told["title"]).description(told["description"]).datasource(SOURCE).no_value(told["no_value"])
    drawn = drawn.unit(told.get("unit", "none")).thresholds(_thresholds(told.get("steps", ((None, GOOD),))))
    drawn = drawn.mappings(list(told.get("mappings", ())))
    if "decimals" in told:
        drawn = drawn.decimals(told["decimals"])
    if "interval" in told:
        drawn = drawn.interval(told["interval"])
    for number, asked in enumerate(told["queries"]):
        target = asked.instant() if instant else asked.range()
        target = target.format(PromQueryFormat.TABLE if as_table else PromQueryFormat.TIME_SERIES)
        drawn = drawn.with_target(target.ref_id(chr(ord("A") + number)))
    return drawn


def _by_thresholds() -> build.FieldColor:
    return build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)


def _thresholds(steps: Steps) -> build.ThresholdsConfig:
    marks = [model.Threshold(value=value, color=colour) for value, colour in steps]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(marks)


# -- a board


def board(
    *,
    title: str,
    uid: str,
    description: str,
    refresh: str,
    since: str,
    of_instances: bool,
    link: tuple[str, str],
    annotations: Sequence[build.AnnotationQuery],
    sections: Mapping[str, Sequence[tuple[int, Sequence[tuple[int, AnyPanel]]]]],
) -> build.Dashboard:
    """Grafana's dashboard. `refresh` and `since` are Grafana's words (`10s`, `now-6h`).

    `of_instances` is whether it is about chosen instances, or about all VMs of what is chosen. `link` is the title and
    the uid of another board, which is shown with the time range and what is chosen. Each section has a heading and rows
    of a height, of panels with a width; the widths of a row are 24 together. They are numbered in reading order.
    """
    drawn = build.Dashboard(title).uid(uid).description(description).tags([TAG])
    drawn = drawn.refresh(refresh).time(since, "now").timezone("browser").editable()
    drawn = drawn.tooltip(model.DashboardCursorSync.CROSSHAIR)
    source = build.DatasourceVariable("datasource").label("Data source").type("prometheus")
    drawn = drawn.with_variable(source.current(model.VariableOption(text="", value="")))
    for variable in variables(of_instances=of_instances):
        drawn = drawn.with_variable(variable)
    other = build.DashboardLink(link[0]).type(model.DashboardLinkType.LINK).icon("dashboard")
    drawn = drawn.link(other.url(f"/d/{link[1]}?{CARRIED}").keep_time(True).tooltip(link[0]))
    for mark in annotations:
        drawn = drawn.annotation(mark)
    y, number = 0, 1
    for heading, lines in sections.items():
        drawn = drawn.with_row(build.Row(heading).id(number).grid_pos(model.GridPos(h=1, w=WIDTH, x=0, y=y)))
        y, number = y + 1, number + 1
        for height, panels in lines:
            x = 0
            for width, panel in panels:
                drawn = drawn.with_panel(panel.id(number).grid_pos(model.GridPos(h=height, w=width, x=x, y=y)))
                x, number = x + width, number + 1
            y += height
    return drawn


def variables(*, of_instances: bool) -> list[build.QueryVariable]:
    """What VMs are chosen by, each narrowed by those before it. "All" is whatever value, so that a VM which lacks a
    tag, or is in no scale set, is among them."""
    drawn = [_variable("job", "azure_scheduled_events_up", "job", every=".+")]
    chosen = ['job=~"$job"']
    for name, label in CHOICES.items():
        drawn.append(_variable(name, f"azure_scheduled_events_vm_info{{{', '.join(chosen)}}}", label, every=".*"))
        chosen.append(f'{label}=~"${name}"')
    if of_instances:
        # `up` has none of the labels: with "All" chosen it brings the VMs that do not know yet who they are.
        families = '__name__=~"azure_scheduled_events_(up|vm_info)"'
        drawn.append(_variable("instance", f"{{{', '.join([families, *chosen])}}}", "instance", every=None))
    return drawn


def _variable(name: str, series: str, label: str, *, every: str | None) -> build.QueryVariable:
    """A choice among the values of a label. `every` is what "All" stands for; None: there is no "All"."""
    query = f"label_values({series}, {label})"
    drawn = build.QueryVariable(name).label(name.replace("_", " ")).datasource(SOURCE).definition(query).multi(True)
    drawn = drawn.query({"query": query, "refId": f"variable-{name}", "qryType": 1}).include_all(every is not None)
    if every is not None:
        drawn = drawn.all_value(every).current(model.VariableOption(text=["All"], value=["$__all"], selected=True))
    return drawn.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.NATURAL_ASC)


def annotation(
    name: str, colour: str, expr: str, text: str, *, value_is_time: bool = False, enabled: bool = True
) -> build.AnnotationQuery:
    """Marks on every curve, from the start or once somebody asks for them (`enabled`).

    With `value_is_time` at the moment that the value says, in milliseconds.
    """
    drawn = build.AnnotationQuery().name(name).datasource(SOURCE).enable(enabled).icon_color(colour)
    # `expr` and what else is the data source's own stands beside Grafana's fields.
    return drawn.expr(expr).title_format(name).text_format(text).step("60s").use_value_for_time(value_is_time)
