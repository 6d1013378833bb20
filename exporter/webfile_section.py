"""A mapping of a web-config file, asked key by key: what does not fit is an error that names file and key."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

MAX_BYTES: Final = 1 << 20
Lines = Mapping[tuple[str, str], int]
"""The line of each key, by the section that it stands in ("" for the file itself) and its own text."""
NO_LINES: Final[Lines] = MappingProxyType({})
_NEAR: Final = 0.75


class Section:
    """One mapping of the file. What does not fit is reported to `errors` with file and key, and read as if absent."""

    def __init__(self, file: Path, name: str, value: object, errors: list[str], lines: Lines = NO_LINES) -> None:
        self._file, self._name, self._errors, self._lines = file, name, errors, lines
        if value is not None and not isinstance(value, dict):
            self.wrong("", f"expected a mapping of keys to values, got {kind_of(value)}")
        self.values: dict[object, Any] = value if isinstance(value, dict) else {}

    def wrong(self, key: object, sentence: str) -> None:
        """Report an error."""
        where = ".".join(part for part in (self._name, str(key)) if part)
        self._errors.append(f"{self._file}: {where}: {sentence}" if where else f"{self._file}: {sentence}")

    def below(self, key: str, value: object) -> Section:
        """The mapping that stands under a key of this one."""
        return Section(self._file, f"{self._name}.{key}", value, self._errors, self._lines)

    def wrong_entry(self, key: object, sentence: str) -> None:
        """Report an error of an entry whose key is the file's own word: by its line, since it may be a secret."""
        line = self._lines.get((self._name, str(key)))
        self.wrong("", f"line {line}: {sentence}" if line else sentence)

    def only(self, *known: str) -> None:
        """Report every other key, by name where that is nearly a known one."""
        for key in self.values:
            if key in known:
                continue
            report = self.wrong if get_close_matches(str(key), known, 1, _NEAR) else self.wrong_entry
            report(key, f"unknown key, expected one of {', '.join(known)}")

    def text(self, key: str) -> str:
        """A string; "" when absent."""
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value or ""
        self.wrong(key, f"expected a string, got {kind_of(value)}")
        return ""

    def truth(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.values.get(key, default)
        if isinstance(value, bool):
            return value
        self.wrong(key, f"expected true or false, got {kind_of(value)}")
        return default

    def word(self, key: str, words: Mapping[str, object], default: str) -> str:
        """One of these words."""
        value = self.text(key) or default
        if value in words:
            return value
        self.wrong(key, f"expected one of {', '.join(words)}")
        return default

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; () when absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
        self.wrong(key, "expected a list of strings")
        return ()

    def words(self, key: str, words: tuple[str, ...]) -> tuple[str, ...]:
        """A list of these words."""
        found = self.texts(key)
        for entry in found:
            if entry not in words:
                self.wrong(key, f"expected of {', '.join(words)}")
        return tuple(entry for entry in found if entry in words)


def read_text(path: Path, errors: list[str], where: str) -> str:
    """A small text file; "" and an error when it can't be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) <= MAX_BYTES:
            return data.decode("utf-8")
        errors.append(f"{where}: expected at most {MAX_BYTES} bytes")
    except OSError as error:
        errors.append(f"{where}: expected a readable file: {error.strerror or error}")
    except UnicodeDecodeError:
        errors.append(f"{where}: expected UTF-8 text")
    return ""


def kind_of(value: object) -> str:
    """What a value is, without showing it: it may be a secret in the wrong place."""
    names = {dict: "a mapping", list: "a list", str: "a string", bool: "a truth value", int: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")
