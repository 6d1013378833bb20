"""The notes of a release: `make -C deploy notes` prints the version's section of CHANGELOG.md.

The version is that of `exporter/__init__.py`. Nothing is printed unless it can be released: three numbers, exactly one
section with a date and with text, no text in a section above it or under `[Unreleased]`, which no release would ever
contain, and, if RELEASE_TAG is set in the environment, the tag `vVERSION`. The tag comes by environment and is only
compared, so that no name of a tag is ever a command.
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
    """Why there are no notes, as a sentence."""


def main() -> int:
    """Print the notes. Returns the exit code."""
    try:
        print(notes(CHANGELOG.read_text(encoding="utf-8"), version(ROOT), tag=os.environ.get("RELEASE_TAG", "")))
    except NotReleasable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def version(checkout: Path) -> str:
    """`__version__` as the package of a checkout says it; nothing is imported. Raises NotReleasable."""
    text = (checkout / "exporter" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"\n]+)"$', text, re.MULTILINE)
    if found is None:
        raise NotReleasable('exporter/__init__.py has no line __version__ = "…"')
    return found[1]


def notes(changelog: str, version: str, *, tag: str = "") -> str:
    """The version's section without its heading. `tag`: that of the release, empty before there is one.

    Raises NotReleasable.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NotReleasable(f"{version} is not three numbers: only final versions are released")
    if tag and tag != f"v{version}":
        raise NotReleasable(f"the tag is {tag!r}, but exporter/__init__.py says {version}")
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
    """Each section's heading, without its marks, and its text."""
    parts = re.split(r"^##[ \t]+(.*)\n", f"{changelog}\n", flags=re.MULTILINE)[1:]
    return [
        (heading.strip(), _TARGETS.sub("", text).strip()) for heading, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def _released(heading: str) -> tuple[str, str]:
    """The version and the date of a release's heading; empty if it is another."""
    found = _RELEASED.fullmatch(heading)
    return (found["version"], found["date"]) if found else ("", "")


if __name__ == "__main__":
    sys.exit(main())
