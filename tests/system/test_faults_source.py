"""The fault matrix of the source: a real metadata service that fails in every way over a real wire, and the whole line.

The wire is real and its deadlines are short; the agent's clock is turned by hand, so that its patience costs no time.
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
    """The real client; what takes time on the wire takes none on the agent's clock, which a test turns."""

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
    """A world whose source is a real service with one event scheduled, read well once."""
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
def test_the_truth_stands_through(tmp_path: Path, fault: str) -> None:
    """While the service fails, the last known truth stands, `up` is 0, the reason is counted, the outage is told once
    and nothing of the event is invented; afterwards what happened is told rightly."""
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
def test_odd_but_readable(tmp_path: Path, fault: str) -> None:
    """A byte order mark, or a lone surrogate in a text, is no reason to be blind, and the records are valid UTF-8."""
    with over_the_wire(tmp_path) as (environment, service):
        service.fault(fault)
        service.set_document(document(3, started(event())))
        environment.live(5)
        assert environment.value("up") == 1
        assert [kind for kind in environment.kinds() if kind in LIFE][-1] == "started"
        for record in environment.records():
            record.to_json().decode("utf-8")


def test_one_lost_answer_is_one_failure(tmp_path: Path) -> None:
    """A single bad answer between good ones makes no gap: the event that goes then was seen to go."""
    with over_the_wire(tmp_path) as (environment, service):
        service.fault("500*1")
        environment.live(3)
        assert environment.value("poll_failures_total", reason="server-error") == 1
        service.set_document(document(3))
        environment.live(3)
        assert [kind for kind in environment.kinds() if kind in LIFE] == ["scheduled", "canceled"]


def test_throttled_as_long_as_it_asks(tmp_path: Path) -> None:
    """`Retry-After` is obeyed: nothing is asked before its time."""
    with over_the_wire(tmp_path) as (environment, service):
        service.fault("429:20")
        environment.live(1)
        asked = len(service.requests)
        environment.live(18)
        assert len(service.requests) == asked
        environment.live(5)
        assert len(service.requests) == asked + 1


def test_gone_for_seventy_seconds(tmp_path: Path) -> None:
    """410 for as long as Azure may give it: told once, recovered once, nothing lost."""
    with over_the_wire(tmp_path) as (environment, service):
        service.fault("410")
        environment.live(70)
        service.fault(None)
        environment.live(12)
        assert environment.value("up") == 1
        assert [environment.kinds().count(kind) for kind in ("source.unavailable", "source.recovered")] == [1, 1]
        assert [kind for kind in environment.kinds() if kind in LIFE] == ["scheduled"]


def test_nobody_listens(tmp_path: Path) -> None:
    """A service that is gone altogether, its port closed, is an outage like another."""
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


def test_dns_gone(tmp_path: Path) -> None:
    """A configured host name that can't be looked up for a while fails as `dns`, and is looked up again."""
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
            service.fault("gap")  # the connection is lost as well, so that a new one is asked for
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
def test_an_approval_that_fails_is_made_again(tmp_path: Path, fault: str, sure: bool) -> None:
    """Each way to fail a POST is counted and published, waits at least 5 s, and the next one gets through, once."""
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


def test_an_answer_too_late_is_not_acted_on(tmp_path: Path) -> None:
    """Polls that fail leave decisions untaken: nothing is POSTed on the last known document."""
    with over_the_wire(tmp_path) as (environment, service):
        service.fault("html")
        environment.live(60)
        assert not service.posts
