"""Sessions and their links: publishing to an event hub, consuming a partition, and requests with replies.

A `Session` attaches links; each is an `IncomingLink` (`Publisher`, `Requests`), on which the peer sends, or an
`OutgoingLink` (`Consumer`, `Replies`), on which the broker does. Credit, windows and settlement follow AMQP 1.0 part 2,
sections 2.5 and 2.6; addresses and filters are those of Event Hubs, requests on `$cbs` AMQP Claims-based Security and
those on `$management` AMQP Management.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from exporter.simulator.event_hubs import frames
from exporter.simulator.event_hubs.amqp import CodecError, Described, Int, Symbol, UInt, ULong, encode
from exporter.simulator.event_hubs.frames import Attach, Begin, Detach, Flow, Performative, ProtocolError, Transfer
from exporter.simulator.event_hubs.store import BATCH_FORMAT, AmqpMessage, Hub, Partition, parse_message

if TYPE_CHECKING:
    from exporter.simulator.event_hubs.connection import BrokerConnection

CREDIT: Final = 1000
"""Deliveries that a peer may send ahead on a link; renewed when half is used."""
HANDLE_MAX: Final = 255
WINDOW: Final = 5000
"""Transfer frames that a peer may send ahead in a session; renewed when half is used."""
_UINT: Final = 0xFFFF_FFFF
_FILTER: Final = "apache.org:selector-filter:string"
_UNAUTHORIZED: Final = "amqp:unauthorized-access"
_FAULT: Final = "simulated fault"


class IncomingLink(ABC):
    """A link on which the peer sends. It assembles deliveries from their frames and grants credit."""

    hub = ""
    """The name of the event hub that it uses."""

    def __init__(self, session: Session, attach: Attach) -> None:
        self.session, self.handle = session, attach.handle
        self._delivery_count = attach.initial_delivery_count or 0
        self._credit = CREDIT
        self._first: Transfer | None = None
        self._payload = bytearray()

    def grant(self) -> None:
        """Tell the peer how many deliveries it may send."""
        self.session.flow(self.handle, self._delivery_count, self._credit)

    def flow(self, flow: Flow) -> None:
        """Process a flow: a sending peer can request only an echo."""
        if flow.echo:
            self.grant()

    def transfer(self, transfer: Transfer, payload: bytes) -> None:
        """Process one frame of a delivery; the last one completes it. A delivery over the limit detaches the link."""
        first = self._first = self._first or transfer
        if first.delivery_id is None:
            raise ProtocolError("amqp:invalid-field", "the first transfer of a delivery has a delivery-id")
        self._payload += payload
        limit = self.session.namespace.max_message_size
        if len(self._payload) > limit:
            self.session.detach(self, "amqp:link:message-size-exceeded", f"The message is over {limit} bytes.")
            return
        if transfer.more:
            return
        content = bytes(self._payload)
        self._first, self._payload = None, bytearray()
        self._delivery_count = (self._delivery_count + 1) & _UINT
        self._credit -= 1
        try:
            outcome = self.delivered(parse_message(content), first)
        except CodecError as error:
            outcome = frames.rejected("amqp:decode-error", str(error))
        if outcome is not None and not (first.settled or transfer.settled):
            self.session.send(frames.Disposition(frames.RECEIVER, first.delivery_id, first.delivery_id, True, outcome))
        if self._credit <= CREDIT // 2:
            self._credit = CREDIT
            self.grant()

    @abstractmethod
    def delivered(self, message: AmqpMessage, transfer: Transfer) -> Described | None:
        """Process a complete delivery. Return its outcome, None to send none. Raises `CodecError` to reject it."""


class Publisher(IncomingLink):
    """A link that stores messages in an event hub or in one of its partitions. Faults of sends occur here."""

    def __init__(self, session: Session, attach: Attach, hub: Hub, partition: Partition | None) -> None:
        super().__init__(session, attach)
        self._hub, self._partition, self.hub = hub, partition, hub.name

    def delivered(self, message: AmqpMessage, transfer: Transfer) -> Described | None:
        """Store the message, or the messages of a batch: all in one partition."""
        namespace = self.session.namespace
        fault = namespace.faults.take("send")
        match fault.name if fault else "":
            case "released":
                return frames.RELEASED
            case "modified":
                return frames.MODIFIED
            case "rejected" if fault:
                return frames.rejected(fault.condition, _FAULT)
            case "detach" if fault:
                self.session.detach(self, fault.condition, _FAULT)
                return None
            case "drop-before-store":
                self.session.connection.drop()
                return None
        is_batch = transfer.message_format == BATCH_FORMAT
        messages = [parse_message(data) for data in message.data] if is_batch else [message]
        keys = [each.partition_key for each in (message, *messages) if each.partition_key]
        key = keys[0] if keys else None
        namespace.publish(self._partition or self._hub.choose(key), messages, key)
        if fault and fault.name == "drop-after-store":
            self.session.connection.drop()
        return None if fault and fault.name in ("drop-after-store", "no-disposition") else frames.ACCEPTED


class Requests(IncomingLink):
    """The request half of `$cbs` or `$management`. A request has no reply-to in Azure's Python SDK."""

    def __init__(self, session: Session, attach: Attach, node: str) -> None:
        super().__init__(session, attach)
        self._answer = {"$cbs": self._put_token, "$management": self._read}[node]
        self._node = node

    def delivered(self, message: AmqpMessage, transfer: Transfer) -> Described | None:
        """Reply on the link of this node in the session."""
        del transfer  # requests are plain messages
        reply = self._answer(message)
        links = [link for link in self.session.links.values() if isinstance(link, Replies) and link.node == self._node]
        if links and reply is not None:
            links[0].put(reply)
        return frames.ACCEPTED

    def _put_token(self, request: AmqpMessage) -> bytes | None:
        """Accept any token: the broker has no keys."""
        fault = self.session.namespace.faults.take("cbs")
        if fault and fault.name == "cbs-silent":
            return None
        if request.application_properties.get("operation") != "put-token" or not isinstance(request.value, str | bytes):
            return _refusal(request, 400, "com.microsoft:argument-error", "expected a put-token")
        if fault:
            return _refusal(request, 401, _UNAUTHORIZED, "InvalidSignature: The token has an invalid signature.")
        self.session.connection.authorised = True
        return _reply(request, {"status-code": Int(202), "status-description": "Accepted"})

    def _read(self, request: AmqpMessage) -> bytes | None:
        """Respond to READ of `com.microsoft:eventhub` or `com.microsoft:partition`; None for no response."""
        if self.session.namespace.faults.take("management"):
            return None
        if not self.session.connection.authorised:
            return _refusal(request, 401, _UNAUTHORIZED, "Unauthorized access. No token was put on $cbs.")
        asked = request.application_properties
        hub, kind = self.session.namespace.hubs.get(str(asked.get("name"))), asked.get("type")
        is_hub, is_partition = kind == "com.microsoft:eventhub", kind == "com.microsoft:partition"
        if asked.get("operation") != "READ" or not (is_hub or is_partition):
            problem = "expected READ of an event hub or a partition"
            return _refusal(request, 400, "com.microsoft:argument-error", problem)
        partition = hub.partitions.get(str(asked.get("partition"))) if hub and is_partition else None
        if hub is None or (is_partition and partition is None):
            return _refusal(request, 404, "amqp:not-found", "The messaging entity could not be found.")
        body = {"type": kind, "name": hub.name, **(partition or hub).description()}
        return _reply(request, {"status-code": Int(200), "status-description": "OK"}, body)


