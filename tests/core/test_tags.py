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
def test_the_label_of_a_tag_is_its_name_with_underscores(name: str, label: str) -> None:
    """Whatever is no letter, digit or underscore of ASCII is one underscore; the letter case stays."""
    assert tag_label(name) == label


@given(st.text(min_size=1))
def test_every_name_gives_a_label_that_prometheus_takes(name: str) -> None:
    """Azure allows more in a name than Prometheus does."""
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", tag_label(name))
    assert len(tag_label(name)) == len(name) + 4


def test_a_tag_that_is_not_known_yet_has_no_value() -> None:
    """Its name is there from the start, so that label sets do not change."""
    assert unknown_tags(("b", "a")) == (("b", ""), ("a", ""))
