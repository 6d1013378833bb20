"""A release: its version, its notes, its files, and their checksums."""

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

## [1.2.0] - 2026-01-31

### Added
- One thing.
  ## not a heading

## [1.1.0] - 2025-12-01

- Another.

[1.2.0]: https://example.com
"""


def test_the_notes_are_the_section_of_the_version() -> None:
    """From the heading to the next one, or to the link targets at the end, without both."""
    assert notes.notes(CHANGELOG, "1.2.0", tag="v1.2.0") == "### Added\n- One thing.\n  ## not a heading"
    last = CHANGELOG.replace("1.2.0", "1.0.0").replace("[Unreleased]\n", "[1.2.0] - 2026-01-31\n\n- New.\n")
    assert notes.notes(last, "1.2.0") == "- New."
    only = (
        "## [1.2.0] - 2026-01-31\n\n- [One]\n\n[One]: https://example.com\n\n- Two.\n\n[1.2.0]: https://example.com\n"
    )
    assert notes.notes(only, "1.2.0") == "- [One]\n\n[One]: https://example.com\n\n- Two."


@pytest.mark.parametrize(
    ("changelog", "version", "tag", "why"),
    [
        (CHANGELOG, "1.2.0", "v1.2.1", "the tag is 'v1.2.1', but the version in exporter/__init__.py is 1.2.0"),
        (CHANGELOG, "1.2.0", "1.2.0", "the tag is '1.2.0'"),
        (CHANGELOG, "1.3.0", "", r"has 0 sections ## \[1.3.0\]"),
        (CHANGELOG, "1.2.0rc1", "v1.2.0rc1", "only final versions"),
        (CHANGELOG.replace("2026-01-31", "2026-02-31"), "1.2.0", "", r"\[1.2.0\] - 2026-02-31 has no date"),
        (CHANGELOG.partition("### Added")[0], "1.2.0", "", "is empty"),
        (CHANGELOG, "1.1.0", "", r"section \[1.2.0\] - 2026-01-31 has text that release 1.1.0 would leave out"),
        (CHANGELOG.replace("1.1.0", "1.2.0"), "1.2.0", "", r"has 2 sections ## \[1.2.0\]"),
    ],
)
def test_inconsistent_versions_are_not_released(changelog: str, version: str, tag: str, why: str) -> None:
    """Tag, version, and CHANGELOG name one release with a date and with text, else there is an error and no notes."""
    with pytest.raises(notes.NotReleasable, match=why):
        notes.notes(changelog, version, tag=tag)


@pytest.mark.parametrize(
    "unreleased",
    [
        "## [Unreleased]\n\n- New.\n\n",
        "## [Unreleased]\n\n### Added\n- New.\n\n",
        "## [unreleased]\nnew\n",
        "## Unreleased\n\n- New.\n\n",
        "##  [Unreleased] \n\n- New.\n\n",
        "## [Unreleased] - 2026-02-01\n\n- New.\n\n",
        "## Next\n\n- New.\n\n",
    ],
)
@pytest.mark.parametrize("tag", ["", "v1.2.0"])
def test_unreleased_text_above_the_version_stops_the_release(unreleased: str, tag: str) -> None:
    """Text under `[Unreleased]`, in any spelling, or in any section above the version's stops the release."""
    text = CHANGELOG.replace("## [Unreleased]\n", unreleased)
    with pytest.raises(notes.NotReleasable, match=r"has text that release 1\.2\.0 would leave out: move it to ## \[1"):
        notes.notes(text, "1.2.0", tag=tag)


def test_text_under_unreleased_below_the_version_stops_the_release() -> None:
    """In any position of that section."""
    with pytest.raises(notes.NotReleasable, match=r"section \[Unreleased\] has text"):
        notes.notes(CHANGELOG.replace("[1.1.0] - 2025-12-01", "[Unreleased]"), "1.2.0")


