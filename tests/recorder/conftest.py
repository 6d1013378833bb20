"""Temporary directories in memory: these tests commit often and would mostly wait for the disk."""

from __future__ import annotations

import pytest

from tests.support.effort import folder_in_memory

tmp_path = pytest.fixture(folder_in_memory)
