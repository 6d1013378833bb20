"""The metadata client: its requests, valid responses, approvals, and the VM's identity."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.core.records import Vm
from exporter.metadata.client import parse_instance
from tests.support.metadata_client import CUT, DOCUMENT, ENDLESS, PATH, PLENTY, client_of, failure, failure_of, silent
from tests.support.raw_server import Peer, RawServer, Script, answers, answers_once, ok, response


def test_a_poll_is_the_documented_request() -> None:
    """A poll is the documented GET with the Metadata header, without content encoding, on one kept connection."""
    with RawServer(answers(ok(DOCUMENT))) as server, client_of(server.url + "/") as client:
        first, second = client.fetch(), client.fetch()
        assert first.body == second.body == DOCUMENT
        assert 0 < second.duration < PLENTY
        assert first.read_at_monotonic < second.read_at_monotonic <= time.monotonic()
        assert server.connections == 1
        head = server.requests[0].lower()
        assert server.requests[0].startswith(b"GET " + PATH + b" HTTP/1.1\r\n")
        assert b"\r\nmetadata: true\r\n" in head
        assert b"\r\naccept-encoding: identity\r\n" in head


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>captive portal</html>", b"\xef\xbb\xbf{}", b"\x00" * 70_000],
    ids=["empty", "html", "bom", "big"],
)
def test_a_200_is_passed_on_as_bytes(body: bytes) -> None:
    """The parser judges the body of a 200: the client passes on every byte."""
    with RawServer(answers(ok(body))) as server, client_of(server.url) as client:
        assert client.fetch().body == body


def test_a_chunked_body_is_read_completely() -> None:
    """A chunked response is one body, and the connection is used again."""
    chunked = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n'
    with RawServer(answers(chunked)) as server, client_of(server.url) as client:
        assert client.fetch().body == client.fetch().body == b'{"a":1}'
        assert server.connections == 1


@pytest.mark.parametrize(
    ("status", "reason", "delay"),
    [
        ("400 Bad Request", "status-400", 1),
        ("401 Unauthorized", "forbidden", 30),
        ("403 Forbidden", "forbidden", 30),
        ("404 Not Found", "not-found", 1),
        ("408 Request Timeout", "status-other", 1),
        ("410 Gone", "gone", 1),
        ("429 Too Many Requests", "throttled", 1),
        ("500 Internal Server Error", "server-error", 1),
        ("503 Service Unavailable", "server-error", 1),
        ("204 No Content", "status-other", 1),
        ("206 Partial Content", "status-other", 1),
        ("302 Found", "redirect", 1),
        ("304 Not Modified", "redirect", 1),
        ("999 What", "status-other", 1),
    ],
)
def test_only_200_is_a_success(status: str, reason: str, delay: float) -> None:
    """Every other status is an error with its reason, its code, and the delay before the next request."""
    error = failure_of(answers_once(response(status, b"" if status[:3] in {"204", "304"} else DOCUMENT)))
    assert (error.reason, error.status_code, error.delay()) == (reason, int(status[:3]), delay)


def test_switching_protocols_is_refused() -> None:
    """A 101 is not a response to a GET."""
    switching = b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    assert failure_of(answers_once(switching)).reason == "protocol"


@pytest.mark.parametrize(
    "location", ["http://127.0.0.1:{port}/elsewhere", "http://a:b:c", "http://xn--/", "mailto:x", "\x80", ""]
)
def test_a_redirect_is_never_followed(location: str) -> None:
    """A redirect is an error for any target, and the target gets no request."""
    with RawServer(answers(ok(DOCUMENT))) as target:
        header = f"Location: {location.format(port=target.port)}"
        assert failure_of(answers_once(response("302 Found", b"", header))).reason == "redirect"
        assert target.connections == 0


def test_cookies_are_not_kept() -> None:
    """A cookie of the peer is not sent back."""
    with RawServer(answers(ok(DOCUMENT, "Set-Cookie: a=b; Path=/"))) as server, client_of(server.url) as client:
        client.fetch()
        client.fetch()
        assert b"cookie" not in server.requests[1].lower()


NOW = 1_649_715_000.0  # Mon, 11 Apr 2022 22:10:00 GMT


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("61", 60.0),
        ("9" * 5000, 60.0),
        ("Mon, 11 Apr 2022 22:10:30 GMT", 30.0),
        ("Mon, 11 Apr 2022 21:10:30 GMT", 0.0),
        ("Mon, 11 Apr 2099 22:10:30 GMT", 60.0),
        ("-5", None),
        ("1e3", None),
        ("soon", None),
        ("Mon, 99 Apr 99999 22:10:30 GMT", None),
        ("\u00b2", None),
        ("", None),
    ],
)
def test_retry_after_is_obeyed_up_to_a_minute(value: str, expected: float | None) -> None:
    """Both forms of Retry-After are read, from 0 to 60 seconds; invalid ones are ignored."""
    answer = response("429 Too Many Requests", b"").replace(
        b"\r\n\r\n", b"\r\nRetry-After: " + value.encode() + b"\r\n\r\n"
    )
    error = failure_of(answers_once(answer), clock=lambda: NOW)
    assert error.retry_after == expected
    assert error.delay() == max(1.0, expected or 0.0)


@pytest.mark.parametrize(("date", "expected"), [("Mon, 11 Apr 2022 22:10:00 GMT", 30.0), ("soon", 60.0)])
def test_retry_after_is_read_by_the_clock_of_the_service(date: str, expected: float) -> None:
    """The VM's clock may be wrong, here by a day: it is used only if the response has no Date."""
    fields = f"\r\nDate: {date}\r\nRetry-After: Mon, 11 Apr 2022 22:10:30 GMT\r\n\r\n".encode()
    answer = response("429 Too Many Requests", b"").replace(b"\r\n\r\n", fields)
    assert failure_of(answers_once(answer), clock=lambda: NOW - 86_400).retry_after == expected


