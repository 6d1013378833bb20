"""The id of the current boot.

A different id is evidence of a reboot, so an id that can change during a boot isn't used.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from exporter.windows import system

LINUX_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
RANDOM: Final = 4
"""The version of a random UUID [RFC 9562, 5.4]."""


def boot_id(
    platform: str = sys.platform, file: Path = LINUX_FILE, shared_page: Callable[[], bytes] = system.shared_page
) -> str:
    """Return the id of this boot of the machine; empty if the system provides none.

    `file` contains it on Linux (random(4)); `shared_page` reads the page that contains it on Windows.
    """
    try:
        if platform == "win32":
            return system.boot_id(shared_page())
        return file.read_text(encoding="ascii").strip()[:64]
    except (OSError, ValueError):
        return ""


def is_same_boot(one: str, other: str) -> bool:
    """Return whether two ids prove the same boot of the same machine.

    Linux creates a random UUID at each boot. Windows counts boots, so two machines can have the same number.
    """
    try:
        return one == other and uuid.UUID(one).version == RANDOM
    except ValueError:
        return False
