"""Forms of English that the project's text avoids, as data, and a search for them in the repository.

The search reads Markdown prose (no code blocks, code spans, or link targets), Python's docstrings, comments, and string
literals that contain a space, and every line of the other files that a user reads. A line with `style: ok` is exempt:
it has a text from outside, or a test of this search.

`python -m tests.support.style [PATH…]` lists the findings, and with `--warn` also those that need judgement.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

FORBIDDEN = tuple(
    re.compile(pattern, re.NOFLAG if re.search(r"[A-Z][a-z]", pattern) else re.IGNORECASE)
    for pattern in (
        r"\bwho(so)?ever\b",
        r"\b(for|to|of|by|with|from) who\b(?! (is|are))",
        r"(^|[.!?:;|] |- )Who (?!is\b|are\b|let\b|knows\b)[a-z]+s\b",
        r"\b(nobody|somebody|everybody)\b",
        r"\b(is|are|be|was|were|been|not) (first |only |also )?(told|felt)\b(?! to)",  # style: ok
        r"\b(it|agent|page|log|records?|metric|file|rule|line|table|service|status|Azure) (also )?"
        r"(says?|said|tells?|told)\b",
        r"\btells? (of|its|that|about)\b",
        r"\bAnswers (in|how|up|a|the|so|whether)\b",
        r"\bshall\b",
        r"\bmend(s|ed|ing)?\b",
        r"\b(for ever|ever new)\b",  # style: ok
        r"\bto be had\b",
        r"\b(for|from|after|than|most|until|of|in) so (long|many|late|few)\b",
        r"^\"*So (often|long|many)\b",
        r"\b(stands?|stood) (in|on|below|beside|there|above|near|between)\b",  # style: ok
        r"\bbeside(?! the point)\b",
        r"\w of (its|their|our|your) own\b",
        r"\bof (ours|yours)\b",
        r"\b(goes|went|gone) on (with|as|from|by|out)\b",
        r"\bwhat is no\b",
        r"\bis no (document|record|file|folder|text|value|flag|rule)\b",
    )
)
# They have right uses too, so they're listed and not forbidden.
WARNED = tuple(
    re.compile(pattern)
    for pattern in (
        r"\w+ alone(?=[.,;:)|])",
        r"\b[Ww]here (one|none|no|all|even|its?|they|that) (is|are|has|have|can|will)\b",
        r"\b(felt|feels)\b",
    )
)
TEST_NAME = re.compile(r"_(told|tells|says|said|felt|whose|whom|nobody|shall|for_ever)(_|$)")

_CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_LINK_TARGET = re.compile(r"(?<=\])\([^)\s]*\)|<https?://[^>]*>|https?://\S+")
_FENCE = re.compile(r"\s*(```|~~~)")
_PLAIN = (
    ".yml",
    ".yaml",
    ".html",
    ".sh",
    ".ps1",
    ".js",
    ".mjs",
    ".toml",
    ".kql",
    ".service",
    ".path",
    ".timer",
    ".txt",
    ".tpl",
)
_UNREAD = re.compile(
    r"^(\.git/|tests/goldens/|deploy/[a-z-]+\.txt$|tests/node/|LICENSE$|docs/iframe-worker\.js$)|package-lock\.json$"
)


class Finding(NamedTuple):
    """A form that the project's text avoids, and the line of the file (from 1) that contains it."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class _Passage(NamedTuple):
    """Words with the line of each, so that a form that is broken over two lines is found too."""

    words: list[tuple[str, int]]

    def matches(self, patterns: Iterable[re.Pattern[str]]) -> Iterator[tuple[int, str]]:
        text = " ".join(word for word, _ in self.words)
        for pattern in patterns:
            for match in pattern.finditer(text):
                index = text.count(" ", 0, match.start() + len(match[0]) - len(match[0].lstrip()))
                yield self.words[index][1], match[0].strip()


def _passage(text: str, line: int) -> _Passage:
    return _Passage([(word, line + offset) for offset, part in enumerate(text.split("\n")) for word in part.split()])


def _blocks(text: str, line: int = 1) -> Iterator[_Passage]:
    """Yield the paragraphs of a text: what is between two blank lines."""
    block: list[str] = []
    for part in [*text.split("\n"), ""]:
        if part.strip():
            block.append(part)
            continue
        if block:
            yield _passage("\n".join(block), line)
        line += len(block) + 1
        block = []


def prose(markdown: str) -> str:
    """Return a page without code blocks, comments, code spans and link targets; every line keeps its number."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n") + ("…" if match[0].startswith("`") else "")

    kept, fenced = [], False
    for part in markdown.split("\n"):
        fence = _FENCE.match(part) is not None
        kept.append("" if fence or fenced else part)
        fenced ^= fence
    text = re.sub(r"<!--(?! style: ok).*?-->", blank, "\n".join(kept), flags=re.DOTALL)
    paragraphs = re.split(r"(\n\s*\n)", text)
    return "".join(_LINK_TARGET.sub("", _CODE_SPAN.sub(blank, paragraph)) for paragraph in paragraphs)


def _python(source: str) -> Iterator[_Passage]:
    tree = ast.parse(source)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield from _blocks(_CODE_SPAN.sub("…", text), node.lineno)
    comment: list[tuple[str, int]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = _CODE_SPAN.sub("…", token.string.lstrip("#"))
            comment += [(word, token.start[0]) for word in text.split()]
        elif token.type != tokenize.NL and comment:
            yield _Passage(comment)
            comment = []
    if comment:
        yield _Passage(comment)


def findings(path: str, text: str, patterns: Iterable[re.Pattern[str]] = FORBIDDEN) -> Iterator[Finding]:
    """Yield what the patterns find in a file; its name decides how it's read."""
    if path.endswith(".md"):
        passages: Iterable[_Passage] = _blocks(prose(text))
    elif path.endswith(".py"):
        passages = _python(text)
    else:
        passages = (_passage(part, number) for number, part in enumerate(text.split("\n"), 1))
    lines = text.split("\n")
    patterns = tuple(patterns)
    for passage in passages:
        for line, found in passage.matches(patterns):
            if "style: ok" not in lines[line - 1]:
                yield Finding(path, line, found)
    if path.endswith(".py") and "/test_" in f"/{path}":
        for number, part in enumerate(lines, 1):
            name = re.match(r"\s*(?:async )?def (test_\w+)", part)
            if name and TEST_NAME.search(name[1]):
                yield Finding(path, number, name[1])


def files(*under: str) -> list[str]:
    """Return the paths of all files of the repository that are searched, or of those below `under`."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *under],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    return [
        path
        for path in listed
        if (path.endswith((".md", ".py", *_PLAIN)) or "Makefile" in path)
        and not _UNREAD.search(path)
        and (ROOT / path).is_file()
    ]


def main() -> int:
    """Print the findings below the paths given; return 1 if there is one."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--warn"]
    patterns = FORBIDDEN + (WARNED if "--warn" in sys.argv else ())
    found = [
        finding
        for path in files(*arguments)
        for finding in findings(path, (ROOT / path).read_text(errors="replace"), patterns)
    ]
    print(*found, f"{len(found)} findings", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
