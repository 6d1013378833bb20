"""Which connection is closed when a new one needs its place: of the peer with the most, the one that loses least by it.

As long as some peer has more connections than a scraper has, the scraper keeps its own, however many addresses the
others come from. Among the connections of that peer (which may be the scraper's own address, behind a NAT) age alone
would evict a client that needs more than one network round trip to send a request. So first goes a connection whose
client does not read its response, then one that has read it and is idle, then the one longest in its present state.
"""

from __future__ import annotations

import enum
import ipaddress
from collections import Counter
from collections.abc import Collection
from typing import Final, Protocol, TypeVar

NETWORK_BITS: Final = 64
"""Of an IPv6 address: who has one such network has all of its addresses."""


class Rank(enum.IntEnum):
    """How little a client loses when its connection is closed: the lowest is evicted first."""

    STUCK = 0
    """It has sent a request, and for longer than a scraper needs has not read the response or is waiting for it."""
    IDLE = 1
    """It has read its response: a scraper connects anew, and loses nothing."""
    BUSY = 2
    """It is sending a request, or about to be answered."""


class Evictable(Protocol):
    """What eviction must know of a connection."""

    @property
    def peer(self) -> str:
        """The client's address, as `peer_of` gives it."""

    @property
    def since(self) -> float:
        """When its present state began, by the clock of `now`."""

    def rank(self, now: float) -> Rank:
        """How little its client loses at this time."""


E = TypeVar("E", bound=Evictable)


def choose_eviction(connections: Collection[E], now: float) -> E:
    """The connection to close for a new one. There must be at least one; `now` is on the clock of `since`."""
    counts = Counter(connection.peer for connection in connections)
    largest = max(counts.values())
    candidates = (connection for connection in connections if counts[connection.peer] == largest)
    oldest_first = sorted(candidates, key=lambda connection: connection.since)
    chosen, lowest = oldest_first[0], Rank.BUSY
    for connection in oldest_first:
        rank = connection.rank(now)
        if rank is Rank.STUCK:
            return connection  # the rank of the others, perhaps hundreds, need not be asked: each is a system call
        if rank < lowest:
            chosen, lowest = connection, rank
    return chosen


def peer_of(host: str) -> str:
    """What counts as one client: an IPv4 address, also where IPv6 carries it, or an IPv6 network of 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, NETWORK_BITS), strict=False))
