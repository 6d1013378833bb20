"""The artefacts of a release and its SHA256SUMS: `make -C deploy checksums [RELEASE=1]`.

SHA256SUMS lists every file of dist/ in the format of `sha256sum --check`. With `RELEASE=1`, dist/ must contain exactly
the artefacts of this version. Directories in dist/ are ignored.
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
"""Each file of a release except SHA256SUMS, and its purpose."""


def main() -> int:
    """Write SHA256SUMS. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.checksums", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--release", action="store_true", help="fail unless the folder contains exactly a release")
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
    """Return the names of a version's artefacts."""
    return frozenset(name.format(version=version) for name in ARTEFACTS)


def judge(folder: Path, version: str) -> None:
    """Raise NotReleasable unless the folder contains exactly the artefacts of a version, and possibly SHA256SUMS."""
    there = {path.name for path in files(folder)}
    missing, strange = names(version) - there, there - names(version)
    faults = [f"missing: {', '.join(sorted(missing))}"] if missing else []
    faults += [f"not of this release: {', '.join(sorted(strange))}"] if strange else []
    if faults:
        raise NotReleasable(f"{folder} is not release {version}; " + "; ".join(faults))


def write(folder: Path) -> str:
    """Write SHA256SUMS for the files of a folder, and return its text. Raises NotReleasable if there are none."""
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files(folder)]
    if not sums:
        raise NotReleasable(f"{folder} has no files")
    (folder / SUMS).write_bytes("".join(sums).encode())
    return "".join(sums)


def files(folder: Path) -> list[Path]:
    """Return the files of a folder, sorted by path, without SHA256SUMS."""
    return sorted(path for path in folder.glob("*") if path.is_file() and path.name != SUMS)


if __name__ == "__main__":
    sys.exit(main())
