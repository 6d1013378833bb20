"""What a release consists of, and its SHA256SUMS: `make -C deploy checksums [RELEASE=1]`.

SHA256SUMS names every file of dist/, as `sha256sum --check` reads it. With `RELEASE=1`
dist/ must hold each artefact of this version and nothing else; folders, as builds leave them, are not looked at.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.notes import ROOT, NotReleasable, version

SUMS: Final = "SHA256SUMS"
ARTEFACTS: Final[Mapping[str, str]] = {
    "azure_scheduled_events_exporter-{version}-py3-none-any.whl": "the wheel, also on PyPI",
    "azure_scheduled_events_exporter-{version}.tar.gz": "the sources, also on PyPI",
    "azure-scheduled-events-exporter_{version}_amd64.deb": "Debian, Ubuntu",
    "azure-scheduled-events-exporter_{version}_arm64.deb": "Debian, Ubuntu on arm64",
    "azure-scheduled-events-exporter-{version}-1.x86_64.rpm": "RHEL and its relatives",
    "azure-scheduled-events-exporter-{version}-1.aarch64.rpm": "RHEL and its relatives on arm64",
    "azure-scheduled-events-exporter-{version}-windows-amd64.zip": "Windows, without an installer",
    "azure-scheduled-events-exporter-{version}-windows-amd64.msi": "Windows",
    "azure-scheduled-events-exporter-{version}.tgz": "the Helm chart, also in the registry",
    "azure-scheduled-events-exporter.cdx.json": "the SBOM (CycloneDX)",
    "THIRD-PARTY-LICENCES.txt": "the licences of all that ships",
}
"""Each file of a release beside SHA256SUMS, and what it is."""


def main() -> int:
    """Write SHA256SUMS. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.checksums", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--release", action="store_true", help="refuse a dist/ that is not a whole release")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="the folder of the files. Default: dist.")
    args = parser.parse_args()
    try:
        if args.release:
            judge(args.folder, version(ROOT))
        print(write(args.folder), end="")
    except NotReleasable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def names(version: str) -> frozenset[str]:
    """The names of a version's artefacts."""
    return frozenset(name.format(version=version) for name in ARTEFACTS)


def judge(folder: Path, version: str) -> None:
    """Raises NotReleasable unless the folder holds a version's artefacts, and nothing else but their sums."""
    there = {path.name for path in files(folder)}
    missing, strange = names(version) - there, there - names(version)
    told = [f"missing: {', '.join(sorted(missing))}"] if missing else []
    told += [f"not of this release: {', '.join(sorted(strange))}"] if strange else []
    if told:
        raise NotReleasable(f"{folder} is not release {version}; " + "; ".join(told))


def write(folder: Path) -> str:
    """Write the sums of a folder's files. Returns what was written; raises NotReleasable where there are none."""
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files(folder)]
    if not sums:
        raise NotReleasable(f"{folder} has no files")
    (folder / SUMS).write_bytes("".join(sums).encode())
    return "".join(sums)


def files(folder: Path) -> list[Path]:
    """The files of a folder by name, without their sums."""
    return sorted(path for path in folder.glob("*") if path.is_file() and path.name != SUMS)


if __name__ == "__main__":
    sys.exit(main())
