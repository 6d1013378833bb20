"""Names of VM tags as labels."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.core.records import tag_label, unknown_tags


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("owner", "tag_owner"),
        ("Owner", "tag_Owner"),
        ("cost-center", "tag_cost_center"),
        ("hidden-link:/app insights", "tag_hidden_link__app_insights"),
        ("straße", "tag_stra_e"),
        ("7", "tag_7"),
    ],
)
def test_tag_label_is_the_name_with_underscores(name: str, label: str) -> None:
    """Each character other than ASCII letters, digits, and underscores becomes an underscore; the case stays."""
    assert tag_label(name) == label


@given(st.text(min_size=1))
def test_every_tag_name_gives_a_valid_prometheus_label(name: str) -> None:
    """Azure allows more characters in a name than Prometheus does."""
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", tag_label(name))
    assert len(tag_label(name)) == len(name) + 4


def test_unknown_tag_has_an_empty_value() -> None:
    """Its name is present from the start, so that label sets don't change."""
    assert unknown_tags(("b", "a")) == (("b", ""), ("a", ""))
