"""What both dashboards have in common: variables, links to each other, annotations, the grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import dashboard as model

from dashboards.panels import SOURCE, Line

TAG: Final = "azure-scheduled-events"
SCHEMA: Final = 39
"""The last schema of the classic model that Grafana 10 to 13 all import without a migration that loses something."""

WIDTH: Final = 24
VM_UID, FLEET_UID = "azure-scheduled-events-vm", "azure-scheduled-events-fleet"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its lines; each panel of a line with its width, each line with its height."""

    title: str
    lines: Sequence[tuple[int, Line]]


def dashboard(title: str, uid: str, about: str, *, every_instance: bool, refresh: str, since: str) -> build.Dashboard:
    """An empty dashboard with its variables and links."""
    built = build.Dashboard(title).uid(uid).description(about).tags([TAG]).refresh(refresh).time(since, "now")
    built = built.timezone("browser").tooltip(model.DashboardCursorSync.CROSSHAIR).editable()
    source = build.DatasourceVariable("datasource").label("Data source").type("prometheus")
    built = built.with_variable(source.current(model.VariableOption(text="", value="")))
    built = built.with_variable(_variable("job", "label_values(azure_scheduled_events_up, job)", every=True))
    instances = 'label_values(azure_scheduled_events_up{job=~"$job"}, instance)'
    return built.with_variable(_variable("instance", instances, every=every_instance))


def _variable(name: str, query: str, *, every: bool) -> build.QueryVariable:
    variable = build.QueryVariable(name).label(name).datasource(SOURCE).definition(query).multi(True)
    variable = variable.query({"query": query, "refId": f"variable-{name}", "qryType": 1}).include_all(every)
    variable = variable.all_value(".+").refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return variable.sort(model.VariableSort.NATURAL_ASC)


def link(title: str, uid: str, variables: str) -> build.DashboardLink:
    """A link to the other dashboard that keeps the time range and these variables."""
    built = build.DashboardLink(title).type(model.DashboardLinkType.LINK).icon("dashboard")
    return built.url(f"/d/{uid}?{variables}").keep_time(True).tooltip(title)


def annotation(name: str, colour: str, expr: str, text: str, *, value_is_time: bool = False) -> build.AnnotationQuery:
    """Marks on every curve; with `value_is_time` at the moment that the value says, in milliseconds."""
    built = build.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour)
    return built.expr(expr).title_format(text).step("60s").use_value_for_time(value_is_time)


def place(built: build.Dashboard, sections: Sequence[Section]) -> build.Dashboard:
    """Put the panels on the grid, numbered from 1 in reading order."""
    y, number = 0, 1
    for section in sections:
        row = build.Row(section.title).id(number).grid_pos(model.GridPos(h=1, w=WIDTH, x=0, y=y))
        built, y, number = built.with_row(row), y + 1, number + 1
        for height, line in section.lines:
            x = 0
            for width, panel in line:
                made = panel.id(number).grid_pos(model.GridPos(h=height, w=width, x=x, y=y))
                built, x, number = built.with_panel(made), x + width, number + 1
            y += height
    return built
