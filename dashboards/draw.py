"""Panels and boards with the builders of Grafana's SDK: each function sets what all panels of its type share."""

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


class PanelOptions(TypedDict, total=False):
    """Options of every panel type.

    `no_value` is the text for no data, and `mappings` are texts instead of values.
    """

    title: Required[str]
    description: Required[str]
    queries: Required[Sequence[prometheus.Dataquery]]
    no_value: Required[str]
    unit: str
    steps: Steps
    mappings: Sequence[model.ValueMapping]
    decimals: float


def query(expr: str, legend: str = "__auto") -> prometheus.Dataquery:
    """Return one query of a panel. `legend` names the series, or the column of a table."""
    return prometheus.Dataquery().datasource(SOURCE).expr(expr).legend_format(legend)


def figure(*, solid: bool = True, **options: Unpack[PanelOptions]) -> stat.Panel:
    """Return a panel with one big number or text per query, for now. `solid` colours the background, not the value."""
    drawn = _common(stat.Panel(), options, instant=True)
    drawn = drawn.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    drawn = drawn.graph_mode(words.BigValueGraphMode.NONE).justify_mode(words.BigValueJustifyMode.CENTER)
    mode = words.BigValueColorMode.BACKGROUND_SOLID if solid else words.BigValueColorMode.VALUE
    return drawn.color_mode(mode).color_scheme(_by_thresholds()).text_mode(words.BigValueTextMode.AUTO)


def bars(**options: Unpack[PanelOptions]) -> bargauge.Panel:
    """Return a panel with one bar per query or series, for now or for the whole range."""
    drawn = _common(bargauge.Panel(), options, instant=True)
    drawn = drawn.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)).min(0)
    drawn = drawn.orientation(words.VizOrientation.HORIZONTAL).display_mode(words.BarGaugeDisplayMode.BASIC)
    drawn = drawn.name_placement(words.BarGaugeNamePlacement.TOP)
    return drawn.color_scheme(_by_thresholds()).value_mode(words.BarGaugeValueMode.COLOR)


def curves(
    *,
    stacked: bool = False,
    points: bool = False,
    colours: Mapping[str, str] | None = None,
    **options: Unpack[PanelOptions],
) -> timeseries.Panel:
    """Return a panel with series over time. The keys of `colours` are prefixes of series names."""
    drawn = _common(timeseries.Panel(), options, instant=False)
    drawn = drawn.color_scheme(build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC)).min(0)
    drawn = drawn.fill_opacity(30 if stacked else 10).line_width(2)
    drawn = drawn.draw_style(words.GraphDrawStyle.LINE)
    drawn = drawn.show_points(words.VisibilityMode.ALWAYS if points else words.VisibilityMode.AUTO)
    if options.get("decimals") == 0:
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


def lanes(**options: Unpack[PanelOptions]) -> statetimeline.Panel:
    """Return a panel with states over time, one lane per series."""
    drawn = _common(statetimeline.Panel(), options, instant=False)
    legend = common.VizLegendOptions().show_legend(False).display_mode(words.LegendDisplayMode.LIST)
    drawn = drawn.legend(legend.placement(words.LegendPlacement.BOTTOM).calcs([]))
    drawn = drawn.show_value(words.VisibilityMode.AUTO).merge_values(True).row_height(0.8).fill_opacity(80)
    return drawn.color_scheme(_by_thresholds()).line_width(0)


def table(*, columns: Sequence[Column], **options: Unpack[PanelOptions]) -> rows.Panel:
    """Return a table of the queries, merged by their common labels, with only these columns, in this order."""
    drawn = _common(rows.Panel(), options, instant=True, as_table=True)
    drawn = drawn.cell_height(words.TableCellHeight.SM).color_scheme(_by_thresholds())
    drawn = drawn.align(words.FieldTextAlignment.LEFT)
    if len(options["queries"]) > 1:
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
    if column.hidden:
        values["custom.hidden"] = True
    if column.width:
        values["custom.width"] = column.width
    values["noValue"] = column.blank
    return [model.DynamicConfigValue(id_val=name, value=value) for name, value in values.items()]


def _common(drawn: P, options: PanelOptions, *, instant: bool, as_table: bool = False) -> P:
    """Set what every panel has: texts, thresholds, and queries."""
    drawn = drawn.title(options["title"]).description(options["description"])
    drawn = drawn.datasource(SOURCE).no_value(options["no_value"])
    drawn = drawn.unit(options.get("unit", "none")).thresholds(_thresholds(options.get("steps", ((None, GOOD),))))
    drawn = drawn.mappings(list(options.get("mappings", ())))
    if "decimals" in options:
        drawn = drawn.decimals(options["decimals"])
    for number, asked in enumerate(options["queries"]):
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
    """Return a dashboard. `refresh` and `since` are in Grafana's format (`10s`, `now-6h`).

    With `of_instances` it is about selected instances, otherwise about all VMs that the variables select. `link` is the
    title and the uid of another board; the link keeps the time range and the variables. Each section has a heading and
    rows, each with a height and panels with a width. The widths of a row add up to 24. Panel ids are in reading order.
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
    """Return the variables that select VMs; each narrows the next.

    "All" matches any value and none, and so includes a VM without a tag or a scale set.
    """
    drawn = [_variable("job", "azure_scheduled_events_up", "job", every=".+")]
    chosen = ['job=~"$job"']
    for name, label in CHOICES.items():
        drawn.append(_variable(name, f"azure_scheduled_events_vm_info{{{', '.join(chosen)}}}", label, every=".*"))
        chosen.append(f'{label}=~"${name}"')
    if of_instances:
        # `up` has none of the labels: with "All" it adds the VMs whose name isn't known yet.
        families = '__name__=~"azure_scheduled_events_(up|vm_info)"'
        drawn.append(_variable("instance", f"{{{', '.join([families, *chosen])}}}", "instance", every=None))
    return drawn


def _variable(name: str, series: str, label: str, *, every: str | None) -> build.QueryVariable:
    """Return a variable for the values of a label. `every` is the regular expression of "All"; None: no "All"."""
    query = f"label_values({series}, {label})"
    drawn = build.QueryVariable(name).label(name.replace("_", " ")).datasource(SOURCE).definition(query).multi(True)
    drawn = drawn.query({"query": query, "refId": f"variable-{name}", "qryType": 1}).include_all(every is not None)
    if every is not None:
        drawn = drawn.all_value(every).current(model.VariableOption(text=["All"], value=["$__all"], selected=True))
    return drawn.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.NATURAL_ASC)


def annotation(
    name: str, colour: str, expr: str, text: str, *, value_is_time: bool = False, enabled: bool = True
) -> build.AnnotationQuery:
    """Return annotations on every graph, shown by default only if `enabled`.

    With `value_is_time` the value is the time of the annotation, in milliseconds.
    """
    drawn = build.AnnotationQuery().name(name).datasource(SOURCE).enable(enabled).icon_color(colour)
    # `expr` and other fields of the data source are on the same level as Grafana's fields.
    return drawn.expr(expr).title_format(name).text_format(text).step("60s").use_value_for_time(value_is_time)
