"""One Prometheus that has lived through all stories, for every test of the dashboards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.dashboards_world import World, world


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Made by each worker that has tests of it."""
    with world(tmp_path_factory.mktemp("stories")) as made:
        yield made