def test_delay_grows_with_consecutive_failures() -> None:
    """The delay grows with consecutive failures, stays below 2 s, and is reset by a successful poll."""
    bad = response("500 Internal Server Error")
    with RawServer(answers(*[bad] * 6, ok(DOCUMENT), bad)) as server, client_of(server.url) as client:
        assert [failure(client.fetch).delay() for _ in range(6)] == [1.0, 1.8, 1.8, 1.8, 1.8, 1.8]
        client.fetch()
        assert failure(client.fetch).delay() == 1
        assert server.connections == 1


def test_an_error_text_is_short_and_printable() -> None:
    """The detail of an error is one printable line of bounded length for any text of the peer."""
    error = failure_of(
        answers_once(response("400 Bad Request", b'{"error":\r\n"Bad \x1b[31m\x00 \xff request"}' + b"x" * 100_000))
    )
    assert '"Bad ?[31m?' in error.detail
    assert error.detail.isprintable()
    assert len(error.detail) <= 300


def test_an_approval_is_one_request_on_its_own_connection() -> None:
    """An approval is the documented POST, once, never on the poll's connection, and the poll's connection is kept."""
    with RawServer(answers(ok(DOCUMENT))) as server, client_of(server.url) as client:
        client.fetch()
        client.approve("c7061bac-AFDC")
        client.fetch()
        assert server.connections == 2
        head, _, body = server.requests[1].partition(b"\r\n\r\n")
        assert head.startswith(b"POST " + PATH + b" HTTP/1.1\r\n")
        assert b"\r\nmetadata: true\r\n" in head.lower()
        assert json.loads(body) == {"StartRequests": [{"EventId": "c7061bac-AFDC"}]}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (answers_once(response("400 Bad Request", b'{"error":"no such event"}')), "status-400"),
        (answers_once(response("204 No Content")), "status-other"),
        (answers_once(response("302 Found", b"", "Location: /")), "redirect"),
        (answers_once(response("503 Service Unavailable", b"", "Retry-After: 9")), "server-error"),
        (answers_once(b""), "reset"),
        (answers_once(b"nonsense\r\n\r\n"), "protocol"),
        (silent, "timeout"),
    ],
)
def test_an_approval_is_never_repeated(script: Script, reason: str) -> None:
    """Any response except a 200 is an error with its status and text, after exactly one POST."""
    limits = CUT if reason == "timeout" else {}
    with RawServer(script) as server, client_of(server.url, **limits) as client:
        error = failure(lambda: client.approve("A"))
        assert error.reason == reason
        assert len(server.requests) == 1
        assert (reason == "status-400") == ("no such event" in str(error))
        assert error.retry_after == (9.0 if reason == "server-error" else None)


