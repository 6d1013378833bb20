"""The Event Hubs destination with faults of the local broker, through Azure's SDK."""

from __future__ import annotations

import io
import socket
import threading
import time

import pytest
from azure.eventhub.exceptions import ConnectError, ConnectionLostError, EventDataSendError, EventHubError

from exporter.errors import Failure, Permanent, Retryable
from exporter.log.log import Log, captured_libraries
from exporter.simulator.event_hubs.broker import Broker
from exporter.sinks.event_hubs.errors import translate
from tests.support.eventhubs_broker import FORGETFUL, collected, running_broker
from tests.support.eventhubs_target import (
    FailingCredential,
    a_record,
    at_once,
    destination,
    hub_destination,
    open_sockets,
    refused,
)
from tests.support.log_reading import logged

pytestmark = FORGETFUL
_collect = pytest.fixture(autouse=True)(collected)
broker = pytest.fixture(running_broker)


def test_single_lost_connection_does_not_fail_a_send() -> None:
    """Also a lost link or acknowledgement; a duplicate has the same id."""
    faults = ["drop-before-store", "drop-after-store", "detach", "attach-refused", "cbs-refused"]

    def ids_after(fault: str) -> tuple[int, set[str | None]]:
        with Broker(faults=[fault]) as broker:
            target = destination(broker)
            target.send([a_record()])
            target.close()
            return broker.faults.pending(), {m.message_id for m in broker.messages()}

    assert at_once(ids_after, faults) == dict.fromkeys(faults, (0, {a_record().id}))


def test_lasting_failure_is_classified() -> None:
    """Caused by the record, transient, or for an operator; no connection is left."""
    expected: dict[str, tuple[type[Failure], str, bool | None]] = {
        "rejected:com.microsoft:server-busy": (Retryable, "throttled", False),
        "rejected:amqp:resource-limit-exceeded": (Retryable, "throttled", False),
        "rejected:com.microsoft:timeout": (Retryable, "timeout", False),
        "rejected:amqp:internal-error": (Retryable, "unavailable", False),
        "rejected:amqp:unauthorized-access": (Retryable, "unauthorized", True),
        "rejected:com.microsoft:something-new": (Retryable, "other", True),
        "rejected:amqp:link:message-size-exceeded": (Permanent, "too-large", None),
        "rejected:com.microsoft:argument-error": (Permanent, "rejected", None),
        "attach-refused:amqp:not-found": (Retryable, "not-found", True),
        "attach-refused:com.microsoft:entity-disabled": (Retryable, "unavailable", True),
        "rejected:com.microsoft:entity-disabled": (Retryable, "unavailable", True),
        "attach-refused:amqp:unauthorized-access": (Retryable, "unauthorized", True),
        "attach-refused:com.microsoft:argument-error": (Retryable, "configuration", True),
        "cbs-refused": (Retryable, "unauthorized", True),
        "drop-before-store": (Retryable, "connect", False),
        "detach:amqp:link:message-size-exceeded": (Retryable, "other", False),
        "detach:com.microsoft:argument-error": (Retryable, "other", False),
        "detach:amqp:link:detach-forced": (Retryable, "other", False),
    }

    def failure(fault: str) -> tuple[type[Failure], str, bool | None]:
        with Broker(faults=[f"{fault}*always"]) as broker:
            target = destination(broker)
            error = refused(target)
            broker.wait_connections(0, 30)
            target.close()
            return type(error), error.reason, getattr(error, "needs_operator", None)

    assert at_once(failure, expected) == expected


def test_closed_link_is_not_a_lost_connection() -> None:
    """The SDK loses the reason, which may be one record: a smaller request is tried."""

    def failure(fault: str) -> tuple[str, bool]:
        with Broker(faults=[f"{fault}*always"]) as broker:
            target = destination(broker)
            error = refused(target)
            target.close()
            assert isinstance(error, Retryable)
            return error.detail, error.smaller

    detached, dropped = "detach:amqp:link:message-size-exceeded", "drop-before-store"
    assert at_once(failure, [detached, dropped]) == {
        detached: ("Event Hubs closed the link, and the SDK provides no reason (unknown-error)", True),
        dropped: ("Event Hubs is unreachable or closed the connection (socket-error)", False),
    }


def test_condition_with_the_token_is_not_quoted() -> None:
    """The hub knows the token's signature and could return it as a condition."""
    for condition in ("SharedAccessSignature sr=a&sig=4vXMuYzA%3D", "4vXMuYzAbGty", "a\nb", "a" * 65):
        error = EventHubError("refused")
        error.error = condition
        failure = translate(error)
        assert failure.reason == "other"
        assert condition not in f"{failure} {failure.detail}"
        assert "EventHubError" in failure.detail


def test_server_busy_delays_the_next_send(broker: Broker) -> None:
    """Nothing is sent for at least four seconds."""
    broker.faults.add("rejected:com.microsoft:server-busy*always")
    target = destination(broker)
    error = refused(target)
    target.close()
    assert isinstance(error, Retryable)
    assert error.retry_after == 4


