"""The fault matrix of the source: a real metadata service that fails in every way over a real connection.

The connection is real and its deadlines are short; the test advances the agent's clock, so that retry delays cost no
time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from exporter.http.deadline import Resolve
from exporter.metadata.client import MetadataClient, MetadataResponse
from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService
from tests.support.agent_environment import REBOOT, AgentEnvironment, Clock, Source, document, event, policy, started

DEADLINE_SECONDS: Final = 1.0
LIFE: Final = {"scheduled", "updated", "started", "completed", "canceled", "ended"}


class Wire(Source):
    """The real client; its waits on the network take no time on the agent's clock, which a test advances."""

    client: MetadataClient

    def fetch(self) -> MetadataResponse:
        answer = self.client.fetch()
        return MetadataResponse(answer.body, self.clock.mono, 0.01)

    def approve(self, event_id: str, leave: Callable[[], None], left: Callable[[], None]) -> None:
        self.client.approve(event_id, leave, left)

    def close(self) -> None:
        self.client.close()


def wire(url: str, **more: Any) -> Callable[[Clock], Source]:
    def make(clock: Clock) -> Source:
        made = Wire(clock)
        made.client = MetadataClient(url, "2020-07-01", deadline=DEADLINE_SECONDS, first_deadline=30.0, **more)
        return made

    return make


@contextmanager
def over_the_wire(
    folder: Path, mode: str = "dry-run", **more: Any
) -> Iterator[tuple[AgentEnvironment, MetadataService]]:
    """Yield an environment with a real service that has one scheduled event, after one successful poll."""
    with MetadataService(load("quiet"), speed=0.001) as service:
        service.set_document(document(2, event()))
        with AgentEnvironment(folder, policy(mode), source=wire(service.url, **more)) as environment:
            environment.live(3)
            assert environment.value("up") == 1
            yield environment, service


FAULTS: Final = {
    "slow:60": "timeout",
    "drip:0.05": "timeout",
    "hang:60": "timeout",
    "endless": "too-large",
    "reset": "reset",
    "half-close": "reset",
    "gap": "reset",
    "html": "malformed",
    "empty": "malformed",
    "not-json": "malformed",
    "truncated": "malformed",
    "deep": "malformed",
    "nan": "malformed",
    "duplicate-keys": "malformed",
    "huge:5": "too-large",
    "gzip": "encoding",
    "redirect": "redirect",
    "400": "status-400",
    "401": "forbidden",
    "403": "forbidden",
    "404": "not-found",
    "408": "status-other",
    "410": "gone",
    "429:7": "throttled",
    "500": "server-error",
    "502": "server-error",
    "503:3": "server-error",
    "504": "server-error",
}


@pytest.mark.parametrize(
    "fault", [pytest.param("slow:60", marks=pytest.mark.nightly), *(name for name in FAULTS if name != "slow:60")]
)
def test_an_outage_keeps_the_last_status_and_is_recorded_once(tmp_path: Path, fault: str) -> None:
    """While the service fails, the last known status stays, `up` is 0, the reason is counted, the outage is recorded
    once, and no change of the event is invented; afterwards the real changes are recorded."""
    with over_the_wire(tmp_path) as (environment, service):
        service.fault(fault)
        environment.live(14)
        assert environment.value("up") == 0
        assert (environment.value("poll_failures_total", reason=FAULTS[fault]) or 0) >= 1, environment.text.getvalue()
        assert environment.value("document_events") == 1
        assert environment.value("document_incarnation") == 2
        assert environment.value("events", event_type="Reboot", event_status="Scheduled") == 1
        assert [kind for kind in environment.kinds() if kind in LIFE] == ["scheduled"]
        assert environment.kinds().count("source.unavailable") == 1
        assert len(environment.said("poll.failed")) <= 2
        service.fault(None)
        service.set_document(document(3, started(event())))
        environment.live(31)
        assert environment.value("up") == 1
        assert [kind for kind in environment.kinds() if kind in LIFE] == ["scheduled", "started"]
        assert environment.kinds().count("source.recovered") == 1
        assert environment.kinds().count("document.rejected") == (FAULTS[fault] == "malformed")
        assert len(environment.said("poll.recovered")) == 1
        assert environment.value("events_observed_total", event_type="Reboot", event_source="User") == 1


@pytest.mark.parametrize("fault", ["bom", "surrogate"])
def test_unusual_but_valid_documents_are_read(tmp_path: Path, fault: str) -> None:
    """A byte order mark, or a lone surrogate in a text, does not fail the poll, and the records are valid UTF-8."""
    with over_the_wire(tmp_path) as (environment, service):
        service.fault(fault)
        service.set_document(document(3, started(event())))
        environment.live(5)
        assert environment.value("up") == 1
        assert [kind for kind in environment.kinds() if kind in LIFE][-1] == "started"
        for record in environment.records():
            record.to_json().decode("utf-8")


