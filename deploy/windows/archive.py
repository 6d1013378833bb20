"""The zip: the checked folder with the licence and a README. The same folder gives the same bytes.

`python -m deploy.windows.archive FOLDER` writes `dist/azure-scheduled-events-exporter-VERSION-windows-amd64.zip`.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Final

from deploy.windows import NAME, STEM
from deploy.windows.folder import faults
from exporter import __version__

ROOT: Final = Path(__file__).parents[2]
EARLIEST: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every entry: the earliest time in a zip."""
README: Final = f"""\
azure-scheduled-events-exporter {__version__} for Windows, 64 bit

Exports the Azure Scheduled Events of this VM as Prometheus metrics, OpenTelemetry logs, and Event Hubs messages.
It needs no other software. In PowerShell:

    .\\{NAME}.exe check --probe
    .\\{NAME}.exe run

As a service, in PowerShell as administrator, from its final folder (in C:\\Program Files):

    .\\{NAME}.exe service install
    .\\{NAME}.exe service start

For settings, logs, upgrade, and removal, see the page "Windows" of the documentation. Licence: LICENSE.txt.
"""


def pack(folder: Path, target: Path) -> None:
    """Write the zip of a checked folder. The top folder in it has the program's name."""
    entries = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    entries["LICENSE.txt"] = _with_crlf((ROOT / "LICENSE").read_text(encoding="utf-8"))
    entries["README.txt"] = _with_crlf(README)
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w") as archive:
        for name in sorted(entries):
            entry = zipfile.ZipInfo(f"{NAME}/{name}", EARLIEST)
            entry.create_system = 0  # the same on every build system
            archive.writestr(entry, entries[name], zipfile.ZIP_DEFLATED, 9)


def _with_crlf(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode()


def main(arguments: list[str]) -> int:
    """Check and pack a folder. Return the exit code: 1 if the folder has faults; then nothing is written."""
    folder, target = Path(arguments[0]), ROOT / "dist" / f"{STEM}.zip"
    if found := list(faults(folder)):
        print(f"{folder}: must not be released:", *found, sep="\n  ", file=sys.stderr)
        return 1
    pack(folder, target)
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
