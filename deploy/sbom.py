"""The SBOM as CycloneDX JSON: `python -m deploy.sbom` writes dist/….cdx.json (`make -C deploy sbom`).

It lists each distribution in deploy/constraints.txt with its version, its licence, the hashes of its files, and the
distributions that require it, as noted by uv in the lock. Python and the other libraries of a self-contained folder
are listed in that folder (`deploy.licences`). The same commit gives the same bytes.

Exit code 0: written, and valid against the CycloneDX schema; 1: invalid, and not written.
"""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from deploy import licences
from deploy.packages.build import source_date
from exporter import __version__

NAME: Final = "azure-scheduled-events-exporter"
OUTPUT: Final = licences.ROOT / "dist" / f"{NAME}.cdx.json"


@dataclass(frozen=True, slots=True)
class Locked:
    """An entry of the lock. `hashes` are the SHA-256 of its files; `wanted_by` are the names that require it."""

    name: str
    version: str
    hashes: tuple[str, ...]
    wanted_by: tuple[str, ...]


def main() -> int:
    """Write the SBOM. Return the exit code."""
    licence_of = {licences.normal(one.name): one.licence for one in licences.in_lock()}
    text = JsonV1Dot6(made_of([*locked(licences.LOCK)], licence_of, source_date(os.environ))).output_as_string(indent=2)
    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        print(fault, file=sys.stderr)
        return 1
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(text + "\n", encoding="utf-8", newline="\n")
    print(OUTPUT)
    return 0


def locked(lock: Path) -> Iterator[Locked]:
    """Return the entries of a lock by uv, with its notes on the distributions that require them."""
    for entry in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8")):
        if match := re.match(r"([A-Za-z0-9._-]+)==([^ ;\\]+)", entry):
            notes = " ".join(re.findall(r"^ +# +(.*)$", entry, re.MULTILINE)).removeprefix("via ").split()
            wanted_by = tuple(word for word in notes if not word.startswith("("))
            yield Locked(match[1], match[2], tuple(re.findall(r"sha256:([0-9a-f]{64})", entry)), wanted_by)


def made_of(entries: list[Locked], licence_of: dict[str, str], made_at: datetime) -> Bom:
    """Return the bill of materials. `licence_of` has the SPDX expression of each name."""
    root = Component(name=NAME, version=__version__, type=ComponentType.APPLICATION, bom_ref=NAME)
    root.licenses.add(LicenseFactory().make_from_string("MIT"))
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, repr((__version__, entries))))  # the default is random
    bom.metadata.timestamp = made_at
    bom.metadata.component = root
    made = {entry.name: _component(entry, licence_of[entry.name]) for entry in entries}
    for component in made.values():
        bom.components.add(component)
    for one in (root, *made.values()):
        bom.register_dependency(one, [made[entry.name] for entry in entries if one.name in entry.wanted_by])
    return bom


def _component(entry: Locked, licence: str) -> Component:
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"https://pypi.org/simple/{entry.name}/"),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in entry.hashes],
    )
    return Component(
        name=entry.name,
        version=entry.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{entry.name}=={entry.version}",
        purl=PackageURL("pypi", name=entry.name, version=entry.version),
        licenses=[LicenseFactory().make_from_string(licence)],
        external_references=[files],
    )


if __name__ == "__main__":
    sys.exit(main())
