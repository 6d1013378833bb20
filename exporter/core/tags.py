"""Names of VM tags: which tags of this VM are published is configured, and never another one, since tags may hold
secrets.

Azure compares the names of tags without regard to case [Azure Resource Manager, Tag usage and recommendations]; they
are published as they are configured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MAX_TAGS: Final = 16
"""Each is a label of `vm_info`, on each VM of a fleet."""
MAX_TAG_NAME: Final = 512
"""Characters, as Azure allows."""
MAX_TAG_VALUE: Final = 256
"""Characters, as Azure allows; a longer value is cut."""

Tags = tuple[tuple[str, str], ...]
"""Name, as configured, and value of each tag that is published; "" for one that the VM does not have, or that is not
known."""

_NO_LABEL: Final = re.compile(r"[^a-zA-Z0-9_]")


def tag_label(name: str) -> str:
    """The label of a tag on `vm_info`."""
    return "tag_" + _NO_LABEL.sub("_", name)


def unknown_tags(names: Iterable[str]) -> Tags:
    """The tags of a VM that has not been asked yet."""
    return tuple((name, "") for name in names)
