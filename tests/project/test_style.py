"""Plain English: the repository's text has none of the forms that the style search knows, and the search finds them."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.support.style import FORBIDDEN, ROOT, files, findings

FOLDERS = sorted({Path(path).parts[0] if "/" in path else "." for path in files()})

EXAMPLES = {  # style: ok
    "Whoever scrapes it needs a password.": "Whoever",  # style: ok
    "It is for who looks.": "for who",  # style: ok
    "| who | Who reads the hub needs a role.": "| Who reads",  # style: ok
    "Nobody approves it.": "Nobody",  # style: ok
    "The end is told once.": "is told",  # style: ok
    "The agent\nsays why.": "agent says",  # style: ok
    "It tells of the event.": "tells of",  # style: ok
    "Answers in how many seconds to call again.": "Answers in",  # style: ok
    "It shall be mended.": "mended",  # style: ok
    "Prepared for ever, there to be had.": "to be had",  # style: ok
    "It waits for so long.": "for so long",  # style: ok
    "The table stands below.": "stands below",  # style: ok
    "One more of ours, beside it.": "of ours",  # style: ok
    "So often it is tried.": "So often",  # style: ok
    "A process of its own.": "s of its own",  # style: ok
    "Reading goes on with the next.": "goes on with",  # style: ok
    "It sent what is no document.": "what is no",  # style: ok
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_text_is_plain_english(folder: str) -> None:
    paths = [path for path in files() if (Path(path).parts[0] if "/" in path else ".") == folder]
    found = [str(one) for path in paths for one in findings(path, (ROOT / path).read_text(errors="replace"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("sentence", "form"), EXAMPLES.items(), ids=EXAMPLES.values())
def test_each_form_is_found_in_prose_docstrings_and_comments(sentence: str, form: str) -> None:
    comment = "".join(f"# {line}\n" for line in sentence.split("\n"))
    for path, text in (("a.md", sentence), ("a.py", f'"""{sentence}"""\n'), ("a.py", f"{comment}a = 1\n")):
        assert form in {one.text for one in findings(path, text)}, path


def test_every_pattern_has_an_example() -> None:
    prose = [" ".join(sentence.split()) for sentence in EXAMPLES]
    missing = [pattern.pattern for pattern in FORBIDDEN if not any(pattern.search(sentence) for sentence in prose)]
    assert not missing


def test_code_link_targets_and_exempt_lines_are_not_searched() -> None:
    word = "nobody"
    page = f"`{word}` is a user, and [a link](https://example.org/{word})\n\n```sh\nid {word}\n```\n"
    assert not [*findings("a.md", page)]
    assert not [*findings("a.md", f"{word} <!-- style: ok -->\n")]
    assert not [*findings("a.py", f'a = "{word} is"  # style: ok\nb = "{word}"\n')]
    assert [one.line for one in findings("a.py", f'a = 1\nb = f"{{a}} {word}"\n')] == [2]


def test_test_names_are_searched() -> None:
    name = "test_the_end_is_told"
    assert [one.text for one in findings("tests/test_a.py", f"def {name}() -> None: ...\n")] == [name]


def test_public_class_names_are_unique() -> None:
    """One search finds one class."""
    trees = [ast.parse((ROOT / path).read_text(encoding="utf-8")) for path in files("exporter") if path.endswith(".py")]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert not [name for name, count in names.items() if count > 1 and not name.startswith("_")]
