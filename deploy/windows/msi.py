"""The MSI, built from the zip by wixl of msitools, which runs on Debian and Ubuntu.

`python -m deploy.windows.msi dist/…-windows-amd64.zip` writes the MSI to the folder of the zip. wixl lacks three
features of WiX, which `msibuild` of msitools adds to the finished database: actions that run on rollback, the list of
properties that are passed to an elevated installer, and the package code.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import uuid
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from deploy.windows import NAME, PROGRAM
from deploy.windows.folder import faults
from exporter import __version__

SOURCE: Final = Path(__file__).with_name("package.wxs")
PROPERTIES: Final = ("LISTEN_ADDR", "LISTEN_PORT", "CONFIG_FILE", "EXTRA_FLAGS", "REMOTE_ADDR")
"""The properties that an administrator can set. Upgrades keep their values."""
DETECTED: Final = ("WIX_DOWNGRADE_DETECTED", "WIX_UPGRADE_DETECTED")
NAMESPACE: Final = uuid.UUID("57FBDC0C-BB42-4299-B525-6ED31B24A09F")
"""The namespace of derived GUIDs, so that the component of a file keeps its GUID in later versions."""

_ROLLBACK: Final = 0x100
"""msidbCustomActionTypeRollback [Custom Action In-Script Execution Options]."""
_XML: Final = "http://schemas.microsoft.com/wix/2006/wi"


def identity(*words: str) -> str:
    """Return a GUID derived from these words, in the form of Windows Installer, without braces."""
    return str(uuid.uuid5(NAMESPACE, "/".join(words))).upper()


def numeric(version: str) -> str:
    """Return a version that Windows Installer can compare. Raises ValueError for others, such as `1.0rc1`."""
    if not re.fullmatch(r"\d{1,3}\.\d{1,3}\.\d{1,5}", version):
        raise ValueError(f"{version}: an MSI needs a version of three numbers; build it from a release")
    return version


def fragment(folder: Path) -> str:
    """Return the file list for wixl, relative to the folder: one component for each file, with derived names."""
    ET.register_namespace("", _XML)
    root = ET.Element(f"{{{_XML}}}Wix")
    part = ET.SubElement(root, f"{{{_XML}}}Fragment")
    top = ET.SubElement(part, f"{{{_XML}}}DirectoryRef", Id="ProgramFolder")
    group = ET.SubElement(part, f"{{{_XML}}}ComponentGroup", Id="Files")
    folders = {"": top}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        above = folders[name.rpartition("/")[0]]
        if path.is_dir():
            folders[name] = ET.SubElement(above, f"{{{_XML}}}Directory", Id=_id("d", name), Name=path.name)
            continue
        component = ET.SubElement(
            above, f"{{{_XML}}}Component", Id=_id("c", name), Guid=identity("file", name), Win64="yes"
        )
        id_ = "Program" if name == PROGRAM else _id("f", name)
        ET.SubElement(component, f"{{{_XML}}}File", Id=id_, Name=path.name, Source=name, KeyPath="yes")
        if name == PROGRAM:
            ET.SubElement(
                component,
                f"{{{_XML}}}ServiceControl",
                Id="Service",
                Name=NAME,
                Start="install",
                Stop="both",
                Wait="yes",
            )
        ET.SubElement(group, f"{{{_XML}}}ComponentRef", Id=component.attrib["Id"])
    return ET.tostring(root, encoding="unicode")


def _id(kind: str, name: str) -> str:
    return kind + hashlib.sha256(name.encode()).hexdigest()[:32]


def build(folder: Path, target: Path, *, version: str = __version__) -> None:
    """Write the MSI of a checked folder. Raises CalledProcessError if wixl or msibuild fails."""
    variables = {"Version": numeric(version), "ProductCode": identity("product", version)}
    with tempfile.TemporaryDirectory() as place:
        (files := Path(place) / "files.wxs").write_text(fragment(folder), encoding="utf-8")
        defined = [argument for item in variables.items() for argument in ("--define", "=".join(item))]
        made = Path(place) / "made.msi"
        run("wixl", "--arch", "x64", *defined, "--output", str(made), str(SOURCE), str(files), folder=folder)
        for query in changes(custom_actions(made)):
            run("msibuild", str(made), "-q", query)
        code = "{" + identity("package", version, _digest(folder)) + "}"
        run("msibuild", str(made), "-s", f"{NAME} {version}", NAME, "x64;1033", code)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(made.read_bytes())


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def changes(actions: Mapping[str, int]) -> Iterator[str]:
    """Return the queries for the features that wixl lacks. `actions` are the custom actions with their types."""
    for name, kind in actions.items():
        if name.endswith("Back"):
            yield _update("CustomAction", "Type", str(kind | _ROLLBACK), "Action", name)
    secure = [*DETECTED, *PROPERTIES, *(f"REMEMBERED_{name}" for name in PROPERTIES)]
    yield _update("Property", "Value", f"'{';'.join(secure)}'", "Property", "SecureCustomProperties")


def _update(table: str, column: str, value: str, key: str, name: str) -> str:
    return f"UPDATE `{table}` SET `{column}` = {value} WHERE `{key}` = '{name}'"  # noqa: S608  # no external input


def custom_actions(path: Path) -> dict[str, int]:
    """Return the custom actions of an MSI with their types."""
    return {row[0]: int(row[1]) for row in rows(path, "CustomAction")}


def rows(path: Path, table: str) -> list[list[str]]:
    """Return the rows of a table of an MSI, as printed by msiinfo."""
    return [line.split("\t") for line in run("msiinfo", "export", str(path), table).replace("\r", "").splitlines()[3:]]


def run(*command: str, folder: Path | None = None) -> str:
    """Run a command and return its output. Warnings are failures, because their subject would be missing in the MSI."""
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
    if done.returncode or done.stderr:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def main(arguments: list[str]) -> int:
    """Check the zip and build the MSI. Return the exit code: 1 if the zip has faults; then nothing is written."""
    source = Path(arguments[0])
    with tempfile.TemporaryDirectory() as place:
        with zipfile.ZipFile(source) as archive:
            archive.extractall(place)
        folder = Path(place) / NAME
        if found := list(faults(folder)):
            print(f"{source}: must not be released:", *found, sep="\n  ", file=sys.stderr)
            return 1
        target = source.with_suffix(".msi")
        try:
            build(folder, target)
        except FileNotFoundError as error:
            print(
                f"{error.filename}: not found; run: apt-get install --no-install-recommends wixl msitools",
                file=sys.stderr,
            )
            return 1
        except subprocess.CalledProcessError as error:
            print(f"{error}\n{error.stdout}{error.stderr}", file=sys.stderr)
            return 1
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
