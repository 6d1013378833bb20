"""The approval rules of the settings file: `[approval] rules`, read into `core.policy.Rule`."""

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
"""Files beside those of the zones: one is of no place, the others are of wherever the machine thinks that it is."""


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


def _between(value: object) -> tuple[int, int]:
    """Start and end in minutes after midnight."""
    match = _BETWEEN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidValue('start and end of a window as "HH:MM-HH:MM", from "00:00" to "24:00", such as "22:00-05:00"')
    hour, minute, end_hour, end_minute = match.groups()
    start = int(hour) * 60 + int(minute)
    end = WHOLE_DAY if end_hour is None else int(end_hour) * 60 + int(end_minute)
    if start == end:
        raise InvalidValue('a window whose end is not its start ("00:00-24:00" is the whole day)')
    return start, end


def _days(value: object) -> tuple[int, ...]:
    """The days of the week, 0 for Monday, in their order."""
    expected = "a non-empty list of days, out of " + ", ".join(quote(day) for day in DAYS)
    if not isinstance(value, list) or not value or len(value) > _MAX_WORDS:
        raise InvalidValue(expected)
    for day in value:
        if not isinstance(day, str) or day not in DAYS:
            near = [known for known in DAYS if isinstance(day, str) and day[:3].lower() == known.lower()]
            hint = f" (did you mean {quote(near[0])}?)" if near else ""
            raise Misplaced(f"expected {expected}, found {describe(day)} among them{hint}")
    return tuple(number for number, day in enumerate(DAYS) if day in value)


@cache
def _zone_names() -> frozenset[str]:
    """The names of all zones of which this machine, or the package tzdata, has the data. It reads some 600 files."""
    from zoneinfo import available_timezones  # noqa: PLC0415  # only a rule with a zone needs it

    return frozenset(available_timezones()) - _NO_ZONES


def _load_zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo  # noqa: PLC0415  # only a rule with a zone needs it

    return ZoneInfo(name)


def read_zone(
    value: object,
    names: Callable[[], Collection[str]] = _zone_names,
    load: Callable[[str], tzinfo] = _load_zone,
) -> tuple[str, tzinfo]:
    """Name and value of a time zone of the IANA database. Raises `InvalidValue`.

    The name is one of `names`, letter by letter: a path, or letters of another case where the file system has one file
    for both, never reach `load`, which raises OSError or ValueError where there is no data. UTC needs none.
    """
    if value == "UTC":
        return "UTC", UTC
    if not isinstance(value, str) or not value:
        raise InvalidValue('the name of a time zone of the IANA database, such as "Europe/Berlin" or "UTC"')
    known = names()
    if not known:
        raise Misplaced(
            f"{describe(value)} is not known: this machine has no data of time zones, and neither has Python; install "
            "the package tzdata of either"
        )
    if value not in known:
        # An abbreviation is near to none: between CEST and EST lie seven hours.
        near = near_miss(value[:_MAX_ZONE], [zone for zone in known if "/" in zone])
        raise Misplaced(f"expected the name of a time zone of the IANA database, found {describe(value)}{near}")
    try:
        return value, load(value)
    except (OSError, ValueError) as error:
        raise Misplaced(f"the data of time zone {describe(value)} can't be read: {type(error).__name__}") from error


_READERS: Final[Mapping[str, Any]] = {
    "name": _name,
    "event_type": lambda value: _words(value, KNOWN_TYPES),
    "event_source": lambda value: _words(value, KNOWN_SOURCES),
    "min_duration": _SECONDS.read,
    "max_duration": _SECONDS.read,
    "settle": lambda value: _SETTLE.read(value) or None,  # 0 asks for nothing
    "require_file": _require_file,
    "when_quiet": _boolean,
    "max_resources": Integer(1, 2**31 - 1, "a whole number").read,
    "between": _between,
    "days": _days,
    "timezone": read_zone,
}
"""How each key of a rule is read: the keys are the fields of `Rule`, but for the last three, which are its `hours`."""


def rule_table(rule: Rule) -> dict[str, Any]:
    """A rule as the settings file has it, without what it does not ask for: JSON values, which `read_rules` takes."""
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
    """What became of the list: the rules that are right, and sentences about those that are not."""

    rules: tuple[Rule, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def read_rules(value: object, where: str, platform: str = sys.platform) -> RulesRead:
    """The rules of `[approval] rules`; `where` names file and key in the sentences. Never raises.

    Paths are those of `platform`; Linux takes those of Windows as well.
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
        f"{where} #{number}: name: expected a name of its own, found {describe(name)} a second time"
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
        f"{where}: {key}: missing, every rule names its {'own name' if key == 'name' else 'event types'}"
        for key in ("name", "event_type")
        if key not in table
    ]
    low, high = fields.get("min_duration"), fields.get("max_duration")
    if low is not None and high is not None and low > high:
        errors.append(f"{where}: min_duration: expected at most max_duration ({high}), found the integer {low}")
    if "timezone" in table and not {"between", "days"} & {*table}:
        errors.append(f"{where}: timezone: expected beside between or days, found alone")
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
            unknown = [word for word in words if word not in known]
            for word in unknown:
                hint = near_miss(word, known)
                yield f"{of}: this version does not know {quote(word)}{hint}; such an event is never approved"
        if rule.require_file and "{event_id}" not in rule.require_file:
            yield (
                f"{of}: require_file is one file for every event: prepared once, it is prepared for ever; with "
                '"{event_id}" in it each event has its own'
            )
