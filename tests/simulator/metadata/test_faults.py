"""The faults of the simulated metadata service: effect, place, and duration."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest

from exporter.simulator.faults import FaultError, Faults
from exporter.simulator.metadata import faults
from tests.support.factories import Clock
from tests.support.simulator_client import COMPUTE, EVENTS, MIGRATION, START, Reply, approve, ask, playing

STATUS_FAULTS = [name for name in faults.KINDS if name.isdecimal()]


@pytest.mark.parametrize("name", STATUS_FAULTS)
def test_a_status_fault_fails_reads_and_approvals(name: str) -> None:
    """Every numbered fault is that status for GET and POST, approves nothing, and ends when cleared."""
    clock = Clock(START)
    with playing("live-migration", clock, faults=[name]) as service:
        clock.now += 60
        service.fault(name)
        assert (ask(service).status, approve(service, MIGRATION)) == (int(name), int(name))
        assert service.platform.approvals == ()
        assert ("Retry-After" in ask(service).headers) == (name in ("429", "503"))
        assert ask(service, COMPUTE).status == 200
        service.fault(None)
        assert (ask(service).status, approve(service, MIGRATION)) == (200, 200)


def test_body_faults_send_no_document() -> None:
    """Each fault of the body has the effect of its name, and never gives a valid document by accident."""
    clock = Clock(START)
    with playing("live-migration", clock) as service:
        clock.now += 60
        good = ask(service).body

        def struck(name: str) -> Reply:
            service.fault(name)
            return ask(service)

        assert struck("empty").body == b""
        assert struck("not-json").body not in (b"", good)
        assert struck("html").headers["Content-Type"] == "text/html"
        assert struck("truncated").body == good[: len(good) // 2]
        assert struck("bom").body == b"\xef\xbb\xbf" + good
        assert struck("gzip").headers["Content-Encoding"] == "gzip"
        assert len(struck("gzip:50").body) < 100_000
        assert len(struck("huge").body) > 4 * 1024 * 1024
        assert b"NaN" in struck("nan").body
        assert rb"\ud800" in struck("surrogate").body
        assert struck("duplicate-keys").body.count(b'"DocumentIncarnation"') == 2
        with pytest.raises(RecursionError):
            json.loads(struck("deep").body)
        moved = struck("redirect")
        assert (moved.status, moved.headers["Location"]) == (302, "/metadata/elsewhere")


@pytest.mark.not_wine("a reset comes there as the end of the connection")
def test_connection_faults_break_the_connection() -> None:
    """Reset, gap, half-close, hang, and drip each leave a client without a complete response."""
    with playing("live-migration", Clock(START)) as service:
        service.fault("reset")
        with pytest.raises(ConnectionResetError):
            ask(service)
        service.fault("gap")
        with pytest.raises(ConnectionResetError):
            ask(service)
        service.fault("half-close")
        with pytest.raises(http.client.IncompleteRead):
            ask(service)
        for name in ("hang", "drip:30", "slow:30"):
            service.fault(name)
            with pytest.raises(TimeoutError):
                ask(service, timeout=0.1)
        service.fault("hang:0")
        with pytest.raises(http.client.RemoteDisconnected):
            ask(service)
        service.fault("drip:0")
        assert ask(service).json["DocumentIncarnation"] == 1
        assert not service.posts


def test_an_endless_response_continues_until_the_client_disconnects() -> None:
    """`endless` announces no length and doesn't stop by itself."""
    with playing("quiet", Clock(START), faults=["endless"]) as service:
        address = urlsplit(service.url)
        with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=5) as client:
            client.sendall(f"GET {EVENTS} HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n\r\n".encode())
            received = 0
            while received < 8 * 1024 * 1024:
                chunk = client.recv(1 << 20)
                assert chunk
                received += len(chunk)


def test_post_faults_do_not_affect_reads() -> None:
    """post-* doesn't affect reads; only post-reset approves, and loses the response."""
    for name, status, approvals in (
        ("post-400", 400, 0),
        ("post-500", 500, 0),
        ("post-hang:0", 0, 0),
        ("post-reset", 0, 1),
    ):
        clock = Clock(START)
        with playing("live-migration", clock) as service:
            clock.now += 60
            service.fault(name)
            assert ask(service).status == 200
            if status:
                assert approve(service, MIGRATION) == status
            else:
                with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
                    approve(service, MIGRATION)
            assert service.posts[0].status == status
            assert len(service.platform.approvals) == approvals


def test_a_fault_applies_to_its_place_and_its_count() -> None:
    """A delay applies in addition to the first other fault."""
    with playing("quiet", Clock(START)) as service:
        service.fault("instance/404", "500*2")
        assert [ask(service).status for _ in range(3)] == [500, 500, 200]
        assert ask(service, COMPUTE).status == 404
        service.fault("all/503")
        assert (ask(service).status, ask(service, COMPUTE).status) == (503, 503)
        service.fault("410*1", "slow:0*1", "slow:0")
        assert [ask(service).status for _ in range(2)] == [410, 200]


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "no-such",
        "500:3",
        "elsewhere/500",
        "slow:-1",
        "slow:nan",
        "slow:fast",
        "500@5-10",
        "500*",
        "500 ",
    ],
)
def test_an_unknown_fault_is_refused(spec: str) -> None:
    """An invalid fault is an error that quotes it, and doesn't change the active ones."""
    with pytest.raises(FaultError, match=re.escape(spec or "''")):
        Faults(faults.KINDS, faults.PLACES).parse(spec)
    with playing("quiet", Clock(START), faults=["500"]) as service:
        if spec:
            with pytest.raises(FaultError):
                service.fault(spec)
        assert ask(service).status == 500


@pytest.mark.not_wine("a shutdown there does not wake the thread that waits to receive")
def test_closing_leaves_no_thread_and_no_connection() -> None:
    """A closed service waits for none of its clients; closing twice is allowed."""
    before = set(threading.enumerate())
    service = playing("quiet", Clock(START), faults=["hang*1"])
    service.start()
    address = urlsplit(service.url)
    idle = socket.create_connection((str(address.hostname), int(address.port or 0)))
    with pytest.raises(TimeoutError):
        ask(service, timeout=0.1)
    began = time.monotonic()
    service.close()
    service.close()
    assert time.monotonic() - began < 20  # the fault hangs for an hour
    idle.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError):
        ask(service)
