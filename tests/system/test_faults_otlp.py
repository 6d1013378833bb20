"""The fault matrix of OTLP: a receiver that fails in every way, with the real destination, outbox, and delivery."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # generated, without stubs

from exporter.agent.suspects import CERTAIN
from exporter.sinks.otlp.sink import OtlpDestination
from tests.support.delivery_environment import Line, in_order, scenarios
from tests.support.eventhubs_target import a_record
from tests.support.otlp_receiver import (
    PROTOBUF,
    Action,
    Drip,
    Drop,
    Hang,
    Raw,
    Receiver,
    Reply,
    attributes,
    otlp_to,
    refusing,
    success,
)
from tests.support.ports import reserved_port

HTML: Final = Reply(200, {"Content-Type": "text/html"}, b"<html>please log in</html>")


def target(receiver: Receiver, timeout: float = 20.0) -> OtlpDestination:
    return otlp_to(receiver.url, timeout=timeout)


def arrived(receiver: Receiver) -> list[str]:
    return [str(attributes(log.attributes)["log.record.uid"]) for _, _, log in receiver.logs]


# The fault instead of a response, the reason that counts it, and whether it needs manual repair.
TRANSIENT: Final[dict[str, tuple[Action, str, bool]]] = {
    "301": (Reply(301, {"Location": "http://127.0.0.1:9/"}), "redirect", True),
    "302": (Reply(302, {"Location": "http://127.0.0.1:9/"}), "redirect", True),
    "307": (Reply(307, {"Location": "http://127.0.0.1:9/"}), "redirect", True),
    "401": (Reply(401), "unauthorized", True),
    "403": (Reply(403), "unauthorized", True),
    "404": (Reply(404), "not-found", True),
    "429": (Reply(429), "throttled", False),
    "429-later": (Reply(429, {"Retry-After": "33"}), "throttled", False),
    "500": (Reply(500), "other", True),
    "502": (Reply(502), "unavailable", False),
    "503": (Reply(503), "unavailable", False),
    "503-later": (Reply(503, {"Retry-After": "33"}), "unavailable", False),
    "504": (Reply(504), "unavailable", False),
    "html": (HTML, "protocol", True),
    "cut": (Reply(200, {"Content-Type": "application/x-protobuf"}, b"\x0a", announce=50), "connect", False),
    "raw": (Raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "connect", False),
    "drop": (Drop(), "connect", False),
    "hang": (Hang(), "timeout", False),
    "drip": (Drip(), "timeout", False),
}


@pytest.mark.parametrize("name", TRANSIENT)
def test_no_transient_failure_loses_a_record(tmp_path: Path, name: str) -> None:
    """For every fault the record is kept and sent again; all arrive in order, and none is parked."""
    action, reason, needs_operator = TRANSIENT[name]
    wanted = scenarios()
    # A collector may have accepted a record without a valid acknowledgement: such duplicates have the same id.
    patience = 1.5 if reason == "timeout" else 20.0
    with Receiver(success(), action, action) as receiver, Line(tmp_path, target(receiver, patience)) as line:
        for some in (wanted[:1], wanted[1:]):
            line.put(*some)
            line.go()
        assert in_order(arrived(receiver), wanted)
        assert (line.waiting(), line.parked(), line.sent()) == (0, 0, len(wanted))
        # A connection that breaks before any response is tried again at once within a send.
        assert line.reasons() in ({reason: 2}, {reason: 1})
        if needs_operator:
            assert line.waits == [60, 60]
        elif name.endswith("later"):
            assert line.waits == [33, 33]
        else:
            assert line.waits in ([1, 2], [1])


PERMANENT: Final[dict[str, tuple[Action | None, str]]] = {
    "400": (Reply(400), "rejected"),
    "413": (Reply(413), "too-large"),
    "422": (Reply(422), "rejected"),
    "500": (Reply(500), "other"),
    "html": (HTML, "protocol"),
    "rejected": (None, "rejected"),
}


@pytest.mark.parametrize("name", PERMANENT)
def test_a_record_that_is_always_rejected_is_parked(tmp_path: Path, name: str) -> None:
    """A record that the collector rejects while it accepts others is parked, counted, and logged; the others arrive."""
    answer, reason = PERMANENT[name]
    wanted = [a_record(number, subject="one") for number in range(1, 5)]
    taste = refusing(wanted[1].id, answer=answer)
    with Receiver(taste=taste) as receiver, Line(tmp_path, target(receiver)) as line:
        for record in wanted:
            line.put(record)
            for _ in range(20):
                line.turn()
        assert arrived(receiver) == [wanted[0].id, wanted[2].id, wanted[3].id]
        assert (line.parked(), line.waiting()) == (1, 0)
        assert line.failures(reason) > CERTAIN
        assert f"id={wanted[1].id}" in line.logged()


def test_a_parked_record_holds_no_credential(tmp_path: Path) -> None:
    """The collector rejects a record and repeats the token without its scheme: the outbox stores the redacted text."""
    sentence = Status(message="no tenant has the key hunter2pw").SerializeToString()
    wanted = [a_record(number, subject="one") for number in range(1, 5)]
    taste = refusing(wanted[1].id, answer=Reply(400, PROTOBUF, sentence))
    with Receiver(taste=taste) as receiver:
        to = otlp_to(receiver.url, timeout=20, headers={"authorization": "Bearer hunter2pw"})
        with Line(tmp_path, to) as line:
            for record in wanted:
                line.put(record)
                for _ in range(20):
                    line.turn()
            assert line.parked() == 1
            assert "no tenant has the key <secret>" in line.logged()
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"no tenant has the key <secret>" in kept
    assert b"hunter2" not in kept


@pytest.mark.parametrize("answer", [Reply(400, {"Content-Type": "text/html"}, b"<html>"), Reply(500), HTML, Reply(403)])
def test_a_proxy_that_rejects_everything_parks_nothing(tmp_path: Path, answer: Reply) -> None:
    """Hundreds of records wait while a proxy answers instead of the collector; then all of them arrive."""
    wanted = [a_record(number, subject=f"event-{number % 50}") for number in range(800)]
    refuses = [True]
    with (
        Receiver(taste=lambda sent: (answer, set(sent)) if refuses else (success(), set())) as receiver,
        Line(tmp_path, target(receiver)) as line,
    ):
        line.put(*wanted)
        while len(line.waits) < 30:
            line.turn()
        assert (line.parked(), line.waiting()) == (0, 800)
        assert "event=destination.failed" in line.logged()
        refuses.clear()
        line.go()
        assert (line.parked(), line.waiting()) == (0, 0)
        assert in_order(arrived(receiver), wanted)
        assert len(receiver.logs) == 800


def test_an_outage_of_hours_loses_nothing(tmp_path: Path) -> None:
    """With a closed port for hours, records are kept, retried, and delivered in order to the collector that then
    starts."""
    with (
        reserved_port() as port,
        Line(tmp_path, otlp_to(f"http://127.0.0.1:{port}/v1/logs", timeout=20)) as line,
    ):
        wanted = [a_record(number, subject=f"event-{number % 2}") for number in range(1, 7)]
        for record in wanted:
            line.put(record)
            line.turn()
            line.clock.go(3600)
        assert line.failures("connect") == 6
        with Receiver(port=port) as receiver:
            line.go()
            assert in_order(arrived(receiver), wanted)


def test_a_backlog_is_delivered_in_order_and_once(tmp_path: Path) -> None:
    """Three hundred records of an outage arrive once each, without a pause between them."""
    wanted = scenarios(events=6, each=50)
    with Receiver(Reply(503)) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert in_order(arrived(receiver), wanted)
        assert len(arrived(receiver)) == 300
        assert line.waits == [1]
