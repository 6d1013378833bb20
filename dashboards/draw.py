"""From a description to Grafana's classic model: all that the dashboards need of the SDK."""

from __future__ import annotations

from typing import Any, Final, TypeVar, assert_never

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common as words
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.board import Annotation, Board, Link
from dashboards.panel import Bars, Column, Curves, Figure, Lanes, Panel, Query, Steps, Table
from dashboards.queries import CARRIED, CHOICES

SOURCE: Final = words.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG: Final = "azure-scheduled-events"
WIDTH: Final = 24

AnyPanel = stat.Panel | table.Panel | timeseries.Panel | statetimeline.Panel | bargauge.Panel
P = TypeVar("P", stat.Panel, table.Panel, timeseries.Panel, statetimeline.Panel, bargauge.Panel)


# -- a panel


def draw_panel(panel: Panel) -> AnyPanel:
    """Grafana's panel, without a place."""
    match panel.view:
        case Figure():
            return _figure(panel, panel.view)
        case Bars():
            return _bars(panel)
        case Curves():
            return _curves(panel, panel.view)
        case Lanes():
            return _lanes(panel)
        case Table():
            return _table(panel, panel.view)
        case _:
            assert_never(panel.view)


def _figure(panel: Panel, view: Figure) -> stat.Panel:
    drawn = _common(stat.Panel(), panel, instant=True)
    drawn = drawn.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    drawn = drawn.graph_mode(words.BigValueGraphMode.NONE).justify_mode(words.BigValueJustifyMode.CENTER)
    mode = words.BigValueColorMode.BACKGROUND_SOLID if view.solid else words.BigValueColorMode.VALUE
    return drawn.color_mode(mode).color_scheme(_by_thresholds()).text_mode(words.BigValueTextMode.AUTO)


def _bars(panel: Panel) -> bargauge.Panel:
    drawn = _common(bargauge.Panel(), panel, instant=True)
    drawn = drawn.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)).min(0)
    drawn = drawn.orientation(words.VizOrientation.HORIZONTAL).display_mode(words.BarGaugeDisplayMode.BASIC)
    drawn = drawn.name_placement(words.BarGaugeNamePlacement.TOP)
    return drawn.color_scheme(_by_thresholds()).value_mode(words.BarGaugeValueMode.COLOR)


def _curves(panel: Panel, view: Curves) -> timeseries.Panel:
    drawn = _common(timeseries.Panel(), panel, instant=False)
    drawn = drawn.color_scheme(build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC)).min(0)
    drawn = drawn.fill_opacity(30 if view.stacked else 10).line_width(2)
    drawn = drawn.draw_style(words.GraphDrawStyle.LINE)
    drawn = drawn.show_points(words.VisibilityMode.ALWAYS if view.points else words.VisibilityMode.AUTO)
    if panel.decimals == 0:
        drawn = drawn.axis_soft_max(5)
    if view.stacked:
        drawn = drawn.stacking(common.StackingConfig().mode(words.StackingMode.NORMAL).group("A"))
    legend = common.VizLegendOptions().show_legend(True).display_mode(words.LegendDisplayMode.LIST)
    tooltip = common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI).sort(words.SortOrder.DESCENDING)
    drawn = drawn.legend(legend.placement(words.LegendPlacement.BOTTOM).calcs([])).tooltip(tooltip)
    for name, colour in (view.colours or {}).items():
        fixed = model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})
        drawn = drawn.override_by_regexp(f"/^{name}/", [fixed])
    return drawn


def _lanes(panel: Panel) -> statetimeline.Panel:
    drawn = _common(statetimeline.Panel(), panel, instant=False)
    legend = common.VizLegendOptions().show_legend(False).display_mode(words.LegendDisplayMode.LIST)
    drawn = drawn.legend(legend.placement(words.LegendPlacement.BOTTOM).calcs([]))
    drawn = drawn.show_value(words.VisibilityMode.AUTO).merge_values(True).row_height(0.8).fill_opacity(80)
    return drawn.color_scheme(_by_thresholds()).line_width(0)


