"""What a release is made of: its version, its notes, its files and their sums."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from deploy import checksums, notes
from exporter import __version__
from tests.support.documentation import PAGES, prose

pytestmark = pytest.mark.linux("a release is made on Linux")

ROOT: Final = Path(__file__).parents[2]
CHANGELOG: Final = """\
# Changelog

## [Unreleased]

### Added
- Not yet out.

## [1.2.0] - 2026-01-31

### Added
- One thing.
  ## not a heading

## [1.1.0] - 2025-12-01

- Another.

[1.2.0]: https://example.com
"""


def test_the_notes_are_the_section_of_the_version() -> None:
    """From the heading to the next one, or to the targets of the links, without both."""
    assert notes.notes(CHANGELOG, "1.2.0", tag="v1.2.0") == "### Added\n- One thing.\n  ## not a heading"
    assert notes.notes(CHANGELOG, "1.1.0") == "- Another."


@pytest.mark.parametrize(
    ("changelog", "version", "tag", "why"),
    [
        (CHANGELOG, "1.2.0", "v1.2.1", "the tag is 'v1.2.1', but exporter/__init__.py says 1.2.0"),
        (CHANGELOG, "1.2.0", "1.2.0", "the tag is '1.2.0'"),
        (CHANGELOG, "1.3.0", "", r"has no section: ## \[1.3.0\]"),
        (CHANGELOG, "1.2.0rc1", "v1.2.0rc1", "only final versions"),
        (CHANGELOG.replace("2026-01-31", "2026-02-31"), "1.2.0", "", "has no date: 2026-02-31"),
        (CHANGELOG.replace("- Another.", ""), "1.1.0", "", "is empty"),
    ],
)
def test_what_does_not_agree_is_not_released(changelog: str, version: str, tag: str, why: str) -> None:
    """Tag, version and CHANGELOG name one release with a date and with text, or there are no notes, and a sentence."""
    with pytest.raises(notes.NotReleasable, match=why):
        notes.notes(changelog, version, tag=tag)


def test_make_notes_prints_those_of_this_version(tmp_path: Path) -> None:
    """The CHANGELOG has this version's section, and the name of a tag is compared, never run."""
    hostile = f"$(touch {tmp_path}/run)`touch {tmp_path}/run`"
    for tag, code in (("", 0), (f"v{__version__}", 0), (hostile, 2)):
        command = ["make", "--silent", "notes"]
        environ = {**os.environ, "RELEASE_TAG": tag, "PYTHON": sys.executable}
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert bool(done.stdout.strip()) is (code == 0)
    assert not (tmp_path / "run").exists()


def test_the_version_stands_in_one_place() -> None:
    """pyproject.toml takes it from the package, and every file that a page names with a version has this one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "exporter.__version__"}
    assert notes.version(ROOT) == __version__
    name = re.compile(r"azure[-_]scheduled[-_]events[-_]exporter(?:[-_:]|/v?)(\d+\.\d+\.\d+)")
    named = {found for page in PAGES for found in name.findall(page.read_text(encoding="utf-8"))}
    assert named == {__version__}


def test_the_project_says_where_it_lives() -> None:
    """The addresses that PyPI shows begin with that of the repository."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert set(urls) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert all(url.startswith(urls["Source"]) for url in urls.values())


def release(folder: Path) -> Path:
    """A folder with each artefact, and one that a build left."""
    (folder / "azure-scheduled-events-exporter").mkdir(parents=True)
    for name in checksums.names(__version__):
        (folder / name).write_bytes(name.encode())
    return folder


def test_a_release_is_whole_or_none(tmp_path: Path) -> None:
    """A file that is missing, of another version, or of nothing that is known, is named."""
    folder = release(tmp_path / "dist")
    checksums.judge(folder, __version__)
    (folder / "THIRD-PARTY-LICENCES.txt").rename(folder / "notes.txt")
    with pytest.raises(notes.NotReleasable, match=r"missing: THIRD-PARTY.*; not of this release: notes\.txt"):
        checksums.judge(folder, __version__)
    with pytest.raises(notes.NotReleasable, match="missing"):
        checksums.judge(folder, "9.9.9")


def test_the_sums_are_those_that_sha256sum_reads(tmp_path: Path) -> None:
    """`sha256sum --check` is content with the files, and is not with one that was changed; written twice, the same."""
    folder = release(tmp_path / "dist")
    written = checksums.write(folder)
    assert written == checksums.write(folder)
    name = "THIRD-PARTY-LICENCES.txt"
    assert f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" in written
    check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    assert subprocess.run(check, cwd=folder, check=False).returncode == 0
    (folder / name).write_text("changed")
    assert subprocess.run(check, cwd=folder, check=False, capture_output=True).returncode == 1
    with pytest.raises(notes.NotReleasable, match="has no files"):
        checksums.write(folder / "azure-scheduled-events-exporter")


def test_the_page_names_each_file_of_a_release() -> None:
    """docs/releasing.md's table has each artefact, and says what it is."""
    text = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\S+)` \| (.*?) \|", text, re.MULTILINE))
    told = {name.replace("{version}", "VERSION"): what for name, what in checksums.ARTEFACTS.items()}
    assert {name: what for name, what in rows.items() if name in told} == told
    assert "SHA256SUMS" in prose(ROOT / "docs" / "releasing.md")
