"""All settings: read from flags, environment, and file, and checked separately and together.

parser = FlagParser(...); add_flags(parser)            every setting as a flag
settings = load(parser.parse_args(), os.environ)       or ConfigError with every error
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
from exporter.config.places import SERVICE_VARIABLE, events_place, hidden_paths, hold_place, ready_place, same_folder
from exporter.config.rules import read_rules, rule_table
from exporter.config.schema import SECTIONS, ApprovalSettings, Settings, settings_of
from exporter.config.sources import CONFIG_ENV, CONFIG_FLAG, ReadFile, Sources, given_flags, read_toml
from exporter.config.types import API_VERSIONS
from exporter.core.document import KNOWN_TYPES
from exporter.core.policy import Coordination, Mode, Policy
from exporter.files import read_capped, read_trusted, refuse_foreign
from exporter.text.values import InvalidValue, Misplaced, describe, near_miss, quote, refuse_misplaced, unknown_name


class ConfigError(Exception):
    """Invalid settings. Each of `errors` names the file and key, flag, or variable; none contains a secret."""

    def __init__(self, errors: tuple[str, ...]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


def config_path(flags: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return the path of the settings file, from the flag or else from the environment; "" if there is none.

    An empty flag means no file. Raises `InvalidValue` if the value is a secret instead of a path.
    """
    given: str | None = vars(flags).get("config.file")
    path, origin = (environ.get(CONFIG_ENV, ""), CONFIG_ENV) if given is None else (given, CONFIG_FLAG)
    try:
        refuse_misplaced(path, "a path")
    except Misplaced as error:
        raise InvalidValue(f"{origin}: {error}") from None
    return path


def load(flags: argparse.Namespace, environ: Mapping[str, str], read_file: ReadFile = read_trusted) -> Settings:
    """Return the settings from flags, environment, OTEL_* variables, and file. Raises `ConfigError` with all errors."""
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
    """Return settings with only the `[approval]` section of this file, without flags, environment, and other sections.

    Raises `ConfigError` with all errors. Unknown names in other sections are errors too: they may be misspelled.
    """
    try:
        document = read_toml(path, read_file)
    except InvalidValue as error:
        raise ConfigError((str(error),)) from error
    return _read(Sources({}, {}, document, path), ("approval",), read_file)


def _read(sources: Sources, sections: Iterable[str], read_file: ReadFile) -> Settings:
    """Return the settings with these sections, checked separately and together. Raises `ConfigError`."""
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
    """Add errors and warnings about settings that don't fit together."""
    source, approval, recording = settings.source, settings.approval, settings.recording
    if source.api_version not in API_VERSIONS:
        known = ", ".join(API_VERSIONS)
        sources.warnings.append(f"source.api_version: {source.api_version} is unknown to this version ({known})")
    if approval.takeover_after is not None and approval.coordination is not Coordination.LEADER:
        sources.warnings.append(f"approval.takeover_after: has no effect while coordination is {approval.coordination}")
    if approval.mode is Mode.ENFORCE and not approval.rules:
        sources.warnings.append("approval.rules: empty, so no event is ever approved; add a rule")
    for word in settings.gate.event_types:
        if word not in KNOWN_TYPES:
            origin = sources.pick(settings_of("gate")["event_types"]).origin
            hint = near_miss(word, KNOWN_TYPES)
            sources.warnings.append(f"{origin}: {quote(word)} is unknown to this version{hint}")
    if recording.path and os.path.normcase(recording.path) == os.path.normcase(settings.outbox.path):
        sources.errors.append(
            f"{sources.key('recording', 'path')}: expected a different file than outbox.path, found the same file"
        )


def _awaited(settings: Settings, sources: Sources) -> Iterator[tuple[str, str, str]]:
    """Yield the hold file and the ready files: the origin of the setting, its path, and a recommended path."""
    approval = settings.approval
    if approval.hold_file:
        yield sources.pick(settings_of("approval")["hold_file"]).origin, approval.hold_file, hold_place()
    for rule in approval.rules:
        if rule.require_file:
            origin = f'{sources.key("approval", "rules")}: rule "{rule.name}": require_file'
            yield origin, rule.require_file, ready_place()


def _check_event_files(settings: Settings, sources: Sources) -> None:
    """Add an error for each hold file or ready file that the agent itself could write."""
    folder = settings.event_files.path
    for origin, path, _ in _awaited(settings, sources):
        if folder and path.lower().endswith(".json") and same_folder(os.path.dirname(path), folder):
            sources.errors.append(
                f"{origin}: expected a file outside event_files.path, where the agent writes and removes .json files, "
                f"found {describe(path)}"
            )


def _check_owners(settings: Settings, sources: Sources) -> None:
    """Add an error for each certificate or key of another user: libraries open them only when they send a record."""
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
    """Add paths that a systemd service may see differently: as errors in a service, otherwise as warnings."""
    files = [*_awaited(settings, sources)]
    if settings.event_files.path:
        origin = sources.pick(settings_of("event_files")["path"]).origin
        files.append((origin, settings.event_files.path, events_place()))
    hidden = hidden_paths(path for _, path, _ in files)
    found = sources.errors if SERVICE_VARIABLE in sources.environ else sources.warnings
    found += [
        f"{origin}: expected a path outside {hidden[path]}, which can be a private directory in a systemd service (as "
        f'in the packaged unit), for example "{place}", found {describe(path)}'
        for origin, path, place in files
        if path in hidden
    ]


# -- a policy as JSON values

MAX_FAULTS: Final = 5
_MAX_PATH: Final = 4096


def policy_values(policy: Policy) -> dict[str, Any]:
    """Return the policy as the values of an `[approval]` section, the form in which recordings store it.

    {"mode": "enforce", "coordination": "leader", "takeover_after": "never", "hold_file": "", "rules": [{"name": …}, …]}

    A rule has only the keys that it sets.
    """
    shown = [f"{key} = {setting.kind.show(getattr(policy, key))}" for key, setting in settings_of("approval").items()]
    return {**tomllib.loads("\n".join(shown)), "rules": [rule_table(rule) for rule in policy.rules]}


def value_text(value: Any) -> str:
    """Return one of these values as text; "not set" for None and empty."""
    if value is None or value == "":
        return "not set"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True, slots=True)
class PolicyRead:
    """A policy that was read back. With `faults` (sentences) it's unknown: `policy` then has its mode and no rules."""

    policy: Policy
    faults: tuple[str, ...] = ()


def read_policy(value: object) -> PolicyRead:
    """Return the policy of values from `policy_values`. Never raises.

    A recording may come from a later version or from any source. A policy is read completely or not at all, since a
    rule without one of its conditions would approve more events.
    Paths are those of the machine on which the policy was in force: they are read as text, and not accessed.
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
    """Return a path unchanged, "" for none. Raises `InvalidValue`."""
    if not isinstance(value, str) or len(value) > _MAX_PATH or not value.isprintable():
        raise InvalidValue("a path on one line")
    refuse_misplaced(value, "a path")
    return value
