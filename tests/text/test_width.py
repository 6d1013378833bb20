"""Wrapping at 100 columns: every line fits, nothing is lost, and what is searched for stays in one piece."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.text.terminal import WIDTH, columns, listed, print_wrapped, wrapped
from tests.support.lines import too_wide

WIDE = "虚拟机"
TEXTS = st.text(st.sampled_from("ab-_/ é虚机ｗ́\U0001f600"), max_size=400)


@given(TEXTS, st.integers(0, 120))
def test_every_line_fits_and_nothing_is_lost(text: str, hang: int) -> None:
    """Whatever the text and the indent: only spaces are added or left out, and those between words at a break alone."""
    lines = wrapped(text, hang)
    assert too_wide("\n".join(lines)) == []
    assert "".join("".join(lines).split(" ")) == "".join(text.split(" "))


@given(st.lists(st.sampled_from(["a", "bc", "虚拟", "longer-word"]), min_size=1, max_size=80), st.integers(0, 60))
def test_words_stay_whole_and_in_order(words: list[str], hang: int) -> None:
    """A word that fits on a line is not parted."""
    lines = wrapped(" ".join(words), hang)
    assert " ".join(line.strip() for line in lines).split() == words
    assert all(line.startswith(" " * hang) and line[hang] != " " for line in lines[1:])


def test_what_fits_is_left_as_it_is() -> None:
    """With all its spaces, also those at its end."""
    for text in ("", "  a   b  ", "x" * WIDTH):
        assert wrapped(text, 8) == [text]


def test_spaces_within_a_line_stay() -> None:
    """The columns of a table are where they were."""
    row = f"    {'rule a':<22}  {'matches':<10}  " + "word " * 20
    assert wrapped(row, 40)[0].startswith(row[:60])


def test_a_word_that_only_fits_without_the_indent_has_a_line_of_its_own() -> None:
    """A path of 95 characters can be copied; one that is longer than a line is parted."""
    path = "/" + "p" * 94
    assert wrapped(f"settings  {path} is it", 16) == ["settings ".rstrip(), path, " " * 16 + "is it"]
    longer = "/" + "p" * 150
    assert wrapped(f"a {longer} b", 2) == ["a", longer[:100], longer[100:], "  b"]


def test_a_wide_character_takes_two_columns() -> None:
    """As a terminal draws them."""
    assert (columns(WIDE), columns("e\u0301")) == (6, 2)


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\\u865a"), ("utf-8", "虚")])
def test_what_a_terminal_lacks_is_escaped_before_it_is_measured(encoding: str, shown: str) -> None:
    """Where each wide character becomes six, the lines still fit."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
    print_wrapped("name  " + " ".join([WIDE] * 40), out, hang=6)
    printed = raw.getvalue().decode(encoding)
    assert shown in printed
    assert too_wide(printed) == []
    assert len(printed.splitlines()) > 1


def test_a_list_is_indented_on_every_line() -> None:
    """With commas between the words."""
    text = listed([f"word-{number}" for number in range(40)])
    assert all(line.startswith("  word-") for line in text.splitlines())
    assert too_wide(text) == []
