"""Build a deb or an rpm from the self-contained folder: `make -C deploy deb rpm`.

The folder is dist/azure-scheduled-events-exporter. `deploy/standalone` rebuilds it if it is missing or older than the
sources. The package requires the C library that the folder needs: to support old hosts, use an old interpreter.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Final

from deploy.packages import HOMEPAGE, NAME, completion, manual
from deploy.packages.contents import (
    MAINTAINER,
    ROOT,
    SCRIPTS,
    Format,
    configuration,
    file_name,
    package_version,
)
from deploy.packages.needs import NeedsError, measure
from exporter import __version__

FOLDER: Final = ROOT / "dist" / NAME
SCRIPTS_FOLDER: Final = ROOT / "deploy" / "packages" / "scripts"
COPYRIGHT: Final = f"""\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: {NAME}
Source: {HOMEPAGE}
Comment: /opt/{NAME}/_internal also holds CPython and the libraries that
 the program uses, each under its own licence: THIRD-PARTY-LICENCES.txt in
 /opt/{NAME} has them.

Files: *
Copyright: 2026 The {NAME} authors
License: MIT
"""


def main() -> int:
    """Build the package. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.packages.build", description=__doc__.partition("\n")[0])
    parser.add_argument("format", choices=tuple(SCRIPTS))
    parser.add_argument("--version", default=__version__, help="another version than the program's, to test upgrades")
    parser.add_argument("--folder", type=Path, help="another self-contained folder, used unchanged")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder for the package")
    parser.add_argument("--quick", action="store_true", help="pack in a few seconds; the package is a third larger")
    args = parser.parse_args()
    folder = args.folder or fresh_folder()
    try:
        package = build(args.format, args.version, folder.resolve(), args.output, quick=args.quick)
    except NeedsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{package}  {package.stat().st_size / 1e6:.1f} MB")
    return 0


def build(form: Format, version: str, folder: Path, output: Path, *, quick: bool = False) -> Path:
    """Build a package from a self-contained folder. Return its path. Raises `NeedsError`, CalledProcessError."""
    numbered = package_version(version)
    made = ROOT / "build" / "packages" / form
    made.mkdir(parents=True, exist_ok=True)
    now = source_date(os.environ)
    for name, content in files(form, numbered, now).items():
        (made / name).write_bytes(content)
    needs = measure(folder)
    settings = configuration(form, numbered, needs, folder, made, mtime=now.isoformat(), quick=quick)
    (made / "nfpm.yaml").write_text(json.dumps(settings, indent=1))  # JSON is YAML
    output.mkdir(parents=True, exist_ok=True)
    package = output / file_name(form, numbered, needs.architecture)
    nfpm = str(Path(sys.executable).parent / "nfpm")
    command = [nfpm, "package", "--config", str(made / "nfpm.yaml"), "--packager", form, "--target", str(package)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return package


def files(form: Format, version: str, now: datetime) -> Mapping[str, bytes]:
    """Return the content of the generated files of a package, by name."""
    copyright_text = COPYRIGHT + indented((ROOT / "LICENSE").read_text(encoding="utf-8"))
    changelog = (
        f"{NAME} ({version}) stable; urgency=medium\n\n  * See {HOMEPAGE}/blob/main/CHANGELOG.md\n\n"
        f" -- {MAINTAINER}  {format_datetime(now)}\n"
    )
    return {
        "package-version": f"{version}\n".encode(),
        "copyright": copyright_text.encode(),
        "changelog.gz": packed(changelog),
        f"{NAME}.1.gz": packed(manual.page(__version__, now.date())),
        "bash": completion.bash().encode(),
        "zsh": completion.zsh().encode(),
        "fish": completion.fish().encode(),
        **{name: script(form, name, version).encode() for name in SCRIPTS[form].values()},
    }


def script(form: Format, name: str, version: str) -> str:
    """Return a complete maintainer script: the common part, then its own."""
    parts = [(SCRIPTS_FOLDER / file).read_text(encoding="utf-8") for file in ("common.sh", f"{form}-{name}.sh")]
    return "#!/bin/sh\n" + "\n".join(parts).replace("@VERSION@", version)


def indented(text: str) -> str:
    """Return a licence text as a field in Debian's copyright format, with a dot for each empty line."""
    return "".join(f" {line}\n" if line else " .\n" for line in text.rstrip().splitlines())


def packed(text: str) -> bytes:
    """Return text compressed reproducibly, as Debian requires: maximum level, without name and time."""
    return gzip.compress(text.encode(), 9, mtime=0)


def source_date(environ: Mapping[str, str]) -> datetime:
    """Return the time of all files, for reproducible builds: SOURCE_DATE_EPOCH, or the time of the last commit."""
    if epoch := environ.get("SOURCE_DATE_EPOCH"):
        return datetime.fromtimestamp(int(epoch), UTC)
    commit = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True, capture_output=True, check=True)
    return datetime.fromtimestamp(int(commit.stdout), UTC)


def fresh_folder() -> Path:
    """Return the self-contained folder of these sources. `deploy/standalone` rebuilds it if a source is newer."""
    program = FOLDER / NAME
    sources = [ROOT / "deploy" / "constraints.txt", *(ROOT / "deploy").glob("standalone*")]
    sources += [path for path in (ROOT / "exporter").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    if not program.exists() or program.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        subprocess.run([ROOT / "deploy" / "standalone"], check=True)
    return FOLDER


if __name__ == "__main__":
    sys.exit(main())
