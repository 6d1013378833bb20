"""What every command ends with."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
FAILED: Final = 1
BAD_USAGE: Final = 2
"""Also bad configuration. argparse ends with the same for a bad command line."""
