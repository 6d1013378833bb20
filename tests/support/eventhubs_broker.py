"""The broker that a test gets, and what Azure's SDK leaves lying about: what each test module makes its fixtures of."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from exporter.simulator.event_hubs.broker import Broker

# The SDK forgets to close what failed, and says `ssl=None` to aiohttp; both are not ours to mend.
FORGETFUL = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning"),
]


def collected() -> Iterator[None]:
    """What the SDK forgot is collected here, where its warnings are expected."""
    yield
    gc.collect()


def running_broker() -> Iterator[Broker]:
    """A broker that trips over nothing, up to its end."""
    with Broker() as broker:
        yield broker
    assert broker.unexpected_errors == []