def _refusal(request: AmqpMessage, status: int, condition: str, description: str) -> bytes:
    outcome = {"status-code": Int(status), "status-description": description, "error-condition": Symbol(condition)}
    return _reply(request, outcome)


def _reply(request: AmqpMessage, outcome: dict[str, Any], body: dict[str, Any] | None = None) -> bytes:
    properties = [*[None] * 5, request.message_id, *[None] * 7]  # the sixth is the correlation-id
    sections = (Described(ULong(0x73), properties), Described(ULong(0x74), outcome), Described(ULong(0x77), body))
    return b"".join(map(encode, sections))


class OutgoingLink(ABC):
    """A link on which the broker sends, within the peer's credit."""

    hub = ""
    """The name of the event hub that it uses."""

    def __init__(self, session: Session, attach: Attach) -> None:
        self.session, self.handle = session, attach.handle
        self._delivery_count = self._credit = 0

    def flow(self, flow: Flow) -> None:
        """Update the peer's credit."""
        if flow.link_credit is not None:
            in_flight = (self._delivery_count - (flow.delivery_count or 0)) & _UINT
            self._credit = max(flow.link_credit - in_flight, 0)
        self.pump()
        if flow.echo:
            self.session.flow(self.handle, self._delivery_count, self._credit)

    def pump(self) -> None:
        """Send waiting messages, within credit and window."""
        while self._credit > 0 and self.session.window > 0:
            payload = self.next_message()
            if payload is None:
                return
            self._credit -= 1
            self._delivery_count = (self._delivery_count + 1) & _UINT
            self.session.deliver(self.handle, payload)

    @abstractmethod
    def next_message(self) -> bytes | None:
        """Return the next message and count it as sent; None if there is none."""