def test_silent_peer_is_abandoned_at_the_deadline() -> None:
    """The SDK would wait indefinitely; the next send works on a new connection."""
    faults = ["silent", "cbs-silent", "no-disposition", "released", "modified"]

    def outcome(fault: str) -> tuple[str, bool, bool, str | None]:
        with Broker(faults=[fault]) as broker:
            target = destination(broker, deadline=3.0)
            begun = time.monotonic()
            error = refused(target)
            took = time.monotonic() - begun
            broker.wait_connections(0, 30)
            target.send([a_record(2)])
            target.close()
            assert isinstance(error, Retryable)
            return error.reason, error.needs_operator, took < 30, broker.messages()[-1].message_id

    assert at_once(outcome, faults) == dict.fromkeys(faults, ("timeout", False, True, a_record(2).id))


@pytest.mark.linux("counts sockets in /proc")
def test_destination_recovers_with_the_hub(broker: Broker) -> None:
    """Without a listener the failure is transient; no socket is left afterwards."""
    target = destination(broker)
    target.send([a_record(1)])
    before = open_sockets()
    broker.stop()
    for _ in range(2):
        error = refused(target, a_record(2))
        assert isinstance(error, Retryable)
        assert (error.reason, error.needs_operator) == ("connect", False)
    broker.start()
    target.send([a_record(2)])
    assert len(broker.messages()) == 2
    assert open_sockets() <= before
    target.close()


def test_unknown_event_hub_needs_an_operator(broker: Broker) -> None:
    target = hub_destination(broker.connection_string("nope"), deadline=5)
    error = refused(target)
    target.close()
    assert isinstance(error, Retryable)
    assert (error.reason, error.needs_operator) == ("not-found", True)


def test_unknown_host_is_a_dns_failure() -> None:
    """It differs from a host that doesn't respond."""
    string = "Endpoint=sb://namespace.invalid/;SharedAccessKeyName=a;SharedAccessKey=s3cr3t;EntityPath=x"
    target = hub_destination(string, deadline=5)
    error = refused(target)
    target.close()
    assert error.reason == "dns"
    assert "s3cr3t" not in f"{error!r} {error.__cause__!r}"


def test_peer_without_tls_needs_an_operator(broker: Broker) -> None:
    string = broker.connection_string().replace(";UseDevelopmentEmulator=true", "")
    target = hub_destination(string, custom_endpoint=f"sb://127.0.0.1:{broker.port}", deadline=5)
    error = refused(target)
    target.close()
    assert isinstance(error, Retryable)
    assert (error.reason, error.needs_operator) == ("tls", True)


@pytest.mark.parametrize("fault", ["silent", "no-disposition"])
def test_close_ends_a_running_send(broker: Broker, fault: str) -> None:
    """The send in another thread returns at once, even if the peer doesn't respond."""
    broker.faults.add(fault)
    target = destination(broker, deadline=30)
    failures: list[Failure] = []

    def send() -> None:
        try:
            target.send([a_record()])
        except Failure as failure:
            failures.append(failure)

    sender = threading.Thread(target=send)
    sender.start()
    broker.wait_connections(1, 30)
    if fault == "no-disposition":
        broker.wait_for(1, 30)
    begun = time.monotonic()
    target.close()
    sender.join(30)
    assert time.monotonic() - begun < 10  # the SDK would wait indefinitely
    assert [failure.reason for failure in failures] == ["closed"]
    broker.wait_connections(0, 30)
    assert refused(target).reason == "closed"


def test_stuck_loop_is_abandoned(broker: Broker) -> None:
    """A call that blocks the loop fails one send; the next send has a new loop."""
    gate = threading.Event()
    entered: list[str] = []

    def make() -> FailingCredential:
        entered.append("blocked" if not entered else "free")
        if entered == ["blocked"]:
            gate.wait(30)
        return FailingCredential()

    target = hub_destination(
        fully_qualified_namespace="namespace.servicebus.windows.net",
        event_hub="scheduled-events",
        credential=make,
        custom_endpoint=f"sb://127.0.0.1:{broker.port}",
        deadline=0.05,
    )
    try:
        assert "did not return" in str(refused(target))
        assert "did not come back" not in str(refused(target))
        assert entered == ["blocked", "free"]
        target.close()
    finally:
        gate.set()
        for thread in threading.enumerate():
            if thread.name == "event-hubs":
                thread.join(5)


@pytest.mark.parametrize("error", [EventHubError, ConnectError, ConnectionLostError, EventDataSendError])
def test_errors_are_classified_by_condition(error: type[EventHubError]) -> None:
    """An unknown hub is not-found and a rejected record permanent, for any exception class."""
    unknown, refused_record = error("text"), error("text")
    unknown.error, refused_record.error = "not-found", "argument-error"
    assert translate(unknown).reason == "not-found"
    assert isinstance(translate(refused_record), Permanent)


def test_unknown_error_is_retried_slowly() -> None:
    """It isn't attributed to the record, and its text isn't quoted."""
    failure = translate(RuntimeError("SharedAccessKey=s3cr3t"))
    assert isinstance(failure, Retryable)
    assert (failure.reason, failure.needs_operator) == ("other", True)
    assert "s3cr3t" not in str(failure)


def test_sdk_logs_nothing(broker: Broker) -> None:
    """A failure is logged once, by the agent."""
    said = io.StringIO()
    log = Log(said)
    with captured_libraries(log):
        target = destination(broker)
        target.send([a_record()])
        broker.stop()
        refused(target)
        target.close()
    assert logged(log, said) == ""
    assert socket.getdefaulttimeout() is None
