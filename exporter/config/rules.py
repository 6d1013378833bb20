"""The approval rules of the settings file: `[approval] rules`, parsed into `core.policy.Rule`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import cache
from typing import Any, Final

from msgspec.structs import fields

from exporter.config.types import Duration, Integer, file_path, is_absolute, refuse_escapes
from exporter.core.document import KNOWN_SOURCES, KNOWN_TYPES
from exporter.core.hours import DAYS, WHOLE_DAY, Hours
from exporter.core.policy import Rule
from exporter.text.format import format_duration
from exporter.text.values import InvalidValue, Misplaced, describe, near_miss, quote, refuse_secrets, unknown_name

MAX_RULES: Final = 100
_MAX_WORDS: Final = 20
_MAX_PATH: Final = 1024
_MAX_ZONE: Final = 100
_SETTLE: Final = Duration(0, 86400)
_SECONDS: Final = Integer(0, 2**31 - 1, "whole seconds")
_BETWEEN: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-(?:([01][0-9]|2[0-3]):([0-5][0-9])|24:00)", re.ASCII)
_NO_ZONES: Final = frozenset({"Factory", "localtime", "posixrules"})
"""Files in the zone directory that aren't zones: one has no place, the others depend on the machine's settings."""


def _name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", value):
        raise InvalidValue("1 to 64 letters, digits, dots, dashes, and underscores")
    return value


def _words(value: object, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return any words: Azure may add some. `_warnings` reports those that are unknown to this version."""
    expected = "a non-empty list of words, for example " + ", ".join(quote(word) for word in known)
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_WORDS:
        raise InvalidValue(expected)
    for word in value:
        if not isinstance(word, str) or not word.isprintable() or not word.strip():
            raise InvalidValue(expected)
    return tuple(dict.fromkeys(value))


