"""Faults of the local broker, as seen by Azure's own SDK."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from azure.eventhub.aio import EventHubProducerClient
from azure.eventhub.exceptions import AuthenticationError, ConnectError, ConnectionLostError, EventHubError

from exporter.simulator.event_hubs.broker import KINDS, Broker
from exporter.simulator.faults import Fault, Faults
from tests.support.eventhubs_client import PATIENCE, event, producer, send
from tests.support.ports import reserved_port

ACKNOWLEDGED, HANGS = "acknowledged", "hangs"
HANG_SECONDS = 6.0  # from the store on; a second attempt of the SDK takes 1 s
RUNNERS = 12

# After a broken connection or a cancelled send the SDK drops its socket without closing it; garbage collection does.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True, scope="module")
def collected() -> Iterator[None]:
    """Collect what the SDK left open, so that it never affects another test."""
    yield
    gc.collect()


@dataclass(frozen=True, slots=True)
class Case:
    """Faults and their effect in the SDK: an exception's class and `error`, and the number of stored copies."""

    faults: tuple[str, ...]
    outcome: str | type[Exception]
    error: str
    stored: int


CASES = [
    Case((), ACKNOWLEDGED, "", 1),
    Case(("accept", "drop-before-store*always"), ACKNOWLEDGED, "", 1),
    # send_batch always makes a second attempt, regardless of retry_total, which hides a single fault
    Case(("drop-before-store",), ACKNOWLEDGED, "", 1),
    Case(("drop-after-store",), ACKNOWLEDGED, "", 2),
    Case(("drop-before-store*always",), ConnectError, "socket-error", 0),
    Case(("drop-after-store*2", "rejected:amqp:not-found*2"), ConnectError, "socket-error", 2),
    Case(("silent*always",), HANGS, "", 0),
    Case(("cbs-silent*always",), HANGS, "", 0),
    Case(("no-disposition",), HANGS, "", 1),
    Case(("released",), HANGS, "", 0),
    Case(("modified",), HANGS, "", 0),
    Case(("rejected:com.microsoft:server-busy*2",), EventHubError, "server-busy", 0),
    Case(("rejected:amqp:link:message-size-exceeded*2",), EventHubError, "link:message-size-exceeded", 0),
    Case(("rejected:amqp:unauthorized-access*2",), EventHubError, "unauthorized-access", 0),
    Case(("rejected:amqp:not-found*2",), EventHubError, "not-found", 0),
    Case(("detach:amqp:link:detach-forced*always",), ConnectionLostError, "link:detach-forced", 0),
    Case(("attach-refused:amqp:not-found*always",), ConnectionLostError, "not-found", 0),
    Case(("attach-refused:amqp:unauthorized-access*always",), ConnectionLostError, "unauthorized-access", 0),
    Case(("cbs-refused*always",), AuthenticationError, "client-error", 0),
]


async def first_send(broker: Broker, case: Case) -> tuple[str | type[Exception], str]:
    """Return the outcome of a client's first send. The time of a hang counts from the storage of the messages."""
    async with producer(broker.connection_string()) as client:
        sending = asyncio.ensure_future(client.send_batch([event("x")]))
        try:
            if case.outcome == HANGS:
                await asyncio.to_thread(broker.wait_for, case.stored, PATIENCE)
            await asyncio.wait_for(sending, HANG_SECONDS if case.outcome == HANGS else PATIENCE)
        except TimeoutError:
            return HANGS, ""
        except EventHubError as error:
            return type(error), str(error.error)
    return ACKNOWLEDGED, ""


