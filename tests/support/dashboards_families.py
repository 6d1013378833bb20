"""The metric catalogue, for checks of alerts and dashboards."""

from __future__ import annotations

from exporter.sinks.prometheus.catalogue import BY_NAME, FAMILIES, PREFIX, Family


def sample_names(family: Family) -> tuple[str, ...]:
    """Return the sample names of this family in an exposition."""
    if family.type == "histogram":
        return tuple(family.full_name + suffix for suffix in ("_bucket", "_sum", "_count"))
    return (family.full_name,)


def metric_names() -> set[str]:
    """Return every sample name of the catalogue."""
    return {name for family in FAMILIES for name in sample_names(family)}


def labels_of(name: str) -> set[str]:
    """Return the labels of a sample with this name."""
    short = name.removeprefix(PREFIX)
    if short in BY_NAME:
        return set(BY_NAME[short].labels)
    family = next(family for family in FAMILIES if name in sample_names(family))
    return {*family.labels, "le"} if name.endswith("_bucket") else set(family.labels)
