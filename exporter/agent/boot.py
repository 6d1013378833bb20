"""Which boot of the machine this is. A difference between two ids is the evidence of a reboot, so an id that may change
by itself is none."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from exporter.windows import system

LINUX_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
RANDOM: Final = 4
"""The version of a UUID that is drawn at random [RFC 9562, 5.4]."""


def boot_id(
    platform: str = sys.platform, file: Path = LINUX_FILE, shared_page: Callable[[], bytes] = system.shared_page
) -> str:
    """Identifies this boot of the machine; empty where the system gives no id.

    `file` is where Linux has it (random(4)), `shared_page` reads where Windows has it.
    """
    try:
        if platform == "win32":
            return system.boot_id(shared_page())
        return file.read_text(encoding="ascii").strip()[:64]
    except (OSError, ValueError):
        return ""


def is_same_boot(one: str, other: str) -> bool:
    """Whether two boot ids prove the same boot of the same machine.

    Linux draws a random UUID at each boot. Windows counts its boots, and another machine can be at the same number.
    """
    try:
        return one == other and uuid.UUID(one).version == RANDOM
    except ValueError:
        return False