class Consumer(OutgoingLink):
    """A link that reads one partition from a position on. It ignores owner levels: no consumer is exclusive."""

    def __init__(self, session: Session, attach: Attach, hub: Hub, partition: Partition) -> None:
        super().__init__(session, attach)
        self.hub, self.partition = hub.name, partition
        self._position = partition.position(_selector(attach.source))
        partition.readers.add(self.pump)

    def next_message(self) -> bytes | None:
        """Return the message at the position, and advance; None at the end."""
        if self._position >= len(self.partition.messages):
            return None
        self._position += 1
        return self.partition.messages[self._position - 1].payload()


class Replies(OutgoingLink):
    """The reply half of `$cbs` or `$management`."""

    def __init__(self, session: Session, attach: Attach, node: str) -> None:
        super().__init__(session, attach)
        self.node = node
        self._queued: deque[bytes] = deque(maxlen=CREDIT)  # bounded for a peer that never gives credit

    def put(self, payload: bytes) -> None:
        """Queue a reply, and send it if the peer has given credit."""
        self._queued.append(payload)
        self.pump()

    def next_message(self) -> bytes | None:
        """Remove and return the oldest reply; None if there is none."""
        return self._queued.popleft() if self._queued else None


Link = IncomingLink | OutgoingLink


class Session:
    """A session of a connection, on the same channel in both directions. `window`: frames that the peer accepts now."""

    def __init__(self, connection: BrokerConnection, channel: int, begin: Begin) -> None:
        self.connection, self.namespace, self._channel = connection, connection.namespace, channel
        self.links: dict[int, Link] = {}
        self.window = int(begin.incoming_window)
        self._detached: set[int] = set()  # by the broker, but not yet by the peer
        self._next_incoming, self._unannounced = int(begin.next_outgoing_id), 0
        self._next_outgoing = self._next_delivery = 0

    # --- outgoing ---------------------------------------------------------------------------------------------------

    def send(self, performative: Performative, payload: bytes = b"") -> None:
        """Queue one frame on this session's channel."""
        self.connection.send(self._channel, performative, payload)

    def flow(self, handle: UInt | None = None, delivery_count: int = 0, credit: int = 0) -> None:
        """Announce the session's windows and, with a handle, the state of its link."""
        self._unannounced = 0
        update = Flow(UInt(self._next_incoming), UInt(WINDOW), UInt(self._next_outgoing), UInt(WINDOW))
        if handle is not None:
            update = update._replace(handle=handle, delivery_count=UInt(delivery_count), link_credit=UInt(credit))
        self.send(update)

    def deliver(self, handle: UInt, payload: bytes) -> None:
        """Send one settled message, in several frames if the peer's frame size requires it."""
        space = min(self.connection.peer_max_frame_size, frames.MAX_FRAME_SIZE) - frames.TRANSFER_OVERHEAD
        delivery = UInt(self._next_delivery)
        self._next_delivery = (self._next_delivery + 1) & _UINT
        tag = delivery.to_bytes(4, "big")
        for start in range(0, len(payload), space):
            has_more = start + space < len(payload)
            self.send(Transfer(handle, delivery, tag, UInt(0), True, has_more), payload[start : start + space])
            self._next_outgoing = (self._next_outgoing + 1) & _UINT
            self.window -= 1

    def detach(self, link: Link, condition: str, description: str) -> None:
        """Detach a link from the broker's side, with a reason."""
        self._remove(link)
        self._refuse(link.handle, condition, description)

    def _refuse(self, handle: UInt, condition: str, description: str) -> None:
        self._detached.add(handle)
        self.send(Detach(handle, True, frames.error(condition, description)))

    # --- incoming ---------------------------------------------------------------------------------------------------

    def on_attach(self, attach: Attach) -> None:
        """Attach a link, or refuse it. Raises ProtocolError for a handle that can't be used."""
        if attach.handle > HANDLE_MAX:
            raise ProtocolError("amqp:connection:framing-error", "handle beyond handle-max")
        if attach.handle in self.links:
            raise ProtocolError("amqp:session:handle-in-use", "the handle is in use")
        reply = Attach(
            attach.name,
            attach.handle,
            not attach.role,
            attach.snd_settle_mode if attach.role == frames.SENDER else frames.SETTLED,
            attach.rcv_settle_mode,
            initial_delivery_count=None if attach.role == frames.SENDER else UInt(0),
        )
        try:
            link = self._link(attach)
        except ProtocolError as refusal:
            self.send(reply)  # without a terminus
            self._refuse(attach.handle, refusal.condition, str(refusal))
            return
        self.links[attach.handle] = link
        source, target = (_address(terminus) for terminus in (attach.source, attach.target))
        limit = ULong(self.namespace.max_message_size)
        self.send(reply._replace(source=frames.source(source), target=frames.target(target), max_message_size=limit))
        if isinstance(link, IncomingLink):
            link.grant()

    def on_flow(self, flow: Flow) -> None:
        """Update the peer's window and, with a handle, the link's credit."""
        in_flight = (self._next_outgoing - (flow.next_incoming_id or 0)) & _UINT
        self.window = max(flow.incoming_window - in_flight, 0)
        if flow.handle is None:
            for link in list(self.links.values()):
                if isinstance(link, OutgoingLink):
                    link.pump()
            if flow.echo:
                self.flow()
        elif flow.handle in self.links:
            self.links[flow.handle].flow(flow)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        """Pass a frame of a message to its link. Raises ProtocolError for a handle that can't send."""
        self._next_incoming = (self._next_incoming + 1) & _UINT
        self._unannounced += 1
        link = self.links.get(transfer.handle)
        if isinstance(link, IncomingLink):
            link.transfer(transfer, payload)
        elif link is not None:
            raise ProtocolError("amqp:not-allowed", "transfer on a link of the wrong direction")
        elif transfer.handle not in self._detached:
            raise ProtocolError("amqp:session:unattached-handle", "transfer on a link that is not attached")
        if self._unannounced >= WINDOW // 2:
            self.flow()

    def on_detach(self, detach: Detach) -> None:
        """Detach a link that the peer detaches, on its own or in response to the broker."""
        if (link := self.links.get(detach.handle)) is not None:
            self._remove(link)
            self.send(Detach(detach.handle, detach.closed))
        self._detached.discard(detach.handle)

    def close(self) -> None:
        """Remove all links, without sending anything."""
        for link in list(self.links.values()):
            self._remove(link)

    def _remove(self, link: Link) -> None:
        self.links.pop(link.handle, None)
        if isinstance(link, Consumer):
            link.partition.readers.discard(link.pump)

    def _link(self, attach: Attach) -> Link:
        """Return the link to the address, which may have scheme and host. Raises ProtocolError if there is none."""
        is_sender = attach.role == frames.SENDER
        address = re.sub(r"^[a-z]+://[^/]*", "", _address(attach.target if is_sender else attach.source)).strip("/")
        name, *path = address.split("/")
        node = path[0] if path == ["$management"] else name
        if node in ("$cbs", "$management"):
            return Requests(self, attach, node) if is_sender else Replies(self, attach, node)
        if not self.connection.authorised:
            raise ProtocolError(_UNAUTHORIZED, "Unauthorized access. No token was put on $cbs.")
        if fault := self.namespace.faults.take("attach"):
            raise ProtocolError(fault.condition, _FAULT)
        if (hub := self.namespace.hubs.get(name)) is None:
            raise ProtocolError("amqp:not-found", f"The messaging entity '{name[:80]}' could not be found.")
        partition = None
        if path[-2:-1] == ["Partitions"] and (partition := hub.partitions.get(path[-1])) is None:
            raise ProtocolError("com.microsoft:argument-out-of-range", "The event hub has no such partition.")
        match is_sender, path:
            case True, [] | ["Partitions", _]:
                return Publisher(self, attach, hub, partition)
            case False, ["ConsumerGroups", _, "Partitions", _] if partition:
                return Consumer(self, attach, hub, partition)
        raise ProtocolError("amqp:not-allowed", "Wrong direction for this address.")


def _fields(terminus: Described | None) -> list[Any]:
    return terminus.value if terminus is not None and isinstance(terminus.value, list) else []


def _address(terminus: Described | None) -> str:
    fields = _fields(terminus)
    return fields[0] if fields and isinstance(fields[0], str) else ""


def _selector(terminus: Described | None) -> str | None:
    """Return the text of the selector filter in field 8 of a source; None without one."""
    filters = _fields(terminus)[7:8]
    selector = filters[0].get(_FILTER) if filters and isinstance(filters[0], dict) else None
    text = selector.value if isinstance(selector, Described) else selector
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace")
    return text if isinstance(text, str) else None
