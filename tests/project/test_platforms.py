"""The locks on every platform, without the network: `make -C deploy platforms` looks up the wheels there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from deploy import platforms

ROOT: Final = Path(__file__).parents[2]
MACHINES: Final = {
    "Linux amd64": {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": "x86_64",
    },
    "Linux arm64": {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": "aarch64",
    },
    "Windows amd64": {
        "sys_platform": "win32",
        "platform_system": "Windows",
        "os_name": "nt",
        "platform_machine": "AMD64",
    },
}
HASH: Final = re.compile(r"--hash=sha256:[0-9a-f]{64}(?![0-9a-f])")


def entries(name: str) -> dict[str, tuple[Requirement, int]]:
    """Return each requirement of a lock by its name, with the number of its hashes."""
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
    found = [one for one in re.split(r"\n(?=\S)", text) if not one.startswith("#")]
    asked = [(Requirement(one.split("\\")[0]), len(HASH.findall(one))) for one in found]
    return {requirement.name: (requirement, hashes) for requirement, hashes in asked}


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("machine", MACHINES)
def test_the_locks_have_one_version_with_hashes_per_platform(machine: str, version: str) -> None:
    """On each platform and Python, every requirement has one version with a hash; only Windows has pywin32."""
    there = MACHINES[machine] | {
        "python_version": version,
        "python_full_version": f"{version}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    for lock in platforms.LOCKS:
        applies = {}
        for name, (requirement, hashes) in entries(lock).items():
            if requirement.marker is None or requirement.marker.evaluate(there):
                applies[name] = hashes
                (pin,) = requirement.specifier
                assert pin.operator == "==", requirement
        assert applies, lock
        assert min(applies.values()) >= 1, applies
        assert ("pywin32" in applies) is (machine.startswith("Windows") and lock == "constraints.txt")


def test_the_check_covers_the_supported_pythons() -> None:
    """The check covers every Python of the classifiers, from the oldest supported one."""
    versions = [Version(one) for one in platforms.pythons()]
    assert versions == sorted(versions)
    assert str(versions[0]) == "3.11"
    assert set(platforms.PLATFORMS) == set(MACHINES)
