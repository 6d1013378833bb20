"""Classification of responses of an OTLP collector, and of missing ones."""

from __future__ import annotations

import gzip
import io
import logging
import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.errors import Failure, Permanent, Retryable, parse_retry_after
from exporter.log.log import Log, captured_libraries
from exporter.sinks.otlp.answers import MAX_RETRY_AFTER
from exporter.sinks.otlp.client import MAX_RESPONSE_BYTES
from exporter.sinks.reasons import REASONS
from tests.sinks.otlp.test_sink import a_record, refused, status
from tests.support.log_reading import logged
from tests.support.otlp_receiver import PROTOBUF, Action, Drip, Drop, Hang, Raw, Receiver, Reply, otlp_to, success
from tests.support.ports import reserved_port
from tests.support.raw_server import RawServer, answers_once


def packed(answer: Reply) -> Reply:
    """Return the response as compressed by a proxy."""
    return Reply(answer.status, {**answer.headers, "Content-Encoding": "gzip"}, gzip.compress(answer.body))


HTML = Reply(200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>Sign in</html>")


@pytest.mark.parametrize(
    ("action", "failure", "reason", "needs_operator"),
    [
        (Reply(400, PROTOBUF, status("bad record")), Permanent, "rejected", None),
        (Reply(413), Permanent, "too-large", None),
        (Reply(422), Permanent, "rejected", None),
        (success(rejected=1, message="no such tenant"), Permanent, "rejected", None),
        (Reply(429), Retryable, "throttled", False),
        (Reply(502), Retryable, "unavailable", False),
        (Reply(503), Retryable, "unavailable", False),
        (Reply(504), Retryable, "unavailable", False),
        (Reply(302, {"Location": "/login"}), Retryable, "redirect", True),
        (Reply(308, {"Location": "/login"}), Retryable, "redirect", True),
        (HTML, Retryable, "protocol", True),
        (Reply(200, {"Content-Type": "text/html"}), Retryable, "protocol", True),
        (Reply(200, PROTOBUF, b"\xff\xff not protobuf"), Retryable, "protocol", True),
        (Reply(200, {"Content-Type": "application/json"}, b'{"error": "no"}'), Retryable, "protocol", True),
        (Reply(200, {**PROTOBUF, "Content-Encoding": "gzip"}, b"\x1f\x8b"), Retryable, "protocol", True),
        (Reply(200, {**PROTOBUF, "Content-Encoding": "br"}, b"\x1f\x8b"), Retryable, "protocol", True),
        (packed(success(rejected=1, message="no such tenant")), Permanent, "rejected", None),
        (packed(Reply(200, PROTOBUF, b"\x00" * (MAX_RESPONSE_BYTES + 1))), Retryable, "protocol", True),
        (packed(HTML), Retryable, "protocol", True),
        (packed(Reply(503)), Retryable, "unavailable", False),
        (Reply(200, PROTOBUF, b"\x00" * (MAX_RESPONSE_BYTES + 1)), Retryable, "protocol", True),
        (Reply(401), Retryable, "unauthorized", True),
        (Reply(403), Retryable, "unauthorized", True),
        (Reply(404), Retryable, "not-found", True),
        (Reply(500), Retryable, "other", True),
        (Reply(501), Retryable, "other", True),
        (Reply(200, PROTOBUF, b"\x0a", announce=500), Retryable, "connect", False),
        (Raw(b"HTTP/1.1 200 OK\r\nContent-Ty"), Retryable, "connect", False),
        (Raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n\r\n"), Retryable, "connect", False),
        (Raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), Retryable, "connect", False),
        (Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 12"), Retryable, "connect", False),
        (Raw(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"), Retryable, "connect", False),
        (Raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000), Retryable, "protocol", True),
    ],
)
def test_each_response_has_its_failure(
    action: Action, failure: type[Failure], reason: str, needs_operator: bool | None
) -> None:
    """Caused by the record, transient, or for an operator, by type and reason."""
    with Receiver(action) as receiver:
        error = refused(receiver, timeout=60)  # not the 2 s of the default: to read 20,000 interim answers takes longer
    assert len(receiver.requests) == 1, "neither the SDK nor we try again inside a send, nor follow a redirect"
    assert type(error) is failure
    assert error.reason == reason
    assert (error.needs_operator if isinstance(error, Retryable) else None) is needs_operator


@pytest.mark.parametrize(
    "answer",
    [
        success(),
        success(message="queue nearly full"),
        Reply(200),
        Reply(204),
        Reply(202, {"Content-Type": "application/json"}, b'{"partialSuccess":{}}'),
        Reply(200, {"Content-Type": "Application/X-Protobuf; charset=x"}),
        packed(success()),
        packed(success(message="queue nearly full")),
        Reply(200, {**PROTOBUF, "Content-Encoding": "gzip"}),
    ],
)
def test_success_is_a_delivery(answer: Reply) -> None:
    """Also an empty response and one with a warning."""
    with Receiver(answer) as receiver:
        destination = otlp_to(receiver.url)
        destination.send([a_record()])
        destination.close()
    assert len(receiver.logs) == 1


def test_collectors_warning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A partial success without rejected records is delivered."""
    with Receiver(success(message="queue\nnearly full")) as receiver, caplog.at_level(logging.WARNING, "exporter"):
        destination = otlp_to(receiver.url)
        destination.send([a_record()])
        destination.close()
    assert "queue nearly full" in caplog.text


def test_collectors_message_is_in_the_failure() -> None:
    """From a Status or a partial success, on one line and truncated."""
    with Receiver(
        Reply(400, PROTOBUF, status("bad\nrecord" + "x" * 900)), success(rejected=1, message="why")
    ) as receiver:
        first, second = str(refused(receiver)), str(refused(receiver))
    assert first.startswith("rejected: HTTP 400: bad record")
    assert len(first) < 300
    assert second.endswith("why")


@pytest.mark.parametrize("code", [429, 503, 401])
def test_retry_after_is_read_as_seconds(code: int) -> None:
    with Receiver(Reply(code, {"Retry-After": "17"})) as receiver:
        error = refused(receiver)
    assert isinstance(error, Retryable)
    assert error.retry_after == 17


def test_retry_after_is_read_as_a_date() -> None:
    """It becomes seconds from now."""
    date = format_datetime(datetime(2030, 1, 1, 0, 1, tzinfo=UTC), usegmt=True)
    with Receiver(Reply(503, {"Retry-After": date})) as receiver:
        error = refused(receiver, wall=datetime(2030, 1, 1, tzinfo=UTC).timestamp)
    assert isinstance(error, Retryable)
    assert error.retry_after == 60


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("-5", None),
        ("1000000000", MAX_RETRY_AFTER),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_RETRY_AFTER),
    ],
)
def test_retry_after_is_validated_and_capped(value: str, expected: float | None) -> None:
    """Invalid values are ignored, past dates are 0, and the maximum is five minutes."""
    assert parse_retry_after(value, 1_800_000_000.0, MAX_RETRY_AFTER) == expected


def test_connection_lost_before_the_response_is_retried_once() -> None:
    """A dead kept connection isn't a failure."""
    with Receiver(success(), Drop()) as receiver, closing(otlp_to(receiver.url)) as destination:
        destination.send([a_record()])
        destination.send([a_record()])
    assert len(receiver.requests) == 3
    assert len(receiver.logs) == 2


def test_lost_new_connection_is_transient() -> None:
    """Also after a lost kept connection."""
    with Receiver(success(), Drop(), Drop()) as receiver, closing(otlp_to(receiver.url)) as destination:
        destination.send([a_record()])
        with pytest.raises(Retryable) as caught:
            destination.send([a_record()])
    assert (caught.value.reason, caught.value.needs_operator, len(receiver.requests)) == ("connect", False, 3)


@pytest.mark.parametrize("action", [Hang(), Drip(), Drip(0.001)])
def test_send_ends_by_its_deadline(action: Action) -> None:
    """For a collector that sends nothing, or one byte at a time."""
    begun = time.monotonic()
    with Receiver(action) as receiver:
        error = refused(receiver, timeout=0.3)
    assert isinstance(error, Retryable)
    assert (error.reason, error.needs_operator) == ("timeout", False)
    assert time.monotonic() - begun < 20  # it would continue indefinitely


def test_destination_delivers_once_the_collector_is_up() -> None:
    """Without a listener the failure is transient."""
    with reserved_port() as port, closing(otlp_to(f"http://127.0.0.1:{port}/v1/logs")) as destination:
        with pytest.raises(Retryable) as caught:
            destination.send([a_record()])
        assert (caught.value.reason, caught.value.needs_operator) == ("connect", False)
        with Receiver(port=port) as receiver:
            destination.send([a_record()])
            assert len(receiver.logs) == 1


def test_unknown_host_has_the_reason_dns() -> None:
    """It differs from a host that doesn't respond."""
    destination = otlp_to("http://collector.invalid:4318/v1/logs")
    with pytest.raises(Retryable) as caught:
        destination.send([a_record()])
    destination.close()
    assert caught.value.reason == "dns"


def test_plain_http_behind_https_is_a_tls_failure() -> None:
    with Receiver() as receiver:
        # Not the 2 s of the default: the authorities alone take as long under emulation.
        destination = otlp_to(receiver.url.replace("http:", "https:"), timeout=60)
        with pytest.raises(Retryable) as caught:
            destination.send([a_record()])
        destination.close()
    assert caught.value.reason == "tls"


def test_missing_ca_file_is_a_configuration_failure(tmp_path: Any) -> None:
    """The record is kept, for an operator."""
    with Receiver() as receiver:
        address = receiver.url.replace("http:", "https:")
        destination = otlp_to(address, certificate=str(tmp_path / "none.pem"))
        with pytest.raises(Retryable) as caught:
            destination.send([a_record()])
        destination.close()
    assert (caught.value.reason, caught.value.needs_operator) == ("configuration", True)


def test_close_ends_a_running_send() -> None:
    """The send in another thread returns at once, with the reason `closed`."""
    with Receiver(Hang()) as receiver:
        destination = otlp_to(receiver.url, timeout=60)
        failures: list[Failure] = []

        def send() -> None:
            try:
                destination.send([a_record()])
            except Failure as failure:
                failures.append(failure)

        sender = threading.Thread(target=send)
        sender.start()
        assert receiver.asked.wait(30)
        begun = time.monotonic()
        destination.close()
        sender.join(30)
        assert time.monotonic() - begun < 20
    assert [failure.reason for failure in failures] == ["closed"]
    with pytest.raises(Retryable, match="closed"):
        destination.send([a_record()])


def test_libraries_log_nothing() -> None:
    """A failure is logged once, by the agent."""
    said = io.StringIO()
    log = Log(said)
    with captured_libraries(log), Receiver(Reply(500, {}, b"body"), Drop(), Drop()) as receiver:
        refused(receiver)
        refused(receiver)
    assert logged(log, said) == ""


PARTS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.0 503 No\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"Content-Type: application/x-protobuf\r\n",
        b"Content-Type: application/json\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Encoding: gzip\r\n",
        b"Retry-After: \xb2\r\n",
        b"Location: ://\r\n",
        b"\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
    ]
)


@settings(max_examples=150, deadline=None)
@given(data=st.lists(PARTS | st.binary(max_size=30)).map(b"".join), tunnel=st.booleans())
def test_any_response_is_a_delivery_or_a_failure(data: bytes, tunnel: bool) -> None:
    """From a collector, or from a proxy for a tunnel; a Failure has a known reason."""
    failure: Failure | None = None
    with RawServer(answers_once(data)) as server:
        environ = {"https_proxy": server.url} if tunnel else {}
        url = "https://collector.example/v1/logs" if tunnel else server.url
        destination = otlp_to(url, timeout=1.0, environ=environ)
        try:
            destination.send([a_record()])
        except Failure as error:
            failure = error
        finally:
            destination.close()
    assert failure is None or (failure.reason in REASONS and failure.detail.isprintable())
    assert failure is not None or not tunnel
