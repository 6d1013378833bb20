"""The broker of a test, and the parts that Azure's SDK does not close: test modules make their fixtures of these."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from exporter.simulator.event_hubs.broker import Broker
from tests.support.ports import reserved_port

# The SDK does not close failed parts, and passes `ssl=None` to aiohttp.
FORGETFUL = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning"),
]


def collected() -> Iterator[None]:
    """Collect the objects that the SDK has not closed here, where its warnings are expected.

    The remaining objects are excluded from the next collection, which would otherwise visit all that the tests loaded.
    """
    yield
    gc.collect()
    gc.freeze()


def running_broker() -> Iterator[Broker]:
    """A broker that must have no unexpected error by its end."""
    with reserved_port() as port, Broker(port=port) as broker:
        yield broker
    assert broker.unexpected_errors == []
