"""Who goes when a newcomer needs room: one of the crowd, and of the crowd the one that will be missed least.

A crowd is the address with the most connections. As long as somebody has more of them than a scraper has, the scraper
keeps its own, however many addresses the others come from. Within the crowd (which may share its address with the
scraper, behind a NAT) it is not age alone that decides, since the next newcomer would then push out whoever needs more
than one journey over the network to ask: first goes who has asked and does not take the answer, then who has taken it
and waits to ask again, then the one that has been at its step for longest.
"""

from __future__ import annotations

import enum
import ipaddress
from collections import Counter
from collections.abc import Collection
from typing import Final, Protocol, TypeVar

NETWORK_BITS: Final = 64
"""Of an IPv6 address: whoever has one such network has all of its addresses."""


class Rank(enum.IntEnum):
    """How little a connection will be missed: the lowest goes first."""

    STUCK = 0
    """Has asked, and for longer than a scraper needs has not taken the answer or is waiting for it."""
    IDLE = 1
    """Has taken its answer: a scraper connects anew, and loses nothing."""
    BUSY = 2
    """Is about to ask, or to be answered."""


class Guest(Protocol):
    """A connection as seen by who makes room. `since` is when its present step began, as `now`."""

    @property
    def peer(self) -> str: ...
    @property
    def since(self) -> float: ...
    def rank(self, now: float) -> Rank: ...


G = TypeVar("G", bound=Guest)


def first_to_go(guests: Collection[G], now: float) -> G:
    """Whose room a newcomer gets. There must be a guest."""
    crowds = Counter(guest.peer for guest in guests)
    largest = max(crowds.values())
    oldest_first = sorted((guest for guest in guests if crowds[guest.peer] == largest), key=lambda guest: guest.since)
    found, lowest = oldest_first[0], Rank.BUSY
    for guest in oldest_first:
        rank = guest.rank(now)
        if rank is Rank.STUCK:
            return guest  # and the others, hundreds perhaps, need not be asked
        if rank < lowest:
            found, lowest = guest, rank
    return found


def peer_of(host: str) -> str:
    """What counts as one address: an IPv4 address, also where it came as an IPv6 one, or an IPv6 network of 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, NETWORK_BITS), strict=False))
