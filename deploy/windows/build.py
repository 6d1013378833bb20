"""Build the self-contained folder on Windows with a CPython of python.org, test it, and pack it.

`make -C deploy windows-zip`, or `python -m deploy.windows.build` without make, creates
`dist/azure-scheduled-events-exporter/` and the zip. All dependencies are locked wheels: versions and hashes.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.windows import NAME, PROGRAM, archive

ROOT: Final = Path(__file__).parents[2]
VENV: Final = ROOT / ".venv-standalone"
FOLDER: Final = ROOT / "dist" / NAME
LOCKS: Final = ("constraints", "build", "standalone")


def installs(python: Path) -> Sequence[Sequence[str]]:
    """Return the commands that install the locked dependencies, then the agent with a locked build backend."""
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    locks = [argument for name in LOCKS for argument in ("--requirement", f"deploy/{name}.txt")]
    return [
        [*pip, "--require-hashes", "--only-binary", ":all:", *locks],
        [*pip, "--no-deps", "--no-build-isolation", "."],
    ]


def builds(python: Path) -> Sequence[str]:
    """Return the command that builds the folder, as `deploy/standalone` does on Linux."""
    places = ["--distpath", str(ROOT / "dist"), "--workpath", str(ROOT / "build" / "standalone")]
    program = [str(python), "-m", "PyInstaller", "--noconfirm", "--clean", "--log-level", "WARN"]
    return [*program, *places, str(ROOT / "deploy" / "standalone.spec")]


def lists(python: Path, folder: Path) -> Sequence[str]:
    """Return the command that writes the licences to the folder, as `deploy/standalone` does on Linux."""
    return [str(python), "-m", "deploy.licences", "--folder", str(folder)]


def verifies(folder: Path) -> Sequence[str]:
    """Return the command that verifies the signatures of Python's libraries [Get-AuthenticodeSignature]."""
    script = (
        f"$found = Get-ChildItem '{folder}\\_internal\\python3*.dll' | Get-AuthenticodeSignature; "
        "if (-not $found) { exit 1 }; "
        "foreach ($one in $found) { if ($one.Status -ne 'Valid' -or "
        "$one.SignerCertificate.Subject -notmatch 'CN=Python Software Foundation') { $one | Format-List; exit 1 } }"
    )
    return ["powershell", "-NoProfile", "-NonInteractive", "-Command", script]


def tries(folder: Path) -> Sequence[Sequence[str]]:
    """Return the commands that must succeed before the folder is packed."""
    program = str(folder / PROGRAM)
    demo = [program, "demo", "--speed", "4", "--listen", "127.0.0.1:0"]
    return [[program, "--version"], [program, "service", "--help"], demo]


def main(platform: str = sys.platform) -> int:
    """Build, test, and pack. Return the exit code of packing. Raises CalledProcessError if an earlier command fails."""
    if platform != "win32":
        print("this build needs Windows with a CPython of python.org", file=sys.stderr)
        return 2
    python = VENV / "Scripts" / "python.exe"
    venv.create(VENV, clear=True, with_pip=True)
    for command in [*installs(python), builds(python), lists(python, FOLDER), verifies(FOLDER), *tries(FOLDER)]:
        print("==", *command, file=sys.stderr, flush=True)
        subprocess.run(command, cwd=ROOT, check=True)
    return archive.main([str(FOLDER)])


if __name__ == "__main__":
    sys.exit(main())
