"""The client of the metadata service in the tests: with deadlines that a slow machine meets, too."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from exporter.metadata.client import MetadataClient
from exporter.metadata.errors import REASONS, MetadataError
from tests.support.raw_server import Peer, RawServer, Script

DOCUMENT = b'{"DocumentIncarnation":1,"Events":[]}'
PATH = b"/metadata/scheduledevents?api-version=2020-07-01"
QUICK = 1.0  # the deadline for a peer that never ends
PLENTY = 30.0  # for one that does, on a machine that may stall for a while
CUT: dict[str, Any] = {"deadline": QUICK, "first_deadline": QUICK}
SLACK = 5.0  # how late a deadline may be noticed on a busy machine; without the deadline the call would never end


@contextmanager
def client_of(url: str, **limits: Any) -> Iterator[MetadataClient]:
    """Yield a client of that URL, closed at the end. `limits` are those of MetadataClient, in seconds."""
    client = MetadataClient(url, "2020-07-01", **({"deadline": PLENTY, "first_deadline": PLENTY} | limits))
    try:
        yield client
    finally:
        client.close()


def failure(call: Callable[[], object]) -> MetadataError:
    """Return the error that the call ends with, for a reason of the closed set."""
    with pytest.raises(MetadataError) as caught:
        call()
    assert caught.value.reason in REASONS
    return caught.value


def failure_of(script: Script, **limits: Any) -> MetadataError:
    """Return the error of one poll of a peer that follows the script, raised within the deadline."""
    with RawServer(script) as server, client_of(server.url, **limits) as client:
        began = time.monotonic()
        error = failure(client.fetch)
        assert time.monotonic() - began < limits.get("first_deadline", PLENTY) + SLACK
        return error


def silent(peer: Peer) -> None:
    """Return a script: accept a request and never answer."""
    peer.request()
    peer.linger()


ENDLESS = itertools.repeat
