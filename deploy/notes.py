"""The notes of a release: `make -C deploy notes` prints the version's section of CHANGELOG.md.

The version is that of `exporter/__init__.py`. The notes are printed only if all of these are true:

- It has three numbers and exactly one section, which has a date and text.
- Sections above it and `[Unreleased]` have no text, because no release would contain it.
- RELEASE_TAG, if set in the environment, is `vVERSION`. The tag is only compared, so its name is never executed.
"""

from __future__ import annotations

import os
import re
import sys
from datetime import date
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CHANGELOG: Final = ROOT / "CHANGELOG.md"
_RELEASED: Final = re.compile(r"\[(?P<version>[^\]]+)\] - (?P<date>\S+)")
_TARGETS: Final = re.compile(r"(?:^\[[^\]\n]+\]: .*\n|\s)+\Z", re.MULTILINE)
"""The targets of the headings' links, at the end of the last section."""


class NotReleasable(Exception):
    """The version can't be released; the text is the reason."""


def main() -> int:
    """Print the notes. Return the exit code."""
    try:
        print(notes(CHANGELOG.read_text(encoding="utf-8"), version(ROOT), tag=os.environ.get("RELEASE_TAG", "")))
    except NotReleasable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def version(checkout: Path) -> str:
    """Return `__version__` of a checkout without importing it. Raises NotReleasable."""
    text = (checkout / "exporter" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"\n]+)"$', text, re.MULTILINE)
    if found is None:
        raise NotReleasable('exporter/__init__.py has no line __version__ = "…"')
    return found[1]


def notes(changelog: str, version: str, *, tag: str = "") -> str:
    """Return the version's section without its heading. `tag` is the release's tag, empty before it exists.

    Raises NotReleasable.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NotReleasable(f"{version}: expected three numbers; only final versions are released")
    if tag and tag != f"v{version}":
        raise NotReleasable(f"the tag is {tag!r}, but the version in exporter/__init__.py is {version}")
    sections = _sections(changelog)
    places = [place for place, (heading, _) in enumerate(sections) if _released(heading)[0] == version]
    if len(places) != 1:
        raise NotReleasable(f"CHANGELOG.md has {len(places)} sections ## [{version}] - YYYY-MM-DD, not one")
    for place, (heading, text) in enumerate(sections):
        if text and (place < places[0] or "unreleased" in heading.lower()):
            raise NotReleasable(
                f"CHANGELOG.md's section {heading} has text that release {version} would leave out: move it to "
                f"## [{version}]"
            )
    heading, text = sections[places[0]]
    try:
        date.fromisoformat(_released(heading)[1])
    except ValueError as error:
        raise NotReleasable(f"CHANGELOG.md's section {heading} has no date") from error
    if not text:
        raise NotReleasable(f"CHANGELOG.md's section {heading} is empty")
    return text


def _sections(changelog: str) -> list[tuple[str, str]]:
    """Return the heading, without markup, and the text of each section."""
    parts = re.split(r"^##[ \t]+(.*)\n", f"{changelog}\n", flags=re.MULTILINE)[1:]
    return [
        (heading.strip(), _TARGETS.sub("", text).strip()) for heading, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def _released(heading: str) -> tuple[str, str]:
    """Return version and date of a release's heading; empty texts for another heading."""
    found = _RELEASED.fullmatch(heading)
    return (found["version"], found["date"]) if found else ("", "")


if __name__ == "__main__":
    sys.exit(main())
