"""The approval rules of the settings file: `[approval] rules`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from exporter.config.types import (
    Duration,
    Integer,
    InvalidValue,
    Misplaced,
    describe,
    is_absolute,
    quote,
    refuse_secrets,
)

# Words that match exactly. Others pass with a warning, since Azure may add words; a near miss is named in it.
EVENT_TYPES = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")
EVENT_SOURCES = ("Platform", "User")

MAX_RULES = 100
_MAX_WORDS = 20
_MAX_PATH = 1024
_SETTLE = Duration(0, 86400)
_SECONDS = Integer(0, 2**31 - 1, "whole seconds")


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """One rule. What is not asked for is empty, None, 0 or False. `settle` and the durations are in seconds."""

    name: str
    event_type: tuple[str, ...]
    event_source: tuple[str, ...] = ()
    min_duration: int | None = None
    max_duration: int | None = None
    settle: float = 0.0
    require_file: str = ""
    when_quiet: bool = False


DEFAULT_RULES = (
    RuleSettings("user-initiated", ("Reboot", "Redeploy"), event_source=("User",)),
    RuleSettings("short-freeze", ("Freeze",), min_duration=0, max_duration=8),
)


def _name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", value):
        raise InvalidValue("1 to 64 letters, digits, dots, dashes and underscores")
    return value


def _words(value: object, known: tuple[str, ...]) -> tuple[str, ...]:
    expected = "a non-empty list of words, such as " + ", ".join(quote(word) for word in known)
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_WORDS:
        raise InvalidValue(expected)
    for word in value:
        if not isinstance(word, str) or not word.isprintable() or not word.strip():
            raise InvalidValue(expected)
    return tuple(dict.fromkeys(value))


def _hint(word: str, known: tuple[str, ...]) -> str:
    near = _near_miss(word, known)
    return f" (did you mean {quote(near)}? words match exactly)" if near else ""


def _near_miss(word: str, known: tuple[str, ...]) -> str:
    if word in known:
        return ""
    lowered = {candidate.lower(): candidate for candidate in known}
    return next((lowered[hit] for hit in difflib.get_close_matches(word.strip().lower(), lowered, 1, 0.75)), "")


def _settle(value: object) -> float:
    return _SETTLE.from_toml(value) or 0.0


def _require_file(value: object) -> str:
    """An absolute path in which `{event_id}` may stand once: as a whole folder name, or anywhere in the last name.

    Whoever fills it in must still refuse an event id with a separator or `..` in it.
    """
    expected = (
        'an absolute path without "..", in which "{event_id}" may stand once, as a whole folder name or in the last '
        'name, such as "/run/app/ready/{event_id}"'
    )
    if not isinstance(value, str) or not value.isprintable() or len(value) > _MAX_PATH or not is_absolute(value):
        raise InvalidValue(expected)
    *folders, last = re.split(r"[/\\]", value)
    if not last or ".." in (*folders, last) or value.count("{event_id}") > 1:
        raise InvalidValue(expected)
    rest = "".join(folder for folder in folders if folder != "{event_id}") + last.replace("{event_id}", "")
    if "{" in rest or "}" in rest:
        raise InvalidValue(expected)
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("true or false")
    return value


_READERS: Mapping[str, Any] = {
    "name": _name,
    "event_type": lambda value: _words(value, EVENT_TYPES),
    "event_source": lambda value: _words(value, EVENT_SOURCES),
    "min_duration": _SECONDS.from_toml,
    "max_duration": _SECONDS.from_toml,
    "settle": _settle,
    "require_file": _require_file,
    "when_quiet": _boolean,
}


@dataclass(frozen=True, slots=True)
class RulesRead:
    """What became of the list: the rules that are right, and sentences about those that are not."""

    rules: tuple[RuleSettings, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def read_rules(value: object, where: str) -> RulesRead:
    """The rules of `[approval] rules`; `where` names file and key in the sentences. Never raises."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        return RulesRead((), (f"{where}: expected a list of tables, found {describe(value)}",), ())
    if len(value) > MAX_RULES:
        return RulesRead((), (f"{where}: expected at most {MAX_RULES} rules, found {len(value)}",), ())
    rules: list[RuleSettings] = []
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


def _read_rule(table: Mapping[str, object], where: str) -> tuple[list[str], RuleSettings | None]:
    errors = []
    found: dict[str, Any] = {}
    for key, value in table.items():
        reader = _READERS.get(key)
        if reader is None:
            errors.append(f"{where}: {unknown('key', key, _READERS)}")
            continue
        try:
            refuse_secrets(value, "a path" if key == "require_file" else "what belongs here")
            found[key] = reader(value)
        except Misplaced as error:
            errors.append(f"{where}: {key}: {error}")
        except InvalidValue as error:
            errors.append(f"{where}: {key}: expected {error}, found {describe(error.found or value)}")
    errors += [
        f"{where}: {field}: missing, every rule names its {'own name' if field == 'name' else 'event types'}"
        for field in ("name", "event_type")
        if field not in table
    ]
    low, high = found.get("min_duration"), found.get("max_duration")
    if low is not None and high is not None and low > high:
        errors.append(f"{where}: min_duration: expected at most max_duration ({high}), found the integer {low}")
    return errors, None if errors else RuleSettings(**found)


def _warnings(rules: list[RuleSettings], where: str) -> list[str]:
    return [
        f"{where}: rule {quote(rule.name)}: this version does not know {quote(word)}{_hint(word, known)};"
        " such an event is never approved"
        for rule in rules
        for known, words in ((EVENT_TYPES, rule.event_type), (EVENT_SOURCES, rule.event_source))
        for word in words
        if word not in known
    ]


def unknown(what: str, name: str, known: Mapping[str, object]) -> str:
    """The sentence for a section or key that does not exist, with the nearest that does."""
    hint = difflib.get_close_matches(name, list(known), 1)
    listing = f"did you mean {hint[0]}?" if hint else "expected one of " + ", ".join(known)
    return f"unknown {what} {describe(name)}; {listing}"


def show_rules(rules: tuple[RuleSettings, ...]) -> str:
    """The rules as TOML: a list of inline tables, without what a rule does not ask for."""
    if not rules:
        return "[]"
    return "[\n" + "".join(f"  {_show_rule(rule)},\n" for rule in rules) + "]"


def _show_rule(rule: RuleSettings) -> str:
    parts = []
    for field in fields(rule):
        value = getattr(rule, field.name)
        if value in (None, (), "", False, 0.0) and not (isinstance(value, int) and field.name.endswith("_duration")):
            continue
        parts.append(f"{field.name} = {_show_value(field.name, value)}")
    return "{ " + ", ".join(parts) + " }"


def _show_value(key: str, value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(quote(word) for word in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if key == "settle":
        return _SETTLE.show(value)
    return quote(value) if isinstance(value, str) else str(value)
