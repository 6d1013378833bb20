"""Restrict the self-contained folder to wheels for an old C library, on any build host.

pip imports this module by its name before it selects a wheel ([PEP 600], "Package Installers"); `deploy/standalone`
adds its folder to the path. Without it, pip prefers wheels for the build host's C library, for example of bcrypt and
cryptography.
"""

from __future__ import annotations

from typing import Final

OLDEST: Final = (2, 28)
"""The glibc of RHEL 8, the oldest supported host."""


def manylinux_compatible(major: int, minor: int, _architecture: str) -> bool:
    """Return whether a wheel for this glibc version is permitted. The host must support that version too."""
    return (major, minor) <= OLDEST
