"""How wheel and sdist become the same everywhere; `make -C deploy reproducible` builds both twice and compares them."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Final

import pytest

from deploy import dist
from deploy.dist import NotBuilt

pytestmark = pytest.mark.linux("builds what is handed out, as a release does")

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 1_790_000_000


def archive(path: Path, *names: str, mode: int, mtime: int, owner: str) -> Path:
    """An sdist as a builder's setuptools makes it."""
    with tarfile.open(path, "w:gz") as packed:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime, member.uname = len(name), mode, mtime, owner
            packed.addfile(member, io.BytesIO(name.encode()))
    return path


def test_an_archive_tells_nothing_of_who_packed_it(tmp_path: Path) -> None:
    """Order, owner, umask and clock of two builders leave no trace: what they pack anew is one file."""
    one = archive(tmp_path / "one.tar.gz", "a-1/x", "a-1/y", mode=0o644, mtime=1, owner="ann")
    other = archive(tmp_path / "other.tar.gz", "a-1/y", "a-1/x", mode=0o600, mtime=2, owner="bob")
    for path in (one, other):
        dist.repack(path, path.with_suffix(".packed"), SECONDS)
    packed = one.with_suffix(".packed").read_bytes()
    assert packed == other.with_suffix(".packed").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(packed)) as found:
        assert [(member.name, member.mode, member.mtime) for member in found] == [
            ("a-1/x", 0o644, SECONDS),
            ("a-1/y", 0o644, SECONDS),
        ]


def git(folder: Path, *command: str) -> None:
    author = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com"]
    subprocess.run(["git", *author, "-C", str(folder), *command], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of two files, one of them executable, and a third that git does not track."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for name, mode in (("script", 0o700), ("text", 0o600)):
        (folder / name).write_text(name)
        (folder / name).chmod(mode)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first", "--date", "@1")
    (folder / "untracked").touch()
    return folder


def test_only_what_git_tracks_is_built(checkout: Path, tmp_path: Path) -> None:
    """What lies about is left where it is; the rest has one mode and one time, whatever the checkout's are."""
    dist.stage(checkout, tmp_path / "staged", SECONDS)
    found = {path.name: path.stat() for path in (tmp_path / "staged").iterdir()}
    assert {name: status.st_mode & 0o777 for name, status in found.items()} == {"script": 0o755, "text": 0o644}
    assert {int(status.st_mtime) for status in found.values()} == {SECONDS}


def test_the_page_of_pypi_leads_somewhere() -> None:
    """PyPI has no files beside the README: its links are those of the tag, pictures as they are."""
    text = "[a](docs/a.md#b), [c](LICENSE), ![d](d.png), [e](#e), [f](https://example.com/f)"
    assert dist.linked(text, f"{dist.HOME}/raw/v1.0.0") == (
        f"[a]({dist.HOME}/blob/v1.0.0/docs/a.md#b), [c]({dist.HOME}/blob/v1.0.0/LICENSE), "
        f"![d]({dist.HOME}/raw/v1.0.0/d.png), [e](#e), [f](https://example.com/f)"
    )
    readme = dist.linked((ROOT / "README.md").read_text(encoding="utf-8"), f"{dist.HOME}/raw/v1.0.0")
    assert "](docs/" not in readme
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls["Source"] == dist.HOME


def test_the_time_is_the_last_commits(checkout: Path, tmp_path: Path) -> None:
    """Or SOURCE_DATE_EPOCH, never when it is built; what is no time, and no checkout, is said in a sentence."""
    told = subprocess.run(
        ["git", "-C", str(checkout), "log", "-1", "--format=%ct"], check=True, capture_output=True, text=True
    )
    assert dist.epoch(checkout, {}) == int(told.stdout)
    assert dist.epoch(checkout, {"SOURCE_DATE_EPOCH": str(SECONDS)}) == SECONDS
    with pytest.raises(NotBuilt, match="SOURCE_DATE_EPOCH is 'yesterday'"):
        dist.epoch(checkout, {"SOURCE_DATE_EPOCH": "yesterday"})
    with pytest.raises(NotBuilt, match="this needs a checkout"):
        dist.epoch(tmp_path, {})


def test_what_is_handed_out_is_built_this_way() -> None:
    """`dist` builds as `reproducible` does, and the self-contained build sets the same things."""
    makefile = (ROOT / "deploy" / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^dist:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert "$(MODULE) deploy.dist" in recipe
    assert "-m deploy.dist" in (ROOT / "deploy" / "reproducible").read_text(encoding="utf-8")
    standalone = (ROOT / "deploy" / "standalone").read_text(encoding="utf-8")
    for word in ("umask 022", "PYTHONHASHSEED=0", "--sort=name", "--mtime=", "gzip -9n"):
        assert word in standalone, word
