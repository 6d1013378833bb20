"""Whose connection makes room for a newcomer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from exporter.web.eviction import Rank, first_to_go, peer_of


@dataclass(frozen=True)
class Guest:
    """A connection as it is asked."""

    peer: str
    since: float
    ranked: Rank

    def rank(self, now: float) -> Rank:  # noqa: ARG002  # the protocol's signature
        return self.ranked


@pytest.mark.parametrize("rank", list(Rank))
def test_who_is_alone_stays_while_others_are_many(rank: Rank) -> None:
    """The address with the most connections makes room, whatever it and the others do, and however old they are."""
    scraper = Guest("scraper", 0.0, Rank.STUCK)
    crowd = [Guest(f"crowd {n % 3}", 1.0 + n, rank) for n in range(7)]
    assert first_to_go([scraper, *crowd], 99.0) == Guest("crowd 0", 1.0, rank)


def test_in_a_crowd_who_does_not_take_its_answer_goes_first_then_who_is_idle_then_the_oldest() -> None:
    """Age decides between those that do the same."""
    guests = [Guest("nat", float(n), rank) for n, rank in enumerate((Rank.BUSY, Rank.IDLE, Rank.STUCK) * 2)]
    gone = []
    while guests:
        goes = first_to_go(guests, 99.0)
        gone.append((goes.ranked, goes.since))
        guests.remove(goes)
    assert gone == sorted(gone)


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
def test_an_address_is_what_one_host_has(hosts: list[str], peers: int) -> None:
    """An IPv4 address is one host's, also where IPv6 carries it; of IPv6 one host may have a network of 64 bits."""
    assert len({peer_of(host) for host in hosts}) == peers
