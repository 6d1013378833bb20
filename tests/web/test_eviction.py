"""Which connection is closed for a new one."""

from __future__ import annotations

import pytest

from exporter.web.connection import Rank, WebConnection, choose_eviction, peer_of


class Ranked(WebConnection):
    """A connection that needs no socket to be evicted."""

    def __init__(self, peer: str, since: float, ranked: Rank) -> None:
        self.peer, self.since, self.ranked = peer, since, ranked

    def rank(self, now: float) -> Rank:  # noqa: ARG002  # the signature of the base class
        return self.ranked


@pytest.mark.parametrize("rank", list(Rank))
def test_the_peer_with_the_most_connections_loses_one(rank: Rank) -> None:
    """It is the oldest of the peers that have the most, whatever it and the others do, and however old they are."""
    scraper = Ranked("scraper", 0.0, Rank.STUCK)
    crowd = [Ranked(f"crowd {n % 3}", 1.0 + n, rank) for n in range(7)]
    assert choose_eviction([scraper, *crowd], 99.0) is crowd[0]


def test_of_one_peer_stuck_connections_go_first_then_idle_ones_then_the_oldest() -> None:
    """Age decides between those of the same rank."""
    ranks = (Rank.BUSY, Rank.IDLE, Rank.STUCK) * 2
    connections: list[WebConnection] = [Ranked("nat", float(n), rank) for n, rank in enumerate(ranks)]
    order = []
    while connections:
        evicted = choose_eviction(connections, 99.0)
        order.append((evicted.rank(99.0), evicted.since))
        connections.remove(evicted)
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("hosts", "peers"),
    [
        (["192.0.2.1", "192.0.2.2", "::ffff:192.0.2.1"], 2),
        (["2001:db8:0:1::1", "2001:db8:0:1:ffff::2"], 1),
        (["2001:db8:0:1::1", "2001:db8:0:2::1"], 2),
        (["fe80::1%eth0", "::ffff:10.0.0.1", "::ffff:10.0.0.2"], 3),
        (["", "no address"], 2),
    ],
)
def test_a_peer_is_what_one_host_has(hosts: list[str], peers: int) -> None:
    """An IPv4 address is one host's, also where IPv6 carries it; of IPv6 one host may have a network of 64 bits."""
    assert len({peer_of(host) for host in hosts}) == peers
