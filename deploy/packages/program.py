"""The commands and flags, read from the parsers of `--help`, for the manual page and the completions.

A setting is the same flag in every command that uses its section, so each setting is listed once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from exporter.cli import COMMANDS, add_command_flags
from exporter.config.command_line import FlagParser
from exporter.config.schema import catalogue
from exporter.config.types import Choice, Text

_PATHS: Final = frozenset({"path_argument", "_folder"})
"""Names of the argument types for paths."""
_SETTINGS: Final = {setting.flag: setting for setting in catalogue()}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, or a positional argument (`spelling` is ""). `value` is the name of its value, "" if it has none.

    `words` are the permitted values, if they are a closed set; `optional` is whether the value can be omitted.
    """

    spelling: str
    value: str
    help: str
    words: tuple[str, ...] = ()
    path: bool = False
    optional: bool = False
    repeated: bool = False
    setting: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its flags. `sections` are those of its settings; `actions` are its subcommands."""

    name: str
    summary: str
    flags: tuple[Flag, ...]
    arguments: tuple[Flag, ...] = ()
    sections: tuple[str, ...] = ()
    actions: tuple[Command, ...] = ()
    epilog: str = field(default="", repr=False)


def commands() -> tuple[Command, ...]:
    """Return all commands, in the order of `--help`."""
    read = []
    for name, (summary, _, _) in COMMANDS.items():
        parser = FlagParser(prog=name)
        add_command_flags(name, parser)
        read.append(_command(name, summary, parser))
    return tuple(read)


def _command(name: str, summary: str, parser: argparse.ArgumentParser) -> Command:
    entries = [
        action for action in parser._actions if action.help != argparse.SUPPRESS
    ]  # argparse has no public API for them
    hidden = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    flags = tuple(_flag(action) for action in entries if action.option_strings)
    arguments = tuple(_flag(action) for action in entries if not action.option_strings and action not in hidden)
    sections = tuple(dict.fromkeys(_SETTINGS[flag.spelling].section for flag in flags if flag.setting))
    return Command(name, summary, flags, arguments, sections, tuple(_actions(hidden)), parser.epilog or "")


def _actions(hidden: Sequence[argparse._SubParsersAction[argparse.ArgumentParser]]) -> Iterator[Command]:
    for action in hidden:
        summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, parser in action.choices.items():
            yield _command(name, summaries[name], parser)


def _flag(action: argparse.Action) -> Flag:
    """Return an argument of argparse. The last of several spellings is the long one."""
    spelling = action.option_strings[-1] if action.option_strings else ""
    setting = _SETTINGS.get(spelling)
    words = tuple(str(word) for word in action.choices or ())
    path = getattr(action.type, "__name__", "") in _PATHS or action.dest == "config.file"
    if setting is not None:
        words = tuple(str(word) for word in setting.kind.words) if isinstance(setting.kind, Choice) else ()
        path = isinstance(setting.kind, Text) and setting.kind.path
    value = ""
    if action.nargs != 0:
        value = str(action.metavar or ("|".join(words) if words else action.dest.upper()))
    return Flag(
        spelling,
        value,
        (action.help or "").replace("%%", "%"),
        words,
        path,
        optional=action.nargs == "?",
        repeated=action.nargs in ("+", "*") or isinstance(action, argparse._AppendAction),
        setting=setting is not None,
    )