def _require_file(value: object, platform: str = sys.platform) -> str:
    """Return an absolute path that may contain `{event_id}` once: as a directory name, or anywhere in the file name.

    `core.policy.prepared_path` fills it in, and rejects an event id with a separator or `..`. Raises `InvalidValue`.
    """
    example = r"'C:\app\ready\{event_id}'" if platform == "win32" else '"/run/app/ready/{event_id}"'
    expected = (
        'an absolute path without "..", with "{event_id}" at most once, as a directory name or in the file name, for '
        f"example {example}"
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


def _between(value: object) -> tuple[int, int]:
    """Return start and end in minutes after midnight. Raises `InvalidValue`."""
    match = _BETWEEN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidValue('a window as "HH:MM-HH:MM", from "00:00" to "24:00", for example "22:00-05:00"')
    hour, minute, end_hour, end_minute = match.groups()
    start = int(hour) * 60 + int(minute)
    end = WHOLE_DAY if end_hour is None else int(end_hour) * 60 + int(end_minute)
    if start == end:
        raise InvalidValue('a window with different start and end ("00:00-24:00" is the whole day)')
    return start, end


def _days(value: object) -> tuple[int, ...]:
    """Return the days of the week, 0 for Monday, in order. Raises `InvalidValue`."""
    expected = "a non-empty list of days: " + ", ".join(quote(day) for day in DAYS)
    if not isinstance(value, list) or not value or len(value) > _MAX_WORDS:
        raise InvalidValue(expected)
    for day in value:
        if not isinstance(day, str) or day not in DAYS:
            near = [known for known in DAYS if isinstance(day, str) and day[:3].lower() == known.lower()]
            hint = f" (did you mean {quote(near[0])}?)" if near else ""
            raise Misplaced(f"expected {expected}, found {describe(day)} in it{hint}")
    return tuple(number for number, day in enumerate(DAYS) if day in value)


@cache
def _zone_names() -> frozenset[str]:
    """Return the names of all zones in the data of this machine or of the package tzdata. Reads about 600 files."""
    from zoneinfo import available_timezones  # noqa: PLC0415  # only a rule with a zone needs it

    return frozenset(available_timezones()) - _NO_ZONES


def _load_zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo  # noqa: PLC0415  # only a rule with a zone needs it

    return ZoneInfo(name)


def read_zone(
    value: object, names: Callable[[], Collection[str]] = _zone_names, load: Callable[[str], tzinfo] = _load_zone
) -> tuple[str, tzinfo]:
    """Return name and value of a time zone of the IANA database. Raises `InvalidValue`.

    The name must be in `names`, with the same case: paths, and other cases on a case-insensitive file system, never
    reach `load`, which raises OSError or ValueError if there is no data. UTC needs no data.
    """
    if value == "UTC":
        return "UTC", UTC
    if not isinstance(value, str) or not value:
        raise InvalidValue('the name of an IANA time zone, for example "Europe/Berlin" or "UTC"')
    known = names()
    if not known:
        raise Misplaced(
            f"{describe(value)} is unknown, since neither this machine nor Python has time zone data; install the "
            "package tzdata (of the system or of Python)"
        )
    if value not in known:
        # Abbreviations get no suggestion: CEST and EST are seven hours apart.
        near = near_miss(value[:_MAX_ZONE], [zone for zone in known if "/" in zone])
        raise Misplaced(f"expected the name of an IANA time zone, found {describe(value)}{near}")
    try:
        return value, load(value)
    except (OSError, ValueError) as error:
        raise Misplaced(f"the data of time zone {describe(value)} cannot be read: {type(error).__name__}") from error


_READERS: Final[Mapping[str, Any]] = {
    "name": _name,
    "event_type": lambda value: _words(value, KNOWN_TYPES),
    "event_source": lambda value: _words(value, KNOWN_SOURCES),
    "min_duration": _SECONDS.read,
    "max_duration": _SECONDS.read,
    "settle": lambda value: _SETTLE.read(value) or None,  # 0: no condition
    "require_file": _require_file,
    "when_quiet": _boolean,
    "max_resources": Integer(1, 2**31 - 1, "a whole number").read,
    "between": _between,
    "days": _days,
    "timezone": read_zone,
}
"""Readers of the keys of a rule. The keys are the fields of `Rule`, except the last three, which form its `hours`."""


def rule_table(rule: Rule) -> dict[str, Any]:
    """Return a rule as JSON values for `read_rules`: a table of the settings file, with only the keys that it sets."""
    table: dict[str, Any] = {}
    for item in fields(rule):
        value = getattr(rule, item.name)
        if value is None or value == item.default:
            continue
        if isinstance(value, Hours):
            table |= value.table
        elif isinstance(value, float):
            table[item.name] = format_duration(value)
        else:
            table[item.name] = [*value] if isinstance(value, tuple) else value
    return table


@dataclass(frozen=True, slots=True)
class RulesRead:
    """The valid rules, and errors and warnings as sentences."""

    rules: tuple[Rule, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def read_rules(value: object, where: str, platform: str = sys.platform) -> RulesRead:
    """Parse `[approval] rules`; `where` names file and key in errors and warnings. Never raises.

    Paths must be valid on `platform`; on Linux, Windows paths are valid too.
    """
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        return RulesRead((), (f"{where}: expected a list of tables, found {describe(value)}",), ())
    if len(value) > MAX_RULES:
        return RulesRead((), (f"{where}: expected at most {MAX_RULES} rules, found {len(value)}",), ())
    rules: list[Rule] = []
    errors: list[str] = []
    for number, table in enumerate(value, 1):
        rule_errors, rule = _read_rule(table, f"{where} #{number}", platform)
        errors += rule_errors
        if rule is not None:
            rules.append(rule)
    names = [table.get("name") for table in value]
    errors += [
        f"{where} #{number}: name: expected a unique name, found {describe(name)} twice"
        for number, name in enumerate(names, 1)
        if isinstance(name, str) and name in names[: number - 1]
    ]
    return RulesRead(tuple(rules), tuple(errors), tuple(_warnings(rules, where)))


def _read_rule(table: Mapping[str, object], where: str, platform: str) -> tuple[list[str], Rule | None]:
    errors = []
    fields: dict[str, Any] = {}
    for key, value in table.items():
        reader = _READERS.get(key)
        if reader is None:
            errors.append(f"{where}: {unknown_name('key', key, _READERS)}")
            continue
        try:
            refuse_secrets(value, "a path" if key == "require_file" else "what belongs here")
            fields[key] = _require_file(value, platform) if key == "require_file" else reader(value)
        except Misplaced as error:
            errors.append(f"{where}: {key}: {error}")
        except InvalidValue as error:
            errors.append(f"{where}: {key}: expected {error}, found {describe(value)}")
    errors += [
        f"{where}: {key}: missing; every rule needs {'a name' if key == 'name' else 'event types'}"
        for key in ("name", "event_type")
        if key not in table
    ]
    low, high = fields.get("min_duration"), fields.get("max_duration")
    if low is not None and high is not None and low > high:
        errors.append(f"{where}: min_duration: expected at most max_duration ({high}), found the integer {low}")
    if "timezone" in table and not {"between", "days"} & {*table}:
        errors.append(f"{where}: timezone: set without between or days; add one of them or remove it")
    return errors, None if errors else _rule(fields)


def _rule(fields: Mapping[str, Any]) -> Rule:
    others = {key: value for key, value in fields.items() if key not in ("between", "days", "timezone")}
    if len(others) == len(fields):
        return Rule(**others)
    start, end = fields.get("between", (0, WHOLE_DAY))
    timezone, zone = fields.get("timezone", ("UTC", UTC))
    return Rule(**others, hours=Hours(start, end, fields.get("days", Hours().days), timezone, zone))


def _warnings(rules: list[Rule], where: str) -> Iterator[str]:
    for rule in rules:
        of = f"{where}: rule {quote(rule.name)}"
        for known, words in ((KNOWN_TYPES, rule.event_type), (KNOWN_SOURCES, rule.event_source or ())):
            for word in [word for word in words if word not in known]:
                hint = near_miss(word, known)
                yield f"{of}: {quote(word)} is unknown to this version{hint}; no such event is ever approved"
        if rule.require_file and "{event_id}" not in rule.require_file:
            yield (
                f'{of}: require_file has no "{{event_id}}", so one file satisfies the rule for every later event; add '
                '"{event_id}" to the path'
            )