def test_one_failed_poll_makes_no_gap(tmp_path: Path) -> None:
    """A single failed poll between successful ones makes no gap: an event that disappears then is observed."""
    with over_the_wire(tmp_path) as (environment, service):
        service.fault("500*1")
        environment.live(3)
        assert environment.value("poll_failures_total", reason="server-error") == 1
        service.set_document(document(3))
        environment.live(3)
        assert [kind for kind in environment.kinds() if kind in LIFE] == ["scheduled", "canceled"]


def test_retry_after_is_obeyed(tmp_path: Path) -> None:
    """`Retry-After` is obeyed: no request is sent before its time."""
    with over_the_wire(tmp_path) as (environment, service):
        service.fault("429:20")
        environment.live(1)
        asked = len(service.requests)
        environment.live(18)
        assert len(service.requests) == asked
        environment.live(5)
        assert len(service.requests) == asked + 1


def test_410_for_seventy_seconds_is_one_outage(tmp_path: Path) -> None:
    """410 for the longest time that Azure documents: recorded once, recovered once, nothing lost."""
    with over_the_wire(tmp_path) as (environment, service):
        service.fault("410")
        environment.live(70)
        service.fault(None)
        environment.live(12)
        assert environment.value("up") == 1
        assert [environment.kinds().count(kind) for kind in ("source.unavailable", "source.recovered")] == [1, 1]
        assert [kind for kind in environment.kinds() if kind in LIFE] == ["scheduled"]


def test_a_closed_port_is_an_outage(tmp_path: Path) -> None:
    """A service with a closed port is an outage like any other."""
    with over_the_wire(tmp_path) as (environment, service):
        service.close()
        environment.live(14)
        assert (environment.value("poll_failures_total", reason="connect") or 0) >= 1
        assert environment.value("document_events") == 1
        assert environment.kinds().count("source.unavailable") == 1


def flaky_resolver(gone: list[bool]) -> Resolve:
    def resolve(*given: Any, **named: Any) -> Any:
        if gone:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return socket.getaddrinfo(*given, **named)

    return resolve


def test_a_name_that_cannot_be_resolved_is_an_outage(tmp_path: Path) -> None:
    """A configured host name that can't be resolved for a while fails as `dns`, and is resolved again."""
    gone: list[bool] = []
    with MetadataService(load("quiet"), speed=0.001) as service:
        service.set_document(document(2, event()))
        url = service.url.replace("127.0.0.1", "localhost")
        with AgentEnvironment(
            tmp_path, policy("dry-run"), source=wire(url, resolve=flaky_resolver(gone))
        ) as environment:
            environment.live(2)
            assert environment.value("up") == 1
            gone.append(True)
            service.fault("gap")  # the connection is lost as well, so that a new one is opened
            environment.live(14)
            service.fault(None)
            environment.live(14)
            assert (environment.value("poll_failures_total", reason="dns") or 0) >= 1
            gone.clear()
            environment.live(14)
            assert environment.value("up") == 1


# -- approvals


@pytest.mark.parametrize(
    ("fault", "sure"), [("post-400", True), ("post-500", False), ("post-hang:60", False), ("post-reset", False)]
)
def test_a_failed_approval_is_retried(tmp_path: Path, fault: str, sure: bool) -> None:
    """Each way to fail a POST is counted and published, waits at least 5 s, and the next POST succeeds, once."""
    with over_the_wire(tmp_path, "enforce") as (environment, service):
        service.set_document(document(3))
        environment.live(2)
        service.posts.clear()
        service.fault(f"{fault}*1")
        service.set_document(document(4, event("second-event")))
        environment.live(4)
        assert len(service.posts) == 1
        assert environment.kinds().count("approval.failed") == 1
        assert environment.agent.status.state.tracked["second-event"].approval.unanswered is not sure
        environment.live(60)
        assert [post.event_ids for post in service.posts] == [("second-event",)] * 2
        assert environment.kinds().count("approval.accepted") == 2  # the first event's as well
        assert REBOOT not in environment.agent.status.state.tracked


def test_no_approval_is_based_on_a_stale_document(tmp_path: Path) -> None:
    """Failed polls make no decisions: no POST is based on the last known document."""
    with over_the_wire(tmp_path) as (environment, service):
        service.fault("html")
        environment.live(60)
        assert not service.posts
