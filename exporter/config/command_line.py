"""The command line: argparse with short usage, grouped help of at most 100 columns, and hints for mistyped words.

The text is the same on every Python version: it doesn't use argparse's default layout, which differs.
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
"""The values of `--format`: human-readable, or one JSON object per line."""
_HELP_COLUMN: Final = 8
"""Where the text of a flag starts, on a separate line: the longest variable name fits on one line."""
_COMMAND_COLUMN: Final = 14
"""Where the text of a command starts, on the line of its name."""
_PARAGRAPH: Final = re.compile(r"\n\s*\n")


class HelpLayout(argparse.HelpFormatter):
    """Help in lines as wide as the terminal, at most 100 columns (also in a pipe); paragraphs are kept."""

    def __init__(self, prog: str, column: int = _HELP_COLUMN) -> None:
        """Create the layout; `column` is the last column in which the text of a flag or a command may start."""
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
    """An ArgumentParser without abbreviations (a flag's spelling is a contract) and without credentials in its errors.

    Its usage line is short: the program's name and `arguments`.
    """

    def __init__(self, *args: Any, arguments: str = "[OPTIONS]", **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": HelpLayout, **kwargs})
        self.color = False  # Python 3.14 colours help; the text must be the same everywhere
        self.show_arguments(arguments)

    def show_arguments(self, words: str) -> None:
        """Set the part of the usage line after the program's name, and the layout that fits it."""
        self.usage = f"%(prog)s {words}"
        if words.startswith(("COMMAND", "ACTION")):
            self.formatter_class = partial(HelpLayout, column=_COMMAND_COLUMN)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and the message, without credentials and control characters.

        The lines after the first one list the known words.
        """
        first, *rest = redact(message).split("\n")
        lines = [f"{self.prog}: error: {printable(first)}", *map(printable, rest), f"Try '{self.prog} --help'."]
        self.exit(BAD_USAGE, "\n".join(lines) + "\n")

    def parse_known_args(  # type: ignore[override]  # argparse has overloads for namespaces of other types
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does, but reject unknown arguments here, in the command's own parser."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._refusal(unknown))
        return parsed, unknown

    def _refusal(self, unknown: Sequence[str]) -> str:
        """Return the error text for unknown arguments. Values aren't shown: they may be secrets."""
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
        """Reject a value that isn't one of the choices, with the same text on every Python version."""
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
        help="Output format: human-readable lines or JSON. Default: timeline.",
    )


def duration_argument(text: str) -> float:
    """Return the seconds of a duration, more than zero. Raises `argparse.ArgumentTypeError`."""
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f'expected a duration, for example "500ms" or "2m", found {describe(text)}')
    return seconds


def listen_argument(text: str) -> tuple[str, int]:
    """Return host ("" for every address) and port to listen on. Raises `argparse.ArgumentTypeError`."""
    try:
        refuse_misplaced(text, "what belongs here")
        return split_address(text)
    except Misplaced as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except InvalidValue as error:
        raise argparse.ArgumentTypeError(f"expected {error}, found {describe(text)}") from error