def test_the_body_of_an_approved_request_is_not_read() -> None:
    """A 200 means approved for any body: it may be endless, broken, or encoded."""

    def endless(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 99999999\r\n\r\n")
        peer.drip(ENDLESS(b"x"))

    with RawServer(endless) as server, client_of(server.url) as client:
        client.approve("A")


def test_identity_has_only_the_allowed_fields() -> None:
    """The identity is read by the documented request with an allow-list of fields; keys and user data are dropped."""
    document = {
        "name": "WestNO_0",
        "vmId": "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
        "resourceId": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/WestNO_0",
        "subscriptionId": "s",
        "resourceGroupName": "g",
        "vmScaleSetName": "",
        "location": "norwayeast",
        "zone": "1",
        "vmSize": "Standard_D2s_v5",
        "priority": "Spot",
        "userData": "c2VjcmV0",
        "publicKeys": [{"keyData": "ssh-rsa secret"}],
    }
    with RawServer(answers(ok(json.dumps(document).encode()))) as server, client_of(server.url) as client:
        vm = client.instance()
        assert vm == Vm(
            name="WestNO_0",
            id="02aab8a4-74ef-476e-8182-f6d2ba4166a6",
            resource_id=document["resourceId"],  # type: ignore[arg-type]  # a string in a mixed dict
            subscription_id="s",
            resource_group="g",
            vmss_name="",
            location="norwayeast",
            zone="1",
            size="Standard_D2s_v5",
            priority="Spot",
        )
        assert server.requests[0].startswith(
            b"GET /metadata/instance/compute?api-version=2021-12-13&format=json HTTP/1.1"
        )


@pytest.mark.parametrize("value", [None, 7, ["a"], "x" * 513, "a\nb", "a\x00", "\ud800", "\u202e", True])
def test_invalid_identity_fields_are_empty(value: object) -> None:
    """A mistyped, too long, or unprintable field is empty: a truncated name could be another VM's."""
    assert parse_instance(json.dumps({"name": value, "zone": "1"}).encode()) == Vm(zone="1")


@pytest.mark.parametrize(
    ("listed", "tags"),
    [
        ([{"name": "owner", "value": "web"}], (("Owner", "web"), ("environment", ""))),
        (
            [{"name": "ENVIRONMENT", "value": "prod"}, {"name": "OWNER", "value": "web"}],
            (("Owner", "web"), ("environment", "prod")),
        ),
        ([{"name": "owner", "value": "a"}, {"name": "OWNER", "value": "b"}], (("Owner", "a"), ("environment", ""))),
        ([{"name": "owner", "value": "x" * 300}], (("Owner", "x" * 256), ("environment", ""))),
        ([{"name": "owner", "value": "a\x00\ud800"}], (("Owner", "a\ufffd?"), ("environment", ""))),
        ([{"name": "owner ", "value": "a"}, {"name": "own", "value": "b"}], (("Owner", ""), ("environment", ""))),
        ([None, 7, "owner", [], {}, {"name": "owner"}, {"value": "x"}], (("Owner", ""), ("environment", ""))),
        ([{"name": "owner", "value": 7}, {"name": ["owner"], "value": "x"}], (("Owner", ""), ("environment", ""))),
        ({"owner": "web"}, (("Owner", ""), ("environment", ""))),
        ("owner:web", (("Owner", ""), ("environment", ""))),
        (None, (("Owner", ""), ("environment", ""))),
    ],
)
def test_requested_tags_are_returned(listed: object, tags: tuple[tuple[str, str], ...]) -> None:
    """By name in any letter case, under the requested name; "" if the VM has no such tag."""
    body = json.dumps({"name": "vm-0", "tagsList": listed, "tags": "owner:secret"}).encode()
    assert parse_instance(body, ("Owner", "environment")) == Vm(name="vm-0", tags=tags)
    assert parse_instance(body) == Vm(name="vm-0")


@given(st.dictionaries(st.text(), st.text(min_size=1).map(lambda text: f"secret {text}")))
def test_other_tags_are_dropped(tags: Mapping[str, str]) -> None:
    """Tags may contain secrets."""
    others = [{"name": name, "value": value} for name, value in tags.items() if name.lower() != "owner"]
    body = json.dumps({"tagsList": [*others, {"name": "owner", "value": "web"}], "tags": "x:secret"}).encode()
    vm = parse_instance(body, ("owner",))
    assert vm == Vm(tags=(("owner", "web"),))
    assert "secret" not in repr(vm)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"null", b"\xff", b"[" * 100_000, b"{" * 9 + b'"a"'])
def test_an_invalid_instance_document_is_malformed(body: bytes) -> None:
    """An instance document that isn't a JSON object is an error."""
    assert failure(lambda: parse_instance(body)).reason == "malformed"


BESIDE_PROXY = """
import sys
from exporter.metadata.client import MetadataClient
client = MetadataClient(sys.argv[1], "2020-07-01", deadline=5, first_deadline=5)
client.fetch(), client.instance(), client.approve("A")
"""


def test_the_environment_is_ignored(tmp_path: Path) -> None:
    """Proxies and credentials of the environment are never used: the proxy gets no connection."""
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login us password secret\n")
    netrc.chmod(0o600)
    with RawServer(answers(ok(b"{}"))) as server, RawServer(answers(ok(b"{}"))) as proxy:
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
        environ = {**os.environ, **dict.fromkeys(names, proxy.url), "NO_PROXY": "", "no_proxy": ""}
        environ |= {"NETRC": str(netrc), "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
        subprocess.run([sys.executable, "-c", BESIDE_PROXY, server.url], env=environ, check=True, timeout=30)
        assert proxy.connections == 0
        assert len(server.requests) == 3
        assert not any(b"authorization" in request.lower() for request in server.requests)
