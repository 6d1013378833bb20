"""What the types of the state have in common: they are their own form on disk (`core/state_codec.py`)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

Time = Annotated[datetime, Meta(tz=True)]
"""A time that on disk must have its zone."""


class Stored(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value that is part of the state."""
