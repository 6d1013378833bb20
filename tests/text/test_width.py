"""Wrapping at 100 columns: every line fits, no text is lost, and words stay whole."""

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
def test_every_line_fits_and_no_text_is_lost(text: str, hang: int) -> None:
    """For any text and indent, wrapping adds or removes only spaces."""
    lines = wrapped(text, hang)
    assert too_wide("\n".join(lines)) == []
    assert "".join("".join(lines).split(" ")) == "".join(text.split(" "))


@given(st.lists(st.sampled_from(["a", "bc", "虚拟", "longer-word"]), min_size=1, max_size=80), st.integers(0, 60))
def test_words_stay_whole_and_in_order(words: list[str], hang: int) -> None:
    """A word that fits on a line isn't split."""
    lines = wrapped(" ".join(words), hang)
    assert " ".join(line.strip() for line in lines).split() == words
    assert all(line.startswith(" " * hang) and line[hang] != " " for line in lines[1:])


def test_short_text_is_unchanged() -> None:
    """All its spaces are kept, also those at its end."""
    for text in ("", "  a   b  ", "x" * WIDTH):
        assert wrapped(text, 8) == [text]


def test_spaces_within_a_line_are_kept() -> None:
    """The columns of a table stay aligned."""
    row = f"    {'rule a':<22}  {'matches':<10}  " + "word " * 20
    assert wrapped(row, 40)[0].startswith(row[:60])


def test_long_word_gets_its_own_line_without_indent() -> None:
    """A path of 95 characters can be copied; one that is longer than a line is split."""
    path = "/" + "p" * 94
    assert wrapped(f"settings  {path} is it", 16) == ["settings ".rstrip(), path, " " * 16 + "is it"]
    longer = "/" + "p" * 150
    assert wrapped(f"a {longer} b", 2) == ["a", longer[:100], longer[100:], "  b"]


def test_wide_character_takes_two_columns() -> None:
    assert (columns(WIDE), columns("e\u0301")) == (6, 2)


class _Terminal(io.TextIOWrapper):
    """A terminal with a given encoding, of unknown width."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\\u865a"), ("utf-8", "虚")])
def test_unencodable_characters_are_escaped_before_wrapping(encoding: str, shown: str) -> None:
    """The lines still fit although each wide character becomes six columns."""
    raw = io.BytesIO()
    out = _Terminal(raw, encoding=encoding, errors="backslashreplace")
    print_wrapped("name  " + " ".join([WIDE] * 40), out, hang=6)
    printed = raw.getvalue().decode(encoding)
    assert shown in printed
    assert too_wide(printed) == []
    assert len(printed.splitlines()) > 1


def test_list_is_indented_on_every_line() -> None:
    """Commas separate the words."""
    text = listed([f"word-{number}" for number in range(40)])
    assert all(line.startswith("  word-") for line in text.splitlines())
    assert too_wide(text) == []