@pytest.fixture(scope="module")
def seen() -> dict[tuple[str, ...], tuple[str | type[Exception], str, int]]:
    """Run all cases at once, each with its own broker: one after the other would take half a minute."""

    async def run(case: Case, limit: asyncio.Semaphore) -> tuple[str | type[Exception], str, int]:
        async with limit:
            with Broker(faults=case.faults) as broker:
                outcome, error = await first_send(broker, case)
                assert broker.unexpected_errors == []
                return outcome, error, len(broker.messages())

    async def run_all() -> list[tuple[str | type[Exception], str, int]]:
        limit = asyncio.Semaphore(RUNNERS)
        return await asyncio.gather(*(run(case, limit) for case in CASES))

    return {case.faults: result for case, result in zip(CASES, asyncio.run(run_all()), strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: ",".join(case.faults) or "none")
def test_the_sdk_reports_each_fault_by_its_condition(
    case: Case, seen: dict[tuple[str, ...], tuple[str | type[Exception], str, int]]
) -> None:
    """Each fault reaches the SDK as the matching exception, hang, or acknowledgement."""
    outcome, error, stored = seen[case.faults]
    if isinstance(case.outcome, type):
        assert isinstance(outcome, type), outcome
        assert issubclass(outcome, case.outcome)
    else:
        assert outcome == case.outcome
    assert (error, stored) == (case.error, case.stored)


FAILURES: dict[str, tuple[Callable[[Broker], None], str]] = {
    "drop": (Broker.drop_connections, ""),  # the SDK's own second attempt hides it
    "expire": (Broker.expire_token, "unauthorized-access"),
    "delete": (lambda broker: broker.delete_hub("hub"), "not-found"),
    "refuse": (Broker.stop, "socket-error"),
}


def test_a_connected_client_fails_at_its_next_send_and_then_recovers() -> None:
    """A connected client sees each failure, and afterwards the same client sends again."""

    async def attempt(client: EventHubProducerClient) -> str:
        try:
            await send(client, [event("x")], partition_id="0")
        except EventHubError as problem:
            return str(problem.error)
        return ""

    async def scenario(fail: Callable[[Broker], None]) -> str:
        with reserved_port() as port, Broker(hubs={"hub": 1}, port=port) as broker:
            async with producer(broker.connection_string()) as client:
                assert await attempt(client) == ""
                fail(broker)
                error = result = await attempt(client)
                broker.create_hub("hub", 1)
                broker.start()
                while result:
                    result = await attempt(client)
            assert broker.unexpected_errors == []
        return error

    async def all_scenarios() -> list[str]:
        scenarios = [scenario(fail) for fail, _ in FAILURES.values()]
        return await asyncio.wait_for(asyncio.gather(*scenarios), PATIENCE)

    assert asyncio.run(all_scenarios()) == [error for _, error in FAILURES.values()]


def test_a_silent_management_request_gets_no_reply() -> None:
    """Without a reply to a request on $management, the SDK waits, as with a lost reply."""

    async def scenario(broker: Broker) -> None:
        async with producer(broker.connection_string()) as client:
            asking = asyncio.ensure_future(client.get_eventhub_properties())
            while broker.faults.pending():
                await asyncio.wait([asking], timeout=0.05)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asking, 1)

    with Broker(faults=["management-silent"]) as broker:
        asyncio.run(scenario(broker))


# --- the fault language ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("released", Fault("released", "send", times=1)),
        ("silent*always", Fault("silent", "connect")),
        ("rejected", Fault("rejected", "send", condition="com.microsoft:server-busy", times=1)),
        ("detach:amqp:link:detach-forced*12", Fault("detach", "send", condition="amqp:link:detach-forced", times=12)),
    ],
)
def test_faults_are_parsed(text: str, fault: Fault) -> None:
    """A fault is a name, an optional condition, and an optional number of times."""
    assert Faults(KINDS).parse(text) == fault


@pytest.mark.parametrize(
    "text",
    ["", "explode", "released*0", "released*-1", "released:amqp:not-found", "silent *2", "*2", "send/released"],
)
def test_unknown_faults_are_refused_with_the_list(text: str) -> None:
    """A misspelt fault is never ignored."""
    with pytest.raises(ValueError, match="fault"):
        Broker(faults=[text])


def test_faults_are_consumed_in_their_order_and_stage_by_stage() -> None:
    """Each moment takes the first matching fault, as often as requested; `always` stays until it is cleared."""
    faults = Faults(KINDS)
    for text in ("released*2", "cbs-refused", "modified*always"):
        faults.add(text)

    def taken(stage: str) -> str:
        fault = faults.take(stage)
        return "" if fault is None else fault.name

    assert faults.pending() == 4
    assert taken("connect") == ""
    assert [taken("send") for _ in range(4)] == ["released", "released", "modified", "modified"]
    assert [taken("cbs") for _ in range(2)] == ["cbs-refused", ""]
    assert faults.pending() == 1
    faults.set()
    assert (faults.pending(), taken("send")) == (0, "")
