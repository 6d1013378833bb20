"""Which wheels a self-contained folder is made of: those of an old C library, on however new a host it is built.

pip asks this module by its name before it takes a wheel ([PEP 600], "Package Installers"); `deploy/standalone` puts its
folder on the path. Without it pip takes the wheel for the build host's own C library where there is one, as of bcrypt
and cryptography.
"""

from __future__ import annotations

from typing import Final

OLDEST: Final = (2, 28)
"""The glibc of RHEL 8, the oldest host that is served."""


def manylinux_compatible(major: int, minor: int, _architecture: str) -> bool:
    """Whether a wheel that needs this version of glibc may be taken; a host of that version has to be there besides."""
    return (major, minor) <= OLDEST
