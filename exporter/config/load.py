"""All settings at once: from flags, environment and file, checked one by one and together.

parser = FlagParser(...); add_flags(parser)            every setting as a flag, from the one definition
settings = load(parser.parse_args(), os.environ)       or ConfigError with every error, each a sentence
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from exporter.config.event_hubs import read_event_hubs
from exporter.config.otlp import read_otlp
from exporter.config.places import (
    SERVICE_VARIABLE,
    events_place,
    hidden_by_service,
    hold_place,
    ready_place,
    same_folder,
)
from exporter.config.rules import read_rules, rule_table
from exporter.config.schema import SECTIONS, ApprovalSettings, Settings, settings_of
from exporter.config.sources import CONFIG_ENV, CONFIG_FLAG, ReadFile, Sources, given_flags, read_toml
from exporter.config.types import KNOWN_API_VERSIONS
from exporter.core.document import KNOWN_TYPES
from exporter.core.policy import Coordination, Mode, Policy
from exporter.files import read_capped, read_trusted, refuse_foreign
from exporter.text.values import InvalidValue, Misplaced, describe, near_miss, quote, refuse_misplaced, unknown_name


class ConfigError(Exception):
    """The settings are wrong. `errors` are sentences, each with file and key, flag or variable, none with a secret."""

    def __init__(self, errors: tuple[str, ...]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


def config_path(flags: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """The path of the settings file, from the flag, else from the environment; "" for none.

    An empty flag means none, too. Raises `InvalidValue` with a sentence for what is a secret and no path.
    """
    given: str | None = vars(flags).get("config.file")
    path, origin = (environ.get(CONFIG_ENV, ""), CONFIG_ENV) if given is None else (given, CONFIG_FLAG)
    try:
        refuse_misplaced(path, "a path")
    except Misplaced as error:
        raise InvalidValue(f"{origin}: {error}") from None
    return path


def load(flags: argparse.Namespace, environ: Mapping[str, str], read_file: ReadFile = read_trusted) -> Settings:
    """The settings from flags, environment, OTEL_* variables and file. Raises `ConfigError` with all errors."""
    errors: list[str] = []
    path = ""
    document: dict[str, Any] = {}
    try:
        path = config_path(flags, environ)
        document = read_toml(path, read_file) if path else {}
    except InvalidValue as error:
        errors.append(str(error))
    return _read(Sources(given_flags(flags), environ, document, path, errors), SECTIONS, read_file)


def load_policy(path: str, read_file: ReadFile = read_capped) -> Settings:
    """The settings with the `[approval]` of this file alone, whatever flags, environment and other sections say.

    Raises `ConfigError` with all errors: an unknown name in any section is one, since it may be a misspelled one.
    """
    try:
        document = read_toml(path, read_file)
    except InvalidValue as error:
        raise ConfigError((str(error),)) from error
    return _read(Sources({}, {}, document, path), ("approval",), read_file)


def _read(sources: Sources, sections: Iterable[str], read_file: ReadFile) -> Settings:
    """The settings with these sections, checked one by one and together."""
    sources.check_names()
    readers: dict[str, Callable[[Sources], Any]] = {
        "approval": _approval,
        "event_hubs": lambda given: read_event_hubs(given, read_file),
        "otlp": read_otlp,
    }
    made = {
        name: readers[name](sources) if name in readers else SECTIONS[name](**sources.values(name)) for name in sections
    }
    settings = Settings(**made, config_file=sources.path, approval_given=sources.has("approval"))
    for check in (_check_together, _check_event_files, _check_places, _check_owners):
        check(settings, sources)
    if sources.errors:
        raise ConfigError(tuple(sources.errors))
    return replace(settings, warnings=tuple(sources.warnings))


def _approval(sources: Sources) -> ApprovalSettings:
    values, table = sources.values("approval"), sources.document.get("approval")
    if isinstance(table, dict) and "rules" in table:
        read = read_rules(table["rules"], sources.key("approval", "rules"))
        sources.errors += read.errors
        sources.warnings += read.warnings
        values["rules"] = read.rules
    return ApprovalSettings(**values)


def _check_together(settings: Settings, sources: Sources) -> None:
    """Add what is right alone, and doubtful or wrong beside the rest."""
    source, approval, recording = settings.source, settings.approval, settings.recording
    if source.api_version not in KNOWN_API_VERSIONS:
        known = ", ".join(KNOWN_API_VERSIONS)
        sources.warnings.append(f"source.api_version: {source.api_version} is not one this version knows ({known})")
    if approval.takeover_after is not None and approval.coordination is not Coordination.LEADER:
        sources.warnings.append(
            f"approval.takeover_after: without effect while coordination is {approval.coordination}"
        )
    if approval.mode is Mode.ENFORCE and not approval.rules:
        sources.warnings.append("approval.rules: empty, so nothing is ever approved")
    for word in settings.gate.event_types:
        if word not in KNOWN_TYPES:
            origin = sources.pick(settings_of("gate")["event_types"]).origin
            hint = near_miss(word, KNOWN_TYPES)
            sources.warnings.append(f"{origin}: this version does not know {quote(word)}{hint}")
    if recording.path and os.path.normcase(recording.path) == os.path.normcase(settings.outbox.path):
        sources.errors.append(
            f"{sources.key('recording', 'path')}: expected another file than outbox.path, found the same"
        )


def _awaited(settings: Settings, sources: Sources) -> Iterator[tuple[str, str, str]]:
    """The files that approvals wait for: where each was set, its path, and the place that we ship for it."""
    approval = settings.approval
    if approval.hold_file:
        yield sources.pick(settings_of("approval")["hold_file"]).origin, approval.hold_file, hold_place()
    for rule in approval.rules:
        if rule.require_file:
            origin = f'{sources.key("approval", "rules")}: rule "{rule.name}": require_file'
            yield origin, rule.require_file, ready_place()


def _check_event_files(settings: Settings, sources: Sources) -> None:
    """Add that an approval would wait for a file that the agent itself writes."""
    folder = settings.event_files.path
    for origin, path, _ in _awaited(settings, sources):
        if folder and path.lower().endswith(".json") and same_folder(os.path.dirname(path), folder):
            sources.errors.append(
                f"{origin}: expected a file outside of event_files.path, where the agent itself writes and removes "
                f"such files, found {describe(path)}"
            )


def _check_owners(settings: Settings, sources: Sources) -> None:
    """Refuse certificates and keys of another user: a library opens them, when the first record leaves."""
    event_hubs, otlp = settings.event_hubs, settings.otlp
    paths = {"event_hubs.certificate": event_hubs.certificate} if event_hubs.configured else {}
    if otlp.configured:
        paths |= {f"otlp.{key}": getattr(otlp, key) for key in ("certificate", "client_certificate", "client_key")}
    for key, path in paths.items():
        try:
            refuse_foreign(path)
        except PermissionError as error:
            sources.errors.append(f"{key}: {path}: {error.strerror}")


def _check_places(settings: Settings, sources: Sources) -> None:
    """Add the files that a systemd service may not see as others do: wrong in a service, doubtful elsewhere."""
    files = [*_awaited(settings, sources)]
    if settings.event_files.path:
        origin = sources.pick(settings_of("event_files")["path"]).origin
        files.append((origin, settings.event_files.path, events_place()))
    hidden = hidden_by_service(path for _, path, _ in files)
    found = sources.errors if SERVICE_VARIABLE in sources.environ else sources.warnings
    found += [
        f"{origin}: expected a path outside of {hidden[path]}, of which a systemd service may have its own (as in the "
        f'shipped unit), such as "{place}", found {describe(path)}'
        for origin, path, place in files
        if path in hidden
    ]


# -- a policy as JSON values

MAX_FAULTS: Final = 5
_MAX_PATH: Final = 4096


def policy_values(policy: Policy) -> dict[str, Any]:
    """The policy as the `[approval]` section of a settings file would have it, which is how a recording keeps it:

    {"mode": "enforce", "coordination": "leader", "takeover_after": "never", "hold_file": "", "rules": [{"name": …}, …]}

    A rule has the keys that it asks for, and no others.
    """
    shown = [f"{key} = {setting.kind.show(getattr(policy, key))}" for key, setting in settings_of("approval").items()]
    return {**tomllib.loads("\n".join(shown)), "rules": [rule_table(rule) for rule in policy.rules]}


def value_text(value: Any) -> str:
    """One of these values, for a person."""
    if value is None or value == "":
        return "not set"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True, slots=True)
class PolicyRead:
    """A policy that was read back. With `faults`, sentences, it is not known: `policy` has its mode and no rule."""

    policy: Policy
    faults: tuple[str, ...] = ()


def read_policy(value: object) -> PolicyRead:
    """The policy of such values. Never raises.

    A recording may come from a later version, or from anybody: what can't be read whole is not read in part, since a
    rule without one of its conditions approves more than the rule did.
    Paths are those of the machine on which it was in force: nothing is looked at there, so they are only read as text.
    """
    if not isinstance(value, Mapping):
        return PolicyRead(Policy(Mode.OFF, rules=()), (f"expected a table, found {describe(value)}",))
    settings = settings_of("approval")
    known = (*settings, "rules")
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
    rules = read_rules(value.get("rules", []), "rules", "linux")  # with the paths of any system
    faults += rules.errors
    if faults:
        more = (f"and {len(faults) - MAX_FAULTS} more",) if len(faults) > MAX_FAULTS else ()
        return PolicyRead(Policy(read.get("mode", Mode.OFF), rules=()), (*faults[:MAX_FAULTS], *more))
    return PolicyRead(ApprovalSettings(**read, rules=rules.rules).policy)


def _path(value: object) -> str:
    """A path as it was written, "" for none."""
    if not isinstance(value, str) or len(value) > _MAX_PATH or not value.isprintable():
        raise InvalidValue("a path on one line")
    refuse_misplaced(value, "a path")
    return value
