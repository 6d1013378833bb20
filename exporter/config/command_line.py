"""The command line: argparse with short usage, help in groups of at most 100 columns, and a hint for what is mistyped.

The same text on every Python, since nothing of it is laid out by argparse's own defaults, which differ.
"""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NoReturn

from exporter.errors import BAD_USAGE
from exporter.secrets import redact
from exporter.text.format import parse_duration
from exporter.text.terminal import WIDTH, printable
from exporter.text.values import (
    InvalidValue,
    Misplaced,
    describe,
    nearest,
    refuse_misplaced,
    split_address,
    unknown_word,
)

FORMATS: Final = ("timeline", "json")
"""What `--format` takes: for people, or one JSON object a line."""
_HELP_COLUMN: Final = 8
"""Where the text of a flag begins, on a line of its own: the longest variable fits on one."""
_COMMAND_COLUMN: Final = 14
"""The same of a command, beside its name."""
_PARAGRAPH: Final = re.compile(r"\n\s*\n")


class HelpLayout(argparse.HelpFormatter):
    """Lines as wide as the terminal and at most 100 columns, which is also what a pipe gets; paragraphs are kept."""

    def __init__(self, prog: str, column: int = _HELP_COLUMN) -> None:
        """`column` is where the text of a flag or a command begins at the latest."""
        width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
        super().__init__(prog, max_help_position=column, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = (" ".join(part.split()) for part in _PARAGRAPH.split(text.strip()))
        return "\n\n".join(
            textwrap.fill(part, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
            for part in parts
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class FlagParser(argparse.ArgumentParser):
    """argparse without abbreviations (a flag's spelling is a contract), and without credentials in its errors.

    Its usage is short: `takes` stands behind the program's name.
    """

    def __init__(self, *args: Any, takes: str = "[OPTIONS]", **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": HelpLayout, **kwargs})
        self.color = False  # 3.14 colours its help; ours is the same everywhere
        self.takes(takes)

    def takes(self, words: str) -> None:
        """What the usage says behind the program's name; the names of commands have their texts beside them."""
        self.usage = f"%(prog)s {words}"
        if words.startswith(("COMMAND", "ACTION")):
            self.formatter_class = partial(HelpLayout, column=_COMMAND_COLUMN)

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and the message, without credentials and control characters.

        What follows its first line is a list of what there is.
        """
        first, *rest = redact(message).split("\n")
        lines = [f"{self.prog}: error: {printable(first)}", *map(printable, rest), f"Try '{self.prog} --help'."]
        self.exit(BAD_USAGE, "\n".join(lines) + "\n")

    def parse_known_args(  # type: ignore[override]  # argparse has overloads for namespaces of other types
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse, but what is not known is refused here, by the command whose flags it could have been."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._refusal(unknown))
        return parsed, unknown

    def _refusal(self, unknown: Sequence[str]) -> str:
        """The sentence for what this command does not take. A value is not shown: it may be anything."""
        mistyped = [word.partition("=")[0] for word in unknown if word.startswith("-") and word.strip("-")]
        if not mistyped:
            return f"unexpected argument {describe(unknown[0])}"
        flags = [action for action in self._actions if action.option_strings and action.help != argparse.SUPPRESS]
        known = [action.option_strings[-1] for action in flags]
        hints = []
        for flag in dict.fromkeys(mistyped):
            near = nearest(flag, known)
            hints.append(f"unknown flag {describe(flag)}" + (f"; did you mean {near}?" if near else ""))
        return ", ".join(hints)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse, which words it otherwise in each version: a word that is none of those that there are."""
        if action.choices is None or value in action.choices:
            return
        known = [str(word) for word in action.choices]
        if action.option_strings:
            raise argparse.ArgumentError(action, unknown_word("word", str(value), known))
        self.error(unknown_word(str(action.metavar).lower(), str(value), known))


def add_format(group: argparse._ActionsContainer) -> None:
    """Declare `--format`."""
    group.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        metavar="|".join(FORMATS),
        help="Lines for people, or JSON. Default: timeline.",
    )


def duration_argument(text: str) -> float:
    """Seconds of a duration, more than none. Raises `argparse.ArgumentTypeError`."""
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f'expected a duration such as "500ms", "5s" or "2m", found {describe(text)}')
    return seconds


def listen_argument(text: str) -> tuple[str, int]:
    """Host ("" for every address) and port to listen on. Raises `argparse.ArgumentTypeError`."""
    try:
        refuse_misplaced(text, "what belongs here")
        return split_address(text)
    except Misplaced as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except InvalidValue as error:
        raise argparse.ArgumentTypeError(f"expected {error}, not {describe(text)}") from error
