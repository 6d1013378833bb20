"""Temporary folders in memory: the files of this room are brought to the disk each time."""

from __future__ import annotations

import pytest

from tests.support.effort import folder_in_memory

tmp_path = pytest.fixture(folder_in_memory)
