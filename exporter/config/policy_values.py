"""A policy as JSON values, as a recording keeps it: written as the settings file has it, and read back by its readers.

    {"mode": "enforce", "coordination": "leader", "takeover_after": "never", "hold_file": "", "rules": [{"name": …}, …]}

A rule has the keys that it asks for, and no others. A recording may come from a later version, or from anybody: what
can't be read whole is not read in part, since a rule without one of its conditions approves more than the rule did.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from exporter.config.rules import read_rules, rule_table
from exporter.config.schema import ApprovalSettings, Setting, settings_of
from exporter.config.types import Text
from exporter.core.policy import Mode, Policy, Rule
from exporter.text.values import InvalidValue, Misplaced, describe, refuse_misplaced, unknown_name

MAX_FAULTS: Final = 5
MAX_PATH: Final = 4096
_RULES: Final = "rules"


def policy_values(policy: Policy) -> dict[str, Any]:
    """The policy as the `[approval]` section of a settings file would have it."""
    values = {key: _setting_value(setting, getattr(policy, key)) for key, setting in _settings().items()}
    return {**values, _RULES: [rule_table(rule) for rule in policy.rules]}


def _settings() -> dict[str, Setting]:
    return settings_of("approval")


def _setting_value(setting: Setting, value: object) -> Any:
    return tomllib.loads(f"value = {setting.kind.show(value)}")["value"]


@dataclass(frozen=True, slots=True)
class PolicyRead:
    """A policy that was read back. With `faults`, sentences, it is not known: `policy` has its mode and no rule."""

    policy: Policy
    faults: tuple[str, ...] = ()


def read_policy(value: object) -> PolicyRead:
    """The policy of such values. Never raises.

    Paths are those of the machine on which it was in force: nothing is looked at there, so they are only read as text.
    """
    if not isinstance(value, Mapping):
        return PolicyRead(Policy(Mode.OFF, rules=()), (f"expected a table, found {describe(value)}",))
    faults = [unknown_name("key", key, (*_settings(), _RULES)) for key in value if key not in (*_settings(), _RULES)]
    faults += [f"{key}: missing" for key in (*_settings(), _RULES) if key not in value]
    read: dict[str, Any] = {}
    for key, setting in _settings().items():
        if key in value:
            try:
                read[key] = _path(value[key]) if _is_path(setting) else setting.kind.read(value[key])
            except Misplaced as error:
                faults.append(f"{key}: {error}")
            except InvalidValue as error:
                faults.append(f"{key}: expected {error}, found {describe(value[key])}")
    rules, rule_faults = _rules(value.get(_RULES, []))
    faults += rule_faults
    if faults:
        more = (f"and {len(faults) - MAX_FAULTS} more",) if len(faults) > MAX_FAULTS else ()
        return PolicyRead(Policy(read.get("mode", Mode.OFF), rules=()), (*faults[:MAX_FAULTS], *more))
    return PolicyRead(ApprovalSettings(**read, rules=rules).policy)


def _is_path(setting: Setting) -> bool:
    return isinstance(setting.kind, Text) and setting.kind.path


def _path(value: object, *, empty: bool = True) -> str:
    """A path as it was written, `empty` for none where that is a value."""
    if not isinstance(value, str) or len(value) > MAX_PATH or not value.isprintable() or not (value or empty):
        raise InvalidValue("a path on one line")
    refuse_misplaced(value, "a path")
    return value


def _rules(value: object) -> tuple[tuple[Rule, ...], list[str]]:
    """As `read_rules`, with paths of any system: a recording of Linux is replayed on Windows too."""
    paths: dict[object, str] = {}
    faults: list[str] = []
    tables = []
    for table in value if isinstance(value, list) else ():
        if isinstance(table, dict) and "require_file" in table:
            try:
                paths[table.get("name")] = _path(table["require_file"], empty=False)
            except (InvalidValue, TypeError):  # or a name that can't be hashed, which `read_rules` refuses too
                faults.append("rules: require_file: expected a path on one line, in a rule with a name")
            table = {key: given for key, given in table.items() if key != "require_file"}  # noqa: PLW2901  # the rest of it
        tables.append(table)
    read = read_rules(tables if isinstance(value, list) else value, _RULES)
    rules = tuple(replace(rule, require_file=paths.get(rule.name, "")) for rule in read.rules)
    return rules, [*faults, *read.errors]
