"""One Prometheus with the scrapes of all scenarios, for every test of the dashboards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.dashboards_environment import DashboardsEnvironment, environment


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardsEnvironment]:
    """Started once by each worker that needs it."""
    with environment(tmp_path_factory.mktemp("scenarios")) as made:
        yield made
