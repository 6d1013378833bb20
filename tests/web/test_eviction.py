"""The connection that is closed for a new one."""

from __future__ import annotations

import pytest

from exporter.web.connection import Rank, WebConnection, choose_eviction, peer_of


class Ranked(WebConnection):
    """A connection that can be evicted without a socket."""

    def __init__(self, peer: str, since: float, ranked: Rank) -> None:
        self.peer, self.since, self.ranked = peer, since, ranked

    def rank(self, now: float) -> Rank:  # noqa: ARG002  # the signature of the base class
        return self.ranked


@pytest.mark.parametrize("rank", list(Rank))
def test_the_peer_with_the_most_connections_loses_one(rank: Rank) -> None:
    """It is the oldest of the peers with the most connections, regardless of ranks and of other peers' ages."""
    scraper = Ranked("scraper", 0.0, Rank.STUCK)
    crowd = [Ranked(f"crowd {n % 3}", 1.0 + n, rank) for n in range(7)]
    assert choose_eviction([scraper, *crowd], 99.0) is crowd[0]


def test_stuck_connections_of_a_peer_go_before_idle_ones_and_those_before_the_oldest() -> None:
    """Age decides between connections of the same rank."""
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
def test_a_peer_is_an_ipv4_address_or_an_ipv6_network(hosts: list[str], peers: int) -> None:
    """An IPv4 address is one host, also if mapped to IPv6; of IPv6, one host may have a /64 network."""
    assert len({peer_of(host) for host in hosts}) == peers