def _table(panel: Panel, view: Table) -> table.Panel:
    drawn = _common(table.Panel(), panel, instant=True, as_table=True)
    drawn = drawn.cell_height(words.TableCellHeight.SM).color_scheme(_by_thresholds())
    drawn = drawn.align(words.FieldTextAlignment.LEFT)
    if len(panel.queries) > 1:
        drawn = drawn.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    keep = {"include": {"names": [column.field for column in view.columns]}}
    drawn = drawn.with_transformation(model.DataTransformerConfig(id_val="filterFieldsByName", options=keep))
    order = {
        "indexByName": {column.field: place for place, column in enumerate(view.columns)},
        "renameByName": {column.field: column.heading for column in view.columns},
        "excludeByName": {},
    }
    drawn = drawn.with_transformation(model.DataTransformerConfig(id_val="organize", options=order))
    for column in view.columns:
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


def _common(drawn: P, panel: Panel, *, instant: bool, as_table: bool = False) -> P:
    """What every panel has: its words, its thresholds and its queries."""
    drawn = drawn.title(panel.title).description(panel.description).datasource(SOURCE).no_value(panel.no_value)
    drawn = drawn.unit(panel.unit).thresholds(_thresholds(panel.steps)).mappings(list(panel.mappings))
    if panel.decimals is not None:
        drawn = drawn.decimals(panel.decimals)
    if panel.interval:
        drawn = drawn.interval(panel.interval)
    for number, query in enumerate(panel.queries):
        drawn = drawn.with_target(_target(query, chr(ord("A") + number), instant=instant, as_table=as_table))
    return drawn


def _target(query: Query, ref: str, *, instant: bool, as_table: bool) -> prometheus.Dataquery:
    drawn = prometheus.Dataquery().datasource(SOURCE).ref_id(ref).expr(query.expr).legend_format(query.legend)
    drawn = drawn.instant() if instant else drawn.range()
    return drawn.format(PromQueryFormat.TABLE if as_table else PromQueryFormat.TIME_SERIES)


def _by_thresholds() -> build.FieldColor:
    return build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)


def _thresholds(steps: Steps) -> build.ThresholdsConfig:
    marks = [model.Threshold(value=value, color=colour) for value, colour in steps]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(marks)


# -- a board


def draw_board(board: Board) -> build.Dashboard:
    """Grafana's dashboard: variables, link, annotations, and the panels numbered from 1 in reading order."""
    drawn = build.Dashboard(board.title).uid(board.uid).description(board.description).tags([TAG])
    drawn = drawn.refresh(board.refresh).time(board.since, "now").timezone("browser").editable()
    drawn = drawn.tooltip(model.DashboardCursorSync.CROSSHAIR)
    source = build.DatasourceVariable("datasource").label("Data source").type("prometheus")
    drawn = drawn.with_variable(source.current(model.VariableOption(text="", value="")))
    for variable in variables(of_instances=board.of_instances):
        drawn = drawn.with_variable(variable)
    drawn = drawn.link(_link(board.link))
    for annotation in board.annotations:
        drawn = drawn.annotation(draw_annotation(annotation))
    return _placed(drawn, board)


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


def _link(link: Link) -> build.DashboardLink:
    drawn = build.DashboardLink(link.title).type(model.DashboardLinkType.LINK).icon("dashboard")
    return drawn.url(f"/d/{link.uid}?{CARRIED}").keep_time(True).tooltip(link.title)


def draw_annotation(mark: Annotation) -> build.AnnotationQuery:
    """Grafana's query for marks; `expr` and what else is the data source's own stands beside Grafana's fields."""
    drawn = build.AnnotationQuery().name(mark.name).datasource(SOURCE).enable(mark.enabled).icon_color(mark.colour)
    return (
        drawn.expr(mark.expr)
        .title_format(mark.name)
        .text_format(mark.text)
        .step("60s")
        .use_value_for_time(mark.value_is_time)
    )


def _placed(drawn: build.Dashboard, board: Board) -> build.Dashboard:
    y, number = 0, 1
    for section in board.sections:
        heading = build.Row(section.title).id(number).grid_pos(model.GridPos(h=1, w=WIDTH, x=0, y=y))
        drawn, y, number = drawn.with_row(heading), y + 1, number + 1
        for row in section.rows:
            x = 0
            for width, panel in row.panels:
                place = model.GridPos(h=row.height, w=width, x=x, y=y)
                drawn = drawn.with_panel(draw_panel(panel).id(number).grid_pos(place))
                x, number = x + width, number + 1
            y += row.height
    return drawn
