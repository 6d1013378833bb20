"""The simulated metadata service: as strict as the real one, on its own threads, on loopback by default."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from exporter.core.document import folded
from exporter.simulator.faults import Fault, Faults
from exporter.simulator.metadata import protocol, transport
from exporter.simulator.metadata.faults import HANGING, KINDS, PLACES, apply_fault
from exporter.simulator.metadata.platform import Change, Play, utc
from exporter.simulator.metadata.protocol import Refusal, SimulatedRequest, SimulatedResponse
from exporter.simulator.metadata.scenario import Scenario

_MAX_KEPT = 100_000  # requests, and POSTs


class ReceivedPost(NamedTuple):
    """A POST to the events: its time (seconds since the epoch), its body, and the status of the response.

    `status` is 0 if no response was sent.
    """

    time: float
    body: bytes
    status: int

    @property
    def event_ids(self) -> tuple[str, ...]:
        """The EventIds in the body, as received; empty for a malformed body."""
        try:
            return tuple(protocol.start_requests(self.body))
        except Refusal:
            return ()


class MetadataService:
    """A metadata service that plays a scenario for one of its VMs. A context manager; `url` is its base.

    The port is bound and the play starts at once; requests are served from `start()` (or `with`) on. Several services,
    one for each VM, can share one `platform`: then they show and approve the same events. `clock` returns seconds since
    the epoch.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        speed: float = 1.0,
        vm: str | None = None,
        faults: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
        repeat: bool = False,
        platform: Play | None = None,
    ) -> None:
        """Bind the port. Raises ScenarioError (unknown VM), FaultError (unknown fault), or OSError (address in use)."""
        self.vm = scenario.vm(vm)
        self.posts: deque[ReceivedPost] = deque(maxlen=_MAX_KEPT)
        self.requests: deque[SimulatedRequest] = deque(maxlen=_MAX_KEPT)
        self._clock = clock
        self.platform = platform or Play(scenario, start=utc(clock()), speed=speed, repeat=repeat)
        self._faults = Faults(KINDS, PLACES)
        self._faults.set(*faults)
        self._fixed: bytes | None = None
        self._changed = threading.Condition()
        self._server = transport.Server(host, port, self._respond, clock)

    @property
    def url(self) -> str:
        """`http://HOST:PORT`, without a trailing slash."""
        return self._server.url

    def start(self) -> None:
        """Start to serve requests."""
        self._server.start()

    def close(self) -> None:
        """Stop serving and end every connection and thread. A second call does nothing."""
        self._server.close()
        self._notify()

    def __enter__(self) -> MetadataService:
        """See `start`."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    def set_document(self, document: bytes | Mapping[str, Any] | None) -> None:
        """Return exactly this for every further GET of the events; None returns to the scenario.

        Until then, a POST is accepted if this document has its ids, and nothing starts.
        """
        self._fixed = document if isinstance(document, bytes) or document is None else json.dumps(document).encode()

    def fault(self, *specs: str | None) -> None:
        """Replace all faults by these (see `faults`); none or None clears them."""
        self._faults.set(*filter(None, specs))

    def finished(self) -> bool:
        """Return whether the play has ended; the service continues to return the last document."""
        return self.platform.finished(utc(self._clock()))

    def wait_until(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Wait up to `timeout` seconds until `holds()`, checked after each request. Return whether it became true."""
        with self._changed:
            return self._changed.wait_for(lambda: holds() or self._server.stopping.is_set(), timeout) and holds()

    def _respond(self, request: SimulatedRequest, connection: transport.MetadataConnection) -> None:
        """Respond to one complete request on its connection, subject to the active faults."""
        self.requests.append(request)
        where = "events" if request.place == protocol.EVENTS_PATH else "instance"
        if delay := self._faults.take(where, lambda fault: fault.name == "slow"):
            self._server.stopping.wait(delay.argument)
        is_post = request.method == "POST"
        fault = self._faults.take(
            where, lambda fault: fault.name != "slow" and (is_post or not fault.name.startswith("post-"))
        )
        response = self._faulty_response(request, fault)
        if is_post and where == "events":
            # Before the response is sent, so that a client with a response finds its POST here.
            status = response.status if response and not (fault and fault.name == "post-reset") else 0
            self.posts.append(ReceivedPost(request.time, request.body, status))
        self._notify()
        if response:
            connection.send(response, fault)
        elif fault and fault.name in HANGING:
            connection.hang(fault.argument)
        else:
            connection.reset()

    def _faulty_response(self, request: SimulatedRequest, fault: Fault | None) -> SimulatedResponse | None:
        """Return the response, None for none. A valid approval is in effect afterwards."""
        change = self.platform.now(utc(self._clock()))
        if change.silent and self._fixed is None:
            return None
        if fault and fault.name in ("gap", *HANGING):
            return None
        if fault is None:
            return self._response(request, change)
        # A fault prevents the approval, except post-reset, which only loses the response.
        lost = request.method == "POST" and fault.name != "post-reset"
        return apply_fault(fault, SimulatedResponse(200) if lost else self._response(request, change))

    def _response(self, request: SimulatedRequest, change: Change) -> SimulatedResponse:
        try:
            protocol.check_request(request)
            if request.place != protocol.EVENTS_PATH:
                return protocol.instance_response(request, self.vm)
            if request.method == "POST":
                if not self._approve(protocol.start_requests(request.body)):
                    raise Refusal(400, "Bad request. An EventId is not in the document")
                return SimulatedResponse(200)
        except Refusal as refusal:
            return refusal.response
        fixed = self._fixed
        return protocol.as_json(200, change.document()) if fixed is None else SimulatedResponse(200, fixed)

    def _approve(self, event_ids: Sequence[str]) -> bool:
        fixed = self._fixed
        if fixed is None:
            return self.platform.approve(event_ids, utc(self._clock()))
        known = {folded(event_id) for event_id in _event_ids(fixed)}
        return all(folded(event_id) in known for event_id in event_ids)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _event_ids(body: bytes) -> set[str]:
    try:
        return {event["EventId"] for event in json.loads(body)["Events"] if isinstance(event.get("EventId"), str)}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return set()
