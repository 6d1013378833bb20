"""The notes of a release: `python -m deploy.notes` (`make notes`) prints the version's section of CHANGELOG.md.

The version is that of `exporter/__init__.py`. Before anything is printed it is checked that it can be released: three
numbers, a section with a date and with text, and, where RELEASE_TAG is set in the environment, the tag `vVERSION`. The
tag comes by environment and is only compared, so that no name of a tag is ever a command.
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
_RELEASED: Final = re.compile(r"^## \[(?P<version>[^\]\n]+)\] - (?P<date>\S+)$", re.MULTILINE)

_NEXT: Final = re.compile(r"^## |^\[[^\]\n]+\]: ", re.MULTILINE)
"""Where a section ends: at the next, or at the targets of the headings' links."""


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
    heading = next((one for one in _RELEASED.finditer(changelog) if one["version"] == version), None)
    if heading is None:
        raise NotReleasable(f"CHANGELOG.md has no section: ## [{version}] - YYYY-MM-DD")
    try:
        date.fromisoformat(heading["date"])
    except ValueError as error:
        raise NotReleasable(f"CHANGELOG.md's section [{version}] has no date: {heading['date']}") from error
    text = _NEXT.split(changelog[heading.end() :], maxsplit=1)[0].strip()
    if not text:
        raise NotReleasable(f"CHANGELOG.md's section [{version}] is empty")
    return text


if __name__ == "__main__":
    sys.exit(main())
