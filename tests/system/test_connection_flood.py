"""Floods that use up all connections of the scrape endpoint, with the default limits, while a scraper works.

Each flood opens as many connections as allowed and then 100 a second; the scraper is 30 ms away, as Prometheus may be.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from tests.support.certificates import Authority, write
from tests.support.connection_flood import CONNECTIONS, Crowd, FirstBytes, hosts, scraper
from tests.support.web_target import ASK, Target, target

pytestmark = pytest.mark.linux("has crowds as on Ethernet by TCP_MAXSEG")

SECONDS = 2.0
PASSWORD = "correct horse"
SLOW_HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
HOME = ["127.0.0.1"]
"""Address of the scraper."""


def authorization(password: str) -> bytes:
    return b"Authorization: Basic " + base64.b64encode(f"prometheus:{password}".encode()) + b"\r\n"


def silent(_: int) -> bytes:
    return b""


def half_a_head(_: int) -> bytes:
    return b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "


def half_a_body(_: int) -> bytes:
    return b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\nabc"


def unread(_: int) -> bytes:
    return ASK % b""


def guessing(number: int) -> bytes:
    return ASK % authorization(f"wrong {number}")


def guessing_together(number: int) -> bytes:
    """Sixteen clients share a password, so the limit on waiting password checks rejects none of them."""
    return ASK % authorization(f"wrong {number // 16}")


FROM = [
    pytest.param(hosts(1), id="one", marks=pytest.mark.nightly),
    pytest.param(hosts(200), id="200"),
    pytest.param(HOME, id="scrapers-own"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate and web-config files for TLS and passwords."""
    folder, authority = tmp_path_factory.mktemp("web"), Authority()
    write(folder, "server", *authority.issue("localhost", "127.0.0.1"))
    (folder / "ca.crt").write_text(authority.pem)
    (folder / "tls.yml").write_text("tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n")
    (folder / "auth.yml").write_text(f"basic_auth_users:\n  prometheus: {SLOW_HASH}\n")
    return folder


@pytest.fixture
def plain() -> Iterator[Target]:
    with target("--kib", "300") as running:
        yield running


@pytest.fixture
def tls(folder: Path) -> Iterator[Target]:
    with target("--kib", "300", "--nofile", "512", "--web-config", str(folder / "tls.yml")) as running:
        yield running


@pytest.fixture
def guarded(folder: Path) -> Iterator[Target]:
    with target("--web-config", str(folder / "auth.yml")) as running:
        yield running


def nearly_all(scrapes: list[bool]) -> bool:
    """Return whether at most one of them failed: a machine may stall."""
    return len(scrapes) > 1 and sum(scrapes) >= len(scrapes) - 1


@pytest.mark.parametrize("sources", FROM)
@pytest.mark.parametrize("first", [silent, unread])
def test_a_scraper_is_answered_during_a_flood(plain: Target, first: FirstBytes, sources: list[str]) -> None:
    """Scrapes are answered during every kind of flood, also from the scraper's own address."""
    with Crowd(plain.address, first, sources=sources), scraper(plain.address) as prometheus:
        assert nearly_all(prometheus.answered(SECONDS))


@pytest.mark.parametrize("first", [silent, half_a_head, half_a_body, unread])
def test_a_scraper_that_connects_for_each_scrape_is_answered_during_a_flood(plain: Target, first: FirstBytes) -> None:
    """A scraper that opens a new connection each time is answered too, from the address of the flood."""
    with Crowd(plain.address, first, sources=HOME), scraper(plain.address, keep=False) as prometheus:
        assert nearly_all(prometheus.answered(SECONDS))


@pytest.mark.parametrize("sources", FROM)
def test_a_scraper_is_answered_during_a_flood_with_few_descriptors(sources: list[str]) -> None:
    """With 32 connections, and a third of a second until a new one is the oldest, scrapes are answered too."""
    with (
        target("--kib", "300", "--nofile", "64") as running,
        Crowd(running.address, unread, sources=sources, size=64),
        scraper(running.address) as prometheus,
    ):
        assert nearly_all(prometheus.answered(SECONDS))


@pytest.mark.parametrize("sources", FROM)
@pytest.mark.parametrize("first", [silent, unread])
def test_a_scraper_over_tls_is_answered_during_a_flood(
    tls: Target, folder: Path, first: FirstBytes, sources: list[str]
) -> None:
    """With TLS a scraper needs two more round trips; half the connections are enough."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    with (
        Crowd(tls.address, first, sources=sources, context=context, size=CONNECTIONS // 2),
        scraper(tls.address, context=context) as prometheus,
    ):
        assert nearly_all(prometheus.answered(SECONDS))


@pytest.mark.parametrize("sources", FROM)
@pytest.mark.parametrize("first", [guessing, guessing_together])
def test_a_scraper_with_a_known_password_is_answered_during_a_flood(
    guarded: Target, first: FirstBytes, sources: list[str]
) -> None:
    """A scraper that authenticated before the flood is answered all the time."""
    with scraper(guarded.address, headers=authorization(PASSWORD)) as prometheus:
        assert prometheus.scrape()
        with Crowd(guarded.address, first, sources=sources, rate=200):
            assert nearly_all(prometheus.answered(SECONDS))


@pytest.mark.parametrize("sources", FROM)
def test_a_scraper_with_a_new_password_is_admitted_during_a_flood(guarded: Target, sources: list[str]) -> None:
    """A scraper that first connects during the flood waits for its turn, and is known from then on."""
    with (
        Crowd(guarded.address, guessing, sources=sources),
        scraper(guarded.address, headers=authorization(PASSWORD)) as prometheus,
    ):
        assert any(prometheus.scrape() for _ in range(4))
        assert nearly_all(prometheus.answered(SECONDS))
