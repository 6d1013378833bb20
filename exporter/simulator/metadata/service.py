"""The simulated metadata service: as strict as the real one, on its own threads, on loopback unless told otherwise."""

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

_MOST_KEPT = 100_000  # requests, and POSTs


class ReceivedPost(NamedTuple):
    """A POST to the events: when it came (seconds since the epoch), its body, and the status it was answered with.

    `status` is 0 where no answer was sent.
    """

    time: float
    body: bytes
    status: int

    @property
    def event_ids(self) -> tuple[str, ...]:
        """The EventIds it asked to start, as received; empty for a malformed body."""
        try:
            return tuple(protocol.start_requests(self.body))
        except Refusal:
            return ()


class MetadataService:
    """A metadata service that plays a scenario as one of its VMs sees it. A context manager; `url` is its base.

    The port is taken and the play begins at once; requests are answered from `start()` (or `with`) on. `platform` is
    the play behind it and may be given to further services, one for each VM of the scenario: they all then see, and
    approve, the same events. `clock` gives seconds since the epoch.
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
        """Raises ScenarioError for an unknown VM, FaultError for an unknown fault, OSError for a taken address."""
        self.vm = scenario.vm(vm)
        self.posts: deque[ReceivedPost] = deque(maxlen=_MOST_KEPT)
        self.requests: deque[SimulatedRequest] = deque(maxlen=_MOST_KEPT)
        self._clock = clock
        self.platform = platform or Play(scenario, start=utc(clock()), speed=speed, repeat=repeat)
        self._faults = Faults(KINDS, PLACES)
        self._faults.set(*faults)
        self._fixed: bytes | None = None
        self._changed = threading.Condition()
        self._server = transport.Server(host, port, self._respond, clock)

    @property
    def url(self) -> str:
        """`http://HOST:PORT`, without a slash at its end."""
        return self._server.url

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    def close(self) -> None:
        """Stop answering and end every connection and thread. A second call does nothing."""
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
        """Answer every GET of the events with exactly this, from the next one on; None goes back to the scenario.

        A POST is then answered by the ids of this document, as far as it can be read; nothing ever starts.
        """
        self._fixed = document if isinstance(document, bytes) or document is None else json.dumps(document).encode()

    def fault(self, *specs: str | None) -> None:
        """Replace all faults by these (see `faults`); none or None clears them."""
        self._faults.set(*filter(None, specs))

    def finished(self) -> bool:
        """True once the play is over; its last document is answered on."""
        return self.platform.finished(utc(self._clock()))

    def wait_until(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Wait up to `timeout` seconds until `holds`, which is asked again after each request; whether it does."""
        with self._changed:
            return self._changed.wait_for(lambda: holds() or self._server.stopping.is_set(), timeout) and holds()

    def _respond(self, request: SimulatedRequest, connection: transport.MetadataConnection) -> None:
        """Answer one whole request on its connection, or fail to, as the faults in force say."""
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
            # Before it is sent: who has the response finds its POST here.
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
        """The response, None for none at all; an approval that counts has counted afterwards."""
        change = self.platform.now(utc(self._clock()))
        if change.silent and self._fixed is None:
            return None
        if fault and fault.name in ("gap", *HANGING):
            return None
        if fault is None:
            return self._response(request, change)
        # A fault comes before the request is read, except that of a lost answer: nothing is approved.
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
        events = json.loads(body)["Events"]
        return {event["EventId"] for event in events if isinstance(event.get("EventId"), str)}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return set()
