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

from exporter.config.rules import read_rules, rule_table
from exporter.config.schema import ApprovalSettings, settings_of
from exporter.core.policy import Mode, Policy
from exporter.text.values import InvalidValue, Misplaced, describe, refuse_misplaced, unknown_name

MAX_FAULTS: Final = 5
MAX_PATH: Final = 4096
_RULES: Final = "rules"


def policy_values(policy: Policy) -> dict[str, Any]:
    """The policy as the `[approval]` section of a settings file would have it."""
    shown = [f"{key} = {setting.kind.show(getattr(policy, key))}" for key, setting in settings_of("approval").items()]
    return {**tomllib.loads("\n".join(shown)), _RULES: [rule_table(rule) for rule in policy.rules]}


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
    settings = settings_of("approval")
    known = (*settings, _RULES)
    faults = [unknown_name("key", key, known) for key in value if key not in known]
    faults += [f"{key}: missing" for key in known if key not in value]
    read: dict[str, Any] = {}
    for key, setting in settings.items():
        if key in value:
            try:
                read[key] = _path(value[key]) if key == "hold_file" else setting.kind.read(value[key])
            except Misplaced as error:
                faults.append(f"{key}: {error}")
            except InvalidValue as error:
                faults.append(f"{key}: expected {error}, found {describe(value[key])}")
    rules = read_rules(value.get(_RULES, []), _RULES, "linux")  # with the paths of any system
    faults += rules.errors
    if faults:
        more = (f"and {len(faults) - MAX_FAULTS} more",) if len(faults) > MAX_FAULTS else ()
        return PolicyRead(Policy(read.get("mode", Mode.OFF), rules=()), (*faults[:MAX_FAULTS], *more))
    return PolicyRead(ApprovalSettings(**read, rules=rules.rules).policy)


def _path(value: object) -> str:
    """A path as it was written, "" for none."""
    if not isinstance(value, str) or len(value) > MAX_PATH or not value.isprintable():
        raise InvalidValue("a path on one line")
    refuse_misplaced(value, "a path")
    return value
