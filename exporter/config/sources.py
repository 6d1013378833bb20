"""Sources of a setting's value: flag, environment, OTEL_* variable, file, default, in this order of priority.

Also `add_flags`, which adds the flags of all settings to a parser (`command_line.FlagParser`).
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from exporter.config.schema import ENV_PREFIX, SECTIONS, Setting, catalogue, settings_of
from exporter.config.types import SINGLE_QUOTES, SettingType
from exporter.files import TooLarge, WrongEncoding, decoded
from exporter.secrets import redact
from exporter.text.values import InvalidValue, Misplaced, describe, describe_type, nearest, unknown_name

CONFIG_FLAG: Final = "--config.file"
CONFIG_ENV: Final = f"{ENV_PREFIX}CONFIG_FILE"
RULES_ENV: Final = f"{ENV_PREFIX}APPROVAL_RULES"
MAX_CONFIG_BYTES: Final = 1 << 20
MAX_SECRET_BYTES: Final = 64 << 10

_KUBERNETES: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)\Z")
"""Variables that Kubernetes sets in every pod for a Service whose name starts with the prefix of the settings."""

_ESCAPE_ERRORS: Final = re.compile(r"Unescaped '\\'|Invalid hex value|Escaped character is not a Unicode scalar value")
"""Error texts of tomllib for a backslash that isn't a TOML escape."""
_DRIVE: Final = re.compile(r'"(?:[A-Za-z]:|\\)\\')
"""The start of a Windows path in double quotes, on a drive or a share."""

ReadFile = Callable[[str, int], bytes]
"""The signature of `files.read_capped`."""


def environ_of(environ: Mapping[str, str], sections: Iterable[str]) -> dict[str, str]:
    """Return the variables of these sections: a command ignores errors in sections that it doesn't use."""
    wanted = (*(f"{ENV_PREFIX}{section}_".upper() for section in sections), CONFIG_ENV)
    return {name: value for name, value in environ.items() if name.startswith(wanted)}


