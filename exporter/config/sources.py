"""Where a setting's value comes from: flag, environment, OTEL_* variable, file, default, in that order.

Also `add_flags`, which gives a parser (`command_line.FlagParser`) the flags of all settings.
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
"""What Kubernetes puts into every pod beside a Service whose name begins like ours."""

_ESCAPE_ERRORS: Final = re.compile(r"Unescaped '\\'|Invalid hex value|Escaped character is not a Unicode scalar value")
"""What tomllib says of a backslash that begins no escape of TOML."""
_DRIVE: Final = re.compile(r'"(?:[A-Za-z]:|\\)\\')
"""The beginning of a path of Windows in double quotes, on a drive or on a share."""

ReadFile = Callable[[str, int], bytes]
"""As `files.read_capped`."""


def environ_of(environ: Mapping[str, str], sections: Iterable[str]) -> dict[str, str]:
    """The variables of these sections: a command ignores mistakes in those that it has no use for."""
    wanted = (*(f"{ENV_PREFIX}{section}_".upper() for section in sections), CONFIG_ENV)
    return {name: value for name, value in environ.items() if name.startswith(wanted)}


def read_text(path: str, limit: int, read_file: ReadFile) -> str:
    """A small file's text. Raises `InvalidValue` with a sentence that names the path and never the content."""
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
    """The settings file. Raises `InvalidValue` with a sentence that names the path, and the line of a syntax error."""
    text = read_text(path, MAX_CONFIG_BYTES, read_file)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InvalidValue(f"{path}: expected TOML, found too deep a nesting") from None
    except ValueError as error:
        hint = f"; {SINGLE_QUOTES}" if _ESCAPE_ERRORS.match(str(error)) or _DRIVE.search(text) else ""
        raise InvalidValue(f"{path}: expected TOML: {redact(str(error))}{hint}") from None


@dataclass(frozen=True, slots=True)
class Picked:
    """A setting's value, and where it came from: the flag, the variable, or file and key. Not `ok` after an error."""

    value: Any
    origin: str
    layer: str  # "flag", "env", "otel", "file" or "default"
    ok: bool = True


@dataclass(slots=True)
class Sources:
    """All that was given, with the errors and warnings about it so far.

    `flags` are texts by `section.key`, `environ` is the whole environment, `document` the settings file and `path` its
    path, "" without one.
    """

    flags: Mapping[str, str] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    document: Mapping[str, Any] = field(repr=False)
    path: str
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def key(self, section: str, key: str) -> str:
        """How an error names a key of the file."""
        return f"{self.path}: [{section}] {key}" if self.path else f"[{section}] {key}"

    def has(self, section: str) -> bool:
        """Whether anything of the section was given."""
        settings = settings_of(section).values()
        given = any(setting.name in self.flags or self.environ.get(setting.env) for setting in settings)
        return given or bool(self.document.get(section))

    def values(self, section: str) -> dict[str, Any]:
        """The value of each setting of a section, by key."""
        return {key: self.pick(setting).value for key, setting in settings_of(section).items()}

    def pick(self, setting: Setting, otel: Iterable[str] = (), otel_kind: SettingType | None = None) -> Picked:
        """The value of the first source that has one; the default after an error, which is added to `errors`.

        `otel` are the OTEL_* variables that speak for this setting, the first of them first; `otel_kind` is how they
        are read where that is not as the setting is.
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
        """Add unknown sections and keys to the errors, since a typing error would be silent; variables to the warnings.

        Others may use the prefix of our variables for theirs.
        """
        known = {section: [*settings_of(section)] for section in SECTIONS}
        known["approval"].append("rules")
        for section, table in self.document.items():
            where = self.path or "settings"
            if section not in known and not isinstance(table, dict):
                homes = " or ".join(f"[{home}] {section}" for home, keys in known.items() if section in keys)
                hint = f"; did you mean {homes}?" if homes else ""
                self.errors.append(f"{where}: key {describe(section)} stands outside of any section{hint}")
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
            self.errors.append(f"{RULES_ENV}: rules are read from the file alone; give them there as [approval] rules")
        for name in sorted(self.environ):
            if not name.startswith(ENV_PREFIX) or not self.environ[name] or name in known or name == RULES_ENV:
                continue
            if not _KUBERNETES.search(name):
                hint = f"; did you mean {meant}?" if (meant := nearest(name, known)) else ""
                self.warnings.append(f"{name}: this variable is not a setting and is ignored{hint}")


class _Refuse(argparse.Action):
    """A flag that is refused with a sentence, whatever its value: its setting is not taken from the command line."""

    def __init__(self, option_strings: list[str], dest: str, sentence: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs="?", help=argparse.SUPPRESS, default=argparse.SUPPRESS)
        self.sentence = sentence

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser.error(f"{self.option_strings[0]}: {self.sentence}")


def add_flags(
    parser: argparse.ArgumentParser, sections: Iterable[str] = tuple(SECTIONS), *, environment: bool = True
) -> None:
    """Give `parser` the flag of every setting of `sections`, and `--config.file`. Values stay text until `load`.

    Without `environment` no secret is said to belong there: other users can read that of a service of Windows.
    """
    parser.add_argument_group("settings").add_argument(
        CONFIG_FLAG, dest="config.file", metavar="FILE", help=f"TOML file with settings and rules. [{CONFIG_ENV}]"
    )
    for section in sections:
        settings = settings_of(section).values()
        variable = "set {}, or " if environment else ""
        hidden = [each for each in settings if each.secret]
        note = " ".join(f"{s.key} has no flag: {variable.format(s.env)}write it into the file." for s in hidden)
        group = parser.add_argument_group(f"[{section}]", note or None)
        for setting in settings:
            _add_flag(group, setting, environment)
        if section == "approval":
            sentence = "rules are read from the settings file alone; give them there as [approval] rules"
            group.add_argument("--approval.rules", action=_Refuse, sentence=sentence)


def _add_flag(group: argparse._ArgumentGroup, setting: Setting, environment: bool) -> None:
    if setting.secret:
        variable = f" or set {setting.env}" if environment else ""
        sentence = (
            "secrets are not taken from the command line, where every user of the machine can read them; write it into "
            f"the settings file{variable}"
        )
        group.add_argument(setting.flag, action=_Refuse, sentence=sentence)
        return
    text = f"{setting.help} Default: {setting.kind.show(setting.default)}. [{setting.env}]".replace("%", "%%")
    group.add_argument(setting.flag, dest=setting.name, metavar=setting.kind.word, help=text)


def given_flags(namespace: argparse.Namespace) -> dict[str, str]:
    """The settings that were given as flags, by `section.key`."""
    names = {setting.name for setting in catalogue() if not setting.secret}
    return {name: value for name, value in vars(namespace).items() if name in names and isinstance(value, str)}
