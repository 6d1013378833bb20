"""The approval rules of the settings file: `[approval] rules`, read into `core.policy.Rule`."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from exporter.config.types import Duration, Integer, file_path, is_absolute, refuse_escapes
from exporter.core.document import KNOWN_SOURCES, KNOWN_TYPES
from exporter.core.policy import Rule
from exporter.text.values import InvalidValue, Misplaced, describe, quote, refuse_secrets, unknown_name

MAX_RULES: Final = 100
_MAX_WORDS: Final = 20
_MAX_PATH: Final = 1024
_NEAR: Final = 0.75
_SETTLE: Final = Duration(0, 86400)
_SECONDS: Final = Integer(0, 2**31 - 1, "whole seconds")


def _name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", value):
        raise InvalidValue("1 to 64 letters, digits, dots, dashes and underscores")
    return value


def _words(value: object, known: tuple[str, ...]) -> tuple[str, ...]:
    """Any words: Azure may add some. `_warnings` names those that this version does not know."""
    expected = "a non-empty list of words, such as " + ", ".join(quote(word) for word in known)
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_WORDS:
        raise InvalidValue(expected)
    for word in value:
        if not isinstance(word, str) or not word.isprintable() or not word.strip():
            raise InvalidValue(expected)
    return tuple(dict.fromkeys(value))


def _settle(value: object) -> float | None:
    """Seconds; 0 asks for nothing."""
    return _SETTLE.from_toml(value) or None


def _require_file(value: object, platform: str = sys.platform) -> str:
    """An absolute path in which `{event_id}` may stand once: as a whole folder name, or anywhere in the last name.

    `core.policy.prepared_path` fills it in, and refuses an event id with a separator or `..` in it.
    """
    example = r"'C:\app\ready\{event_id}'" if platform == "win32" else '"/run/app/ready/{event_id}"'
    expected = (
        'an absolute path without "..", in which "{event_id}" may stand once, as a whole folder name or in the last '
        f"name, such as {example}"
    )
    if isinstance(value, str):
        refuse_escapes(value)
    if not isinstance(value, str) or not value.isprintable() or len(value) > _MAX_PATH:
        raise InvalidValue(expected)
    if not is_absolute(value, platform):
        raise InvalidValue(expected)
    *folders, last = re.split(r"[/\\]", value)
    if not last or ".." in (*folders, last) or value.count("{event_id}") > 1:
        raise InvalidValue(expected)
    rest = "".join(folder for folder in folders if folder != "{event_id}") + last.replace("{event_id}", "")
    if "{" in rest or "}" in rest:
        raise InvalidValue(expected)
    file_path(value.replace("{event_id}", "id"), platform)
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("true or false")
    return value


_READERS: Final[Mapping[str, Any]] = {
    "name": _name,
    "event_type": lambda value: _words(value, KNOWN_TYPES),
    "event_source": lambda value: _words(value, KNOWN_SOURCES),
    "min_duration": _SECONDS.from_toml,
    "max_duration": _SECONDS.from_toml,
    "settle": _settle,
    "require_file": _require_file,
    "when_quiet": _boolean,
}
"""How each key of a rule is read: the keys are the fields of `Rule`."""


@dataclass(frozen=True, slots=True)
class RulesRead:
    """What became of the list: the rules that are right, and sentences about those that are not."""

    rules: tuple[Rule, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def read_rules(value: object, where: str) -> RulesRead:
    """The rules of `[approval] rules`; `where` names file and key in the sentences. Never raises."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        return RulesRead((), (f"{where}: expected a list of tables, found {describe(value)}",), ())
    if len(value) > MAX_RULES:
        return RulesRead((), (f"{where}: expected at most {MAX_RULES} rules, found {len(value)}",), ())
    rules: list[Rule] = []
    errors: list[str] = []
    for number, table in enumerate(value, 1):
        rule_errors, rule = _read_rule(table, f"{where} #{number}")
        errors += rule_errors
        if rule is not None:
            rules.append(rule)
    names = [table.get("name") for table in value]
    errors += [
        f"{where} #{number}: name: expected a name of its own, found {describe(name)} a second time"
        for number, name in enumerate(names, 1)
        if isinstance(name, str) and name in names[: number - 1]
    ]
    return RulesRead(tuple(rules), tuple(errors), tuple(_warnings(rules, where)))


def _read_rule(table: Mapping[str, object], where: str) -> tuple[list[str], Rule | None]:
    errors = []
    fields: dict[str, Any] = {}
    for key, value in table.items():
        reader = _READERS.get(key)
        if reader is None:
            errors.append(f"{where}: {unknown_name('key', key, _READERS)}")
            continue
        try:
            refuse_secrets(value, "a path" if key == "require_file" else "what belongs here")
            fields[key] = reader(value)
        except Misplaced as error:
            errors.append(f"{where}: {key}: {error}")
        except InvalidValue as error:
            errors.append(f"{where}: {key}: expected {error}, found {describe(value)}")
    errors += [
        f"{where}: {key}: missing, every rule names its {'own name' if key == 'name' else 'event types'}"
        for key in ("name", "event_type")
        if key not in table
    ]
    low, high = fields.get("min_duration"), fields.get("max_duration")
    if low is not None and high is not None and low > high:
        errors.append(f"{where}: min_duration: expected at most max_duration ({high}), found the integer {low}")
    return errors, None if errors else Rule(**fields)


def _warnings(rules: list[Rule], where: str) -> list[str]:
    return [
        f"{where}: rule {quote(rule.name)}: this version does not know {quote(word)}{_near_miss(word, known)};"
        " such an event is never approved"
        for rule in rules
        for known, words in ((KNOWN_TYPES, rule.event_type), (KNOWN_SOURCES, rule.event_source or ()))
        for word in words
        if word not in known
    ]


def _near_miss(word: str, known: tuple[str, ...]) -> str:
    """The known word that was probably meant, for the end of a sentence; nothing where none is near."""
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(word.strip().lower(), by_lower_case, 1, _NEAR)
    return f" (did you mean {quote(by_lower_case[near[0]])}? words match exactly)" if near else ""