def read_text(path: str, limit: int, read_file: ReadFile) -> str:
    """Return a small file's text. Raises `InvalidValue`, whose text names the path and never the content."""
    try:
        return decoded(read_file(path, limit))
    except TooLarge:
        raise InvalidValue(f"{path}: expected at most {limit} bytes, found more") from None
    except WrongEncoding as error:
        raise InvalidValue(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise InvalidValue(f"{path}: cannot be read: {reason}") from None


def read_toml(path: str, read_file: ReadFile) -> dict[str, Any]:
    """Return the parsed settings file. Raises `InvalidValue` with the path, and the line of a syntax error."""
    text = read_text(path, MAX_CONFIG_BYTES, read_file)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InvalidValue(f"{path}: expected TOML, found tables nested too deeply") from None
    except ValueError as error:
        hint = f"; {SINGLE_QUOTES}" if _ESCAPE_ERRORS.match(str(error)) or _DRIVE.search(text) else ""
        raise InvalidValue(f"{path}: expected TOML: {redact(str(error))}{hint}") from None


@dataclass(frozen=True, slots=True)
class Picked:
    """A setting's value and its origin: the flag, the variable, or file and key. `ok` is False after an error."""

    value: Any
    origin: str
    layer: str  # "flag", "env", "otel", "file" or "default"
    ok: bool = True


@dataclass(slots=True)
class Sources:
    """All sources of settings, with the errors and warnings so far.

    `flags` are texts by `section.key`, `environ` is the whole environment, `document` is the parsed settings file, and
    `path` its path; "" if there is none.
    """

    flags: Mapping[str, str] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    document: Mapping[str, Any] = field(repr=False)
    path: str
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def key(self, section: str, key: str) -> str:
        """Return the name of a key of the file for errors."""
        return f"{self.path}: [{section}] {key}" if self.path else f"[{section}] {key}"

    def has(self, section: str) -> bool:
        """Return whether any setting of the section was given."""
        settings = settings_of(section).values()
        given = any(setting.name in self.flags or self.environ.get(setting.env) for setting in settings)
        return given or bool(self.document.get(section))

    def values(self, section: str) -> dict[str, Any]:
        """Return the value of each setting of a section, by key."""
        return {key: self.pick(setting).value for key, setting in settings_of(section).items()}

    def pick(self, setting: Setting, otel: Iterable[str] = (), otel_kind: SettingType | None = None) -> Picked:
        """Return the value of the first source that has one; after an error, which is added to `errors`, the default.

        `otel` are the OTEL_* variables for this setting, in order of priority. `otel_kind` is their type; None: the
        setting's type.
        """
        kind = setting.kind
        if setting.name in self.flags:
            return self._read(setting, self.flags[setting.name], setting.flag, "flag", kind)
        if self.environ.get(setting.env):
            return self._read(setting, self.environ[setting.env], setting.env, "env", kind)
        for name in otel:
            if self.environ.get(name):
                return self._read(setting, self.environ[name], name, "otel", otel_kind or kind)
        origin, table = self.key(setting.section, setting.key), self.document.get(setting.section)
        if isinstance(table, dict) and setting.key in table:
            return self._read(setting, table[setting.key], origin, "file", kind)
        return Picked(setting.default, origin, "default")

    def _read(self, setting: Setting, given: Any, origin: str, layer: str, kind: SettingType) -> Picked:
        try:
            return Picked(kind.read(given if layer == "file" else kind.parse(given)), origin, layer)
        except Misplaced as error:
            self.errors.append(f"{origin}: {error}")
        except InvalidValue as error:
            shown = f"{describe_type(given)} that is not shown" if setting.secret else describe(given)
            self.errors.append(f"{origin}: expected {error}, found {shown}")
        return Picked(setting.default, origin, layer, ok=False)

    def check_names(self) -> None:
        """Add unknown sections and keys to the errors, and unknown variables to the warnings.

        Variables only get warnings, since other programs may use the same prefix.
        """
        known = {section: [*settings_of(section)] for section in SECTIONS}
        known["approval"].append("rules")
        for section, table in self.document.items():
            where = self.path or "settings"
            if section not in known and not isinstance(table, dict):
                homes = " or ".join(f"[{home}] {section}" for home, keys in known.items() if section in keys)
                hint = f"; did you mean {homes}?" if homes else ""
                self.errors.append(f"{where}: key {describe(section)} is not in a section{hint}")
            elif section not in known:
                self.errors.append(f"{where}: {unknown_name('section', section, known)}")
            elif not isinstance(table, dict):
                self.errors.append(f"{where}: [{section}]: expected a table, found {describe(table)}")
            else:
                self.errors.extend(
                    f"{where}: [{section}]: {unknown_name('key', key, known[section])}"
                    for key in table
                    if key not in known[section]
                )
        self._check_variables()

    def _check_variables(self) -> None:
        known = [*(setting.env for setting in catalogue()), CONFIG_ENV]
        if self.environ.get(RULES_ENV):
            self.errors.append(f"{RULES_ENV}: not supported; set rules in the settings file, as [approval] rules")
        for name in sorted(self.environ):
            if not name.startswith(ENV_PREFIX) or not self.environ[name] or name in known or name == RULES_ENV:
                continue
            if not _KUBERNETES.search(name):
                hint = f"; did you mean {meant}?" if (meant := nearest(name, known)) else ""
                self.warnings.append(f"{name}: not a setting, ignored{hint}")


class _Refuse(argparse.Action):
    """An action that rejects its flag with `sentence`: the setting isn't read from the command line."""

    def __init__(self, option_strings: list[str], dest: str, sentence: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs="?", help=argparse.SUPPRESS, default=argparse.SUPPRESS)
        self.sentence = sentence

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser.error(f"{self.option_strings[0]}: {self.sentence}")


def add_flags(
    parser: argparse.ArgumentParser, sections: Iterable[str] = tuple(SECTIONS), *, environment: bool = True
) -> None:
    """Add `--config.file` and the flags of every setting of `sections` to `parser`. `load` parses the values.

    Without `environment`, texts don't suggest it for secrets: other users can read that of a Windows service.
    """
    parser.add_argument_group("settings").add_argument(
        CONFIG_FLAG, dest="config.file", metavar="FILE", help=f"TOML file with settings and rules. [{CONFIG_ENV}]"
    )
    for section in sections:
        settings = settings_of(section).values()
        variable = "set {}, or " if environment else ""
        hidden = [each for each in settings if each.secret]
        note = " ".join(f"{s.key} has no flag: {variable.format(s.env)}write it to the file." for s in hidden)
        group = parser.add_argument_group(f"[{section}]", note or None)
        for setting in settings:
            _add_flag(group, setting, environment)
        if section == "approval":
            sentence = "not a flag; set rules in the settings file, as [approval] rules"
            group.add_argument("--approval.rules", action=_Refuse, sentence=sentence)


def _add_flag(group: argparse._ArgumentGroup, setting: Setting, environment: bool) -> None:
    if setting.secret:
        variable = f" or set {setting.env}" if environment else ""
        sentence = (
            "not a flag, since every user of the machine can read command lines; write the secret to the settings "
            f"file{variable}"
        )
        group.add_argument(setting.flag, action=_Refuse, sentence=sentence)
        return
    text = f"{setting.help} Default: {setting.kind.show(setting.default)}. [{setting.env}]".replace("%", "%%")
    group.add_argument(setting.flag, dest=setting.name, metavar=setting.kind.word, help=text)


def given_flags(namespace: argparse.Namespace) -> dict[str, str]:
    """Return the settings that were given as flags, by `section.key`."""
    names = {setting.name for setting in catalogue() if not setting.secret}
    return {name: value for name, value in vars(namespace).items() if name in names and isinstance(value, str)}