def checkout(folder: Path, changelog: str) -> Path:
    """Create what `make -C deploy notes` needs of a checkout, with this CHANGELOG."""
    for name in (".ci/venv.mk", "deploy/Makefile", "deploy/__init__.py", "deploy/notes.py", "exporter/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "CHANGELOG.md").write_text(changelog, encoding="utf-8")
    return folder


def make_notes(folder: Path, tag: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "RELEASE_TAG": tag, "PYTHON": sys.executable}
    command = ["make", "--silent", "-C", "deploy", "notes"]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_make_notes_prints_those_of_this_version(tmp_path: Path) -> None:
    """For a CHANGELOG with this version's section; the tag's name is compared, never run."""
    hostile = f"$(touch {tmp_path}/run)`touch {tmp_path}/run`"
    folder = checkout(tmp_path / "checkout", CHANGELOG.replace("1.2.0", __version__))
    for tag, code in (("", 0), (f"v{__version__}", 0), (hostile, 2)):
        done = make_notes(folder, tag)
        assert done.returncode == code, done.stderr
        assert bool(done.stdout.strip()) is (code == 0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("tag", ["", f"v{__version__}"])
def test_make_notes_fails_while_unreleased_has_text(tmp_path: Path, tag: str) -> None:
    """It prints an error and no notes: no release's notes would contain the text."""
    changelog = CHANGELOG.replace("1.2.0", __version__).replace("[Unreleased]\n", "[Unreleased]\n\n- Not yet out.\n")
    done = make_notes(checkout(tmp_path, changelog), tag)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"section [Unreleased] has text that release {__version__} would leave out" in done.stderr


def test_the_changelog_can_become_that_of_a_release(tmp_path: Path) -> None:
    """With what is unreleased moved, and a date, the repository's own CHANGELOG has notes."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    text = text.replace(f"## [{__version__}] - unreleased\n", f"## [{__version__}] - 2026-01-31\n")
    done = make_notes(
        checkout(tmp_path, re.sub(r"^## \[Unreleased\]\n.*?(?=^## )", "", text, flags=re.DOTALL | re.M)), ""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_version_is_defined_once() -> None:
    """pyproject.toml reads it from the package, and every file name with a version in the pages has this one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"] == {"path": "exporter/__init__.py"}
    assert notes.version(ROOT) == __version__
    name = re.compile(r"azure[-_]scheduled[-_]events[-_]exporter(?:[-_:]|/v?)(\d+\.\d+\.\d+)")
    named = {found for page in PAGES for found in name.findall(page.read_text(encoding="utf-8"))}
    assert named == {__version__}


def test_the_project_urls_are_in_the_repository() -> None:
    """The addresses that PyPI shows begin with that of the repository."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert set(urls) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert all(url.startswith(urls["Source"]) for url in urls.values())


def release(folder: Path) -> Path:
    """Create a folder with each artefact, and one temporary file of a build."""
    (folder / "azure-scheduled-events-exporter").mkdir(parents=True)
    for name in checksums.names(__version__):
        (folder / name).write_bytes(name.encode())
    return folder


def test_a_release_has_every_file_and_no_other(tmp_path: Path) -> None:
    """A file that is missing, of another version, or unknown is named."""
    folder = release(tmp_path / "dist")
    checksums.judge(folder, __version__)
    (folder / "THIRD-PARTY-LICENCES.txt").rename(folder / "notes.txt")
    with pytest.raises(notes.NotReleasable, match=r"missing: THIRD-PARTY.*; not of this release: notes\.txt"):
        checksums.judge(folder, __version__)
    with pytest.raises(notes.NotReleasable, match="missing"):
        checksums.judge(folder, "9.9.9")


def test_sha256sum_reads_the_sums(tmp_path: Path) -> None:
    """`sha256sum --check` accepts the files, and rejects a changed one; written twice, the result is the same."""
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
    """docs/releasing.md's table has each artefact with a description."""
    text = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\S+)` \| (.*?) \|", text, re.MULTILINE))
    recorded = {name.replace("{version}", "VERSION"): what for name, what in checksums.ARTEFACTS.items()}
    assert {name: what for name, what in rows.items() if name in recorded} == recorded
    assert "SHA256SUMS" in prose(ROOT / "docs" / "releasing.md")
