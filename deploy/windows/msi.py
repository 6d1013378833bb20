"""The MSI, made of the zip by msitools' wixl: one tool of Debian and Ubuntu builds it anywhere, out of files alone.

`python -m deploy.windows.msi dist/…-windows-amd64.zip` writes the MSI beside the zip. Of what WiX can do only three
small things are missing, which `msibuild` of the same msitools writes into the finished database: actions that run on
rollback, the list of properties that an elevated installer takes over, and the package code.
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
"""What an administrator may give; each is remembered for an upgrade."""
DETECTED: Final = ("WIX_DOWNGRADE_DETECTED", "WIX_UPGRADE_DETECTED")
NAMESPACE: Final = uuid.UUID("57FBDC0C-BB42-4299-B525-6ED31B24A09F")
"""What the identities are derived in: a file keeps its component's from version to version."""

_ROLLBACK: Final = 0x100
"""msidbCustomActionTypeRollback [Custom Action In-Script Execution Options]."""
_XML: Final = "http://schemas.microsoft.com/wix/2006/wi"


def identity(*words: str) -> str:
    """A GUID that follows from these words, as Windows Installer writes it, without braces."""
    return str(uuid.uuid5(NAMESPACE, "/".join(words))).upper()


def numeric(version: str) -> str:
    """The version as Windows Installer compares it. Raises ValueError for what it can't, such as `1.0rc1`."""
    if not re.fullmatch(r"\d{1,3}\.\d{1,3}\.\d{1,5}", version):
        raise ValueError(f"{version}: an MSI is made of a release, whose version is three numbers")
    return version


def fragment(folder: Path) -> str:
    """The list of files as wixl reads it, to be run in that folder: a component for each file, all names derived."""
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
    """Write the MSI of a folder that was checked. Raises CalledProcessError where wixl or msibuild refuses."""
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
    """What wixl has no words for, as queries; `actions` are the custom actions with their types."""
    for name, kind in actions.items():
        if name.endswith("Back"):
            yield _update("CustomAction", "Type", str(kind | _ROLLBACK), "Action", name)
    secure = [*DETECTED, *PROPERTIES, *(f"REMEMBERED_{name}" for name in PROPERTIES)]
    yield _update("Property", "Value", f"'{';'.join(secure)}'", "Property", "SecureCustomProperties")


def _update(table: str, column: str, value: str, key: str, name: str) -> str:
    return f"UPDATE `{table}` SET `{column}` = {value} WHERE `{key}` = '{name}'"  # noqa: S608  # all of it is our own


def custom_actions(path: Path) -> dict[str, int]:
    """The custom actions of an MSI with their types."""
    return {row[0]: int(row[1]) for row in rows(path, "CustomAction")}


def rows(path: Path, table: str) -> list[list[str]]:
    """The rows of a table of an MSI, as msiinfo prints them."""
    return [line.split("\t") for line in run("msiinfo", "export", str(path), table).replace("\r", "").splitlines()[3:]]


def run(*command: str, folder: Path | None = None) -> str:
    """What the command prints; what it warns of fails, since it would be missing in the MSI."""
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
    if done.returncode or done.stderr:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def main(arguments: list[str]) -> int:
    """The exit code: 1, and nothing written, if anything stands against what is in the zip."""
    source = Path(arguments[0])
    with tempfile.TemporaryDirectory() as place:
        with zipfile.ZipFile(source) as archive:
            archive.extractall(place)
        folder = Path(place) / NAME
        if found := list(faults(folder)):
            print(f"{source} must not be handed out:", *found, sep="\n  ", file=sys.stderr)
            return 1
        target = source.with_suffix(".msi")
        try:
            build(folder, target)
        except FileNotFoundError as error:
            print(
                f"{error.filename} is missing: apt-get install --no-install-recommends wixl msitools", file=sys.stderr
            )
            return 1
        except subprocess.CalledProcessError as error:
            print(f"{error}\n{error.stdout}{error.stderr}", file=sys.stderr)
            return 1
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
