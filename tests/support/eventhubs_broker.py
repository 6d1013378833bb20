"""The broker of a test, and what Azure's SDK does not close: test modules make their fixtures of these."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from exporter.simulator.event_hubs.broker import Broker
from tests.support.ports import reserved_port

# The SDK does not close what failed, and passes `ssl=None` to aiohttp.
FORGETFUL = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning"),
]


def collected() -> Iterator[None]:
    """Collect what the SDK has not closed here, where its warnings are expected.

    What is left is kept out of the next time, which would look through all that the tests so far have loaded.
    """
    yield
    gc.collect()
    gc.freeze()


def running_broker() -> Iterator[Broker]:
    """A broker that must have no unexpected error by its end."""
    with reserved_port() as port, Broker(port=port) as broker:
        yield broker
    assert broker.unexpected_errors == []
