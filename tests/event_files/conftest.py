"""Temporary directories in memory: the files of these tests are flushed to the disk each time."""

from __future__ import annotations

import pytest

from tests.support.effort import folder_in_memory

tmp_path = pytest.fixture(folder_in_memory)
