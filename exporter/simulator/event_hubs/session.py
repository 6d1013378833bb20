"""Sessions and their links: publishing to an event hub, consuming a partition, and requests with replies.

`Namespace` is what all connections share. A `Session` attaches links; each is an `IncomingLink` (`Publisher`,
`Requests`), on which the peer sends, or an `OutgoingLink` (`Consumer`, `Replies`), on which the broker does. Credit,
windows and settlement follow AMQP 1.0 part 2, sections 2.5 and 2.6; addresses and filters are those of Event Hubs.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from exporter.simulator.event_hubs.amqp import CodecError, Described, UInt, ULong
from exporter.simulator.event_hubs.frames import (
    ACCEPTED,
    MAX_FRAME_SIZE,
    MODIFIED,
    RECEIVER,
    RELEASED,
    SENDER,
    SETTLED,
    TRANSFER_OVERHEAD,
    Attach,
    Begin,
    Detach,
    Disposition,
    Flow,
    Performative,
    ProtocolError,
    Transfer,
    error,
    rejected,
    source,
    target,
)
from exporter.simulator.event_hubs.requests import answer_management, answer_token
from exporter.simulator.event_hubs.store import (
    BATCH_FORMAT,
    Hub,
    Message,
    Partition,
    PositionError,
    Store,
    parse_message,
)
from exporter.simulator.faults import Fault, Faults

if TYPE_CHECKING:
    from exporter.simulator.event_hubs.connection import Connection

CREDIT: Final = 1000
"""Deliveries that a peer may send ahead on a link; granted anew when half is used."""
HANDLE_MAX: Final = 255
WINDOW: Final = 5000
"""Transfer frames that a peer may send ahead in a session; announced anew when half is used."""
_UINT: Final = 0xFFFF_FFFF
_FILTER: Final = "apache.org:selector-filter:string"


class Namespace(Struct):
    """What all connections share. Only the broker's loop changes it; `store` and `faults` have locks of their own."""

    store: Store
    faults: Faults
    max_message_size: int
    connections: set[Connection] = field(default_factory=set)
    consumers: set[Consumer] = field(default_factory=set)
    total_connections: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Notified when a connection is added or removed."""

    def publish(self, hub: Hub, partition: Partition | None, messages: Iterable[Message], key: str | None) -> None:
        """Store messages, and send them to the consumers of their partition."""
        stored = self.store.append(hub, partition, messages, key)
        for consumer in [consumer for consumer in self.consumers if consumer.partition is stored]:
            consumer.pump()

    def add(self, connection: Connection) -> None:
        """A connection was accepted."""
        with self.changed:
            self.connections.add(connection)
            self.total_connections += 1
            self.changed.notify_all()

    def remove(self, connection: Connection) -> None:
        """A connection has ended."""
        with self.changed:
            self.connections.discard(connection)
            self.changed.notify_all()


class Address(Struct, frozen=True):
    """What a link's address names. `node` is "$cbs", "$management" or "" for an event hub."""

    node: str
    hub: str = ""
    group: str = ""
    partition: str | None = None


def parse_address(text: str) -> Address | None:
    """An address with or without scheme and host, as Azure's SDKs write them; None when it names nothing."""
    path = re.sub(r"^[a-z]+://[^/]*", "", text).strip("/")
    match path.split("/"):
        case ["$cbs"]:
            return Address("$cbs")
        case ["$management"] | [_, "$management"]:
            return Address("$management")
        case [hub] if hub:
            return Address("", hub)
        case [hub, "Partitions", partition]:
            return Address("", hub, partition=partition)
        case [hub, "ConsumerGroups", group, "Partitions", partition]:
            return Address("", hub, group, partition)
    return None


class IncomingLink(ABC):
    """A link on which the peer sends: assembles deliveries from their frames and grants credit."""

    hub_name: str | None = None

    def __init__(self, session: Session, attach: Attach) -> None:
        self.session, self.name, self.handle = session, attach.name, attach.handle
        self._delivery_count = attach.initial_delivery_count or 0
        self._credit = CREDIT
        self._first: Transfer | None = None
        self._payload = bytearray()

    def grant(self) -> None:
        """Tell the peer how many deliveries it may send."""
        self.session.flow(handle=self.handle, delivery_count=self._delivery_count, link_credit=self._credit)

    def flow(self, flow: Flow) -> None:
        """Process a flow: a sending peer can ask for nothing but an echo."""
        if flow.echo:
            self.grant()

    def pump(self) -> None:  # noqa: B027  # not abstract: no incoming link has anything to send
        """Nothing: this link only receives."""

    def transfer(self, transfer: Transfer, payload: bytes) -> None:
        """Process one frame of a delivery; the last one completes it. A delivery over the limit detaches the link."""
        if transfer.aborted:
            self._first, self._payload = None, bytearray()
            return
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
        self.delivered(first.delivery_id, first.message_format or 0, bool(first.settled or transfer.settled), content)
        if self._credit <= CREDIT // 2:
            self._credit = CREDIT
            self.grant()

    @abstractmethod
    def delivered(self, delivery_id: int, message_format: int, settled: bool, payload: bytes) -> None:
        """Process a complete delivery."""

    def settle(self, delivery_id: int, settled: bool, outcome: Described) -> None:
        """Send the outcome of a delivery, unless the peer has sent it settled."""
        if not settled:
            self.session.send(Disposition(RECEIVER, delivery_id, delivery_id, True, outcome))  # type: ignore[arg-type] # typed when written


class Publisher(IncomingLink):
    """Stores what arrives in an event hub, or in the one partition that the link names. Faults of sends happen here."""

    def __init__(self, session: Session, attach: Attach, hub: Hub, partition: Partition | None) -> None:
        super().__init__(session, attach)
        self._hub, self._partition, self.hub_name = hub, partition, hub.name

    def delivered(self, delivery_id: int, message_format: int, settled: bool, payload: bytes) -> None:
        """Store the message, or the messages of a batch, and settle the delivery."""
        fault = self.session.namespace.faults.take("send")
        if fault is not None and self._refused(fault, delivery_id, settled):
            return
        try:
            envelope = parse_message(payload)
            messages = [parse_message(data) for data in envelope.data] if message_format == BATCH_FORMAT else [envelope]
        except CodecError as error:
            self.settle(delivery_id, settled, rejected("amqp:decode-error", str(error)))
            return
        self.session.namespace.publish(self._hub, self._partition, messages, envelope.partition_key)
        if fault is not None and fault.name == "drop-after-store":
            self.session.connection.drop()
        elif fault is None or fault.name != "no-disposition":
            self.settle(delivery_id, settled, ACCEPTED)

    def _refused(self, fault: Fault, delivery_id: int, settled: bool) -> bool:
        """Let the fault happen; True if it is one by which the message is not stored."""
        description = "a fault was asked for"
        outcome = {
            "released": RELEASED,
            "modified": MODIFIED,
            "rejected": rejected(fault.condition, description),
        }.get(fault.name)
        if outcome is not None:
            self.settle(delivery_id, settled, outcome)
        elif fault.name == "drop-before-store":
            self.session.connection.drop()
        elif fault.name == "detach":
            self.session.detach(self, fault.condition, description)
        else:
            return False
        return True


class Requests(IncomingLink):
    """The request half of `$cbs` or `$management`. A request has no reply-to in Azure's Python SDK."""

    def __init__(self, session: Session, attach: Attach, node: str) -> None:
        super().__init__(session, attach)
        self.node = node

    def delivered(self, delivery_id: int, message_format: int, settled: bool, payload: bytes) -> None:
        """Settle the request and reply to it."""
        del message_format  # requests are plain messages
        try:
            request = parse_message(payload)
        except CodecError as error:
            self.settle(delivery_id, settled, rejected("amqp:decode-error", str(error)))
            return
        self.settle(delivery_id, settled, ACCEPTED)
        reply = self._answer(request)
        if reply is not None:
            self.session.reply(self.node, request.property_at(4), reply)

    def _answer(self, request: Message) -> bytes | None:
        namespace = self.session.namespace
        if self.node == "$management":
            fault = namespace.faults.take("management")
            if fault is not None:
                return None
            return answer_management(request, namespace.store, authorised=self.session.connection.authorised)
        fault = namespace.faults.take("cbs")
        if fault is not None and fault.name == "cbs-silent":
            return None
        accepted, reply = answer_token(request, refuse=fault is not None)
        self.session.connection.authorised |= accepted
        return reply


class OutgoingLink(ABC):
    """A link on which the broker sends, as far as the peer's credit goes."""

    hub_name: str | None = None

    def __init__(self, session: Session, attach: Attach) -> None:
        self.session, self.name, self.handle = session, attach.name, attach.handle
        self._delivery_count = self._credit = 0

    def transfer(self, transfer: Transfer, payload: bytes) -> None:
        """Raise ProtocolError: this link only sends."""
        del transfer, payload
        raise ProtocolError("amqp:not-allowed", "transfer on a link of the wrong direction")

    def flow(self, flow: Flow) -> None:
        """Take the peer's credit; with `drain`, what is not needed now is used up at once (2.6.7)."""
        if flow.link_credit is not None:
            in_flight = (self._delivery_count - (flow.delivery_count or 0)) & _UINT
            self._credit = max(flow.link_credit - in_flight, 0)
        self.pump()
        if flow.drain:
            self._delivery_count = (self._delivery_count + self._credit) & _UINT
            self._credit = 0
        if flow.drain or flow.echo:
            self.session.flow(
                handle=self.handle, delivery_count=self._delivery_count, link_credit=self._credit, drain=flow.drain
            )

    def pump(self) -> None:
        """Send what there is, as far as credit and window allow."""
        while self._credit > 0 and self.session.can_send():
            payload = self.next_message()
            if payload is None:
                return
            self._credit -= 1
            self._delivery_count = (self._delivery_count + 1) & _UINT
            self.session.deliver(self.handle, payload)

    @abstractmethod
    def next_message(self) -> bytes | None:
        """The next message to send, which then counts as sent; None if there is none."""


class Consumer(OutgoingLink):
    """Reads one partition from a position on, whatever its owner level: no consumer is exclusive here."""

    def __init__(self, session: Session, attach: Attach, partition: Partition, position: int) -> None:
        super().__init__(session, attach)
        self.partition, self._position = partition, position
        self.hub_name = partition.hub

    def next_message(self) -> bytes | None:
        """The message at the position, which moves on."""
        message = self.partition.read(self._position)
        if message is None:
            return None
        self._position = message.sequence_number + 1
        return message.payload()


class Replies(OutgoingLink):
    """The reply half of `$cbs` or `$management`."""

    def __init__(self, session: Session, attach: Attach, node: str, address: Any) -> None:
        super().__init__(session, attach)
        self.node, self.address = node, address
        self._queued: deque[bytes] = deque(maxlen=CREDIT)  # bounded for a peer that never gives credit

    def put(self, payload: bytes) -> None:
        """Queue a reply, and send it if the peer has given credit."""
        self._queued.append(payload)
        self.pump()

    def next_message(self) -> bytes | None:
        """The oldest reply."""
        return self._queued.popleft() if self._queued else None


Link = IncomingLink | OutgoingLink


class LinkRefusedError(Exception):
    """The link can't be attached; the peer gets it attached without a terminus and detached with the condition."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


class Session:
    """One session of a connection, on the same channel in both directions."""

    def __init__(self, connection: Connection, channel: int, begin: Begin) -> None:
        self.connection, self.namespace, self.channel = connection, connection.namespace, channel
        self.links: dict[int, Link] = {}
        self._detached: set[int] = set()  # by us, and not yet by the peer
        self._next_incoming, self._unannounced = int(begin.next_outgoing_id), 0
        self._next_outgoing = self._next_delivery = 0
        self._window = int(begin.incoming_window)

    # --- outgoing ---------------------------------------------------------------------------------------------------

    def send(self, performative: Performative, payload: bytes = b"") -> None:
        """Queue one frame on this session's channel."""
        self.connection.send(self.channel, performative, payload)

    def flow(
        self,
        *,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        drain: bool | None = None,
    ) -> None:
        """Announce the session's windows, and with a handle the link's state."""
        self._unannounced = 0
        state = (handle, delivery_count, link_credit, 0, drain)
        self.send(Flow(self._next_incoming, WINDOW, self._next_outgoing, WINDOW, *state))  # type: ignore[arg-type] # typed when written

    def can_send(self) -> bool:
        """Whether the peer's window and the socket take more."""
        return self._window > 0 and not self.connection.paused

    def deliver(self, handle: int, payload: bytes) -> None:
        """Send one settled message, in several frames where the peer's frame size asks for it."""
        room = min(self.connection.peer_max_frame_size, MAX_FRAME_SIZE) - TRANSFER_OVERHEAD
        delivery = UInt(self._next_delivery)
        self._next_delivery = (self._next_delivery + 1) & _UINT
        tag = delivery.to_bytes(4, "big")
        for start in range(0, len(payload), room):
            has_more = start + room < len(payload)
            transfer = Transfer(UInt(handle), delivery, tag, UInt(0), True, has_more)
            self.send(transfer, payload[start : start + room])
            self._next_outgoing = (self._next_outgoing + 1) & _UINT
            self._window -= 1

    def reply(self, node: str, reply_to: Any, payload: bytes) -> None:
        """Send a reply on the link its request named, or else on any reply link of that node on the connection."""
        links = [link for link in self.connection.all_links(self) if isinstance(link, Replies) and link.node == node]
        named = [link for link in links if reply_to is not None and link.address == reply_to]
        if links:
            (named or links)[0].put(payload)

    def detach(self, link: Link, condition: str, description: str) -> None:
        """End a link from our side, with a reason."""
        self._remove(link)
        self._detached.add(link.handle)
        self.send(Detach(UInt(link.handle), True, error(condition, description)))

    # --- incoming ---------------------------------------------------------------------------------------------------

    def on_attach(self, attach: Attach) -> None:
        """Attach a link, or refuse it. Raises ProtocolError for a handle that can't be used."""
        if attach.handle > HANDLE_MAX:
            raise ProtocolError("amqp:connection:framing-error", "handle beyond handle-max")
        if attach.handle in self.links:
            raise ProtocolError("amqp:session:handle-in-use", "the handle is in use")
        terminus = attach.target if attach.role == SENDER else attach.source
        text = _address_text(terminus)
        mirrored = Attach(attach.name, attach.handle, not attach.role, snd_settle_mode=attach.snd_settle_mode)
        try:
            link = self._link(attach, parse_address(text))
        except LinkRefusedError as refusal:
            self.send(mirrored._replace(initial_delivery_count=UInt(0) if mirrored.role == SENDER else None))
            self._detached.add(attach.handle)
            self.send(Detach(attach.handle, True, error(refusal.condition, str(refusal))))
            return
        self.links[attach.handle] = link
        ours = mirrored._replace(
            rcv_settle_mode=attach.rcv_settle_mode,
            source=source(_address_text(attach.source)),
            target=target(_address_text(attach.target)),
            max_message_size=ULong(self.namespace.max_message_size),
        )
        if isinstance(link, IncomingLink):
            self.send(ours)
            link.grant()
        else:
            self.send(ours._replace(snd_settle_mode=SETTLED, initial_delivery_count=UInt(0)))

    def on_flow(self, flow: Flow) -> None:
        """Take the peer's window, and with a handle the link's credit."""
        seen = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        in_flight = (self._next_outgoing - seen) & _UINT
        self._window = max(flow.incoming_window - in_flight, 0)
        if flow.handle is None:
            self.pump()
            if flow.echo:
                self.flow()
        elif flow.handle in self.links:
            self.links[flow.handle].flow(flow)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        """Hand a frame of a message to its link. Raises ProtocolError for a handle that is not attached."""
        self._next_incoming = (self._next_incoming + 1) & _UINT
        self._unannounced += 1
        link = self.links.get(transfer.handle)
        if link is not None:
            link.transfer(transfer, payload)
        elif transfer.handle not in self._detached:
            raise ProtocolError("amqp:session:unattached-handle", "transfer on a link that is not attached")
        if self._unannounced >= WINDOW // 2:
            self.flow()

    def on_detach(self, detach: Detach) -> None:
        """Detach a link that the peer detaches, or has detached in response to us."""
        link = self.links.get(detach.handle)
        if link is not None:
            self._remove(link)
            self.send(Detach(detach.handle, detach.closed))
        self._detached.discard(detach.handle)

    def pump(self) -> None:
        """Send what waits on all links."""
        for link in list(self.links.values()):
            link.pump()

    def close(self) -> None:
        """Remove all links, without sending anything."""
        for link in list(self.links.values()):
            self._remove(link)

    def _remove(self, link: Link) -> None:
        self.links.pop(link.handle, None)
        if isinstance(link, Consumer):
            self.namespace.consumers.discard(link)

    # --- addresses --------------------------------------------------------------------------------------------------

    def _link(self, attach: Attach, address: Address | None) -> Link:
        if address is None:
            raise LinkRefusedError("amqp:not-found", "The address names nothing.")
        if address.node:  # requests to $management may have their own token
            return self._request_half(attach, address)
        if not self.connection.authorised:
            raise LinkRefusedError("amqp:unauthorized-access", "Unauthorized access. No token was put on $cbs.")
        fault = self.namespace.faults.take("attach")
        if fault is not None:
            raise LinkRefusedError(fault.condition, "a fault was asked for")
        hub = self.namespace.store.hubs.get(address.hub)
        if hub is None:
            raise LinkRefusedError("amqp:not-found", f"The messaging entity '{address.hub[:80]}' could not be found.")
        partition = hub.partitions.get(address.partition) if address.partition is not None else None
        if address.partition is not None and partition is None:
            raise LinkRefusedError("com.microsoft:argument-out-of-range", "The event hub has no such partition.")
        if attach.role == SENDER and not address.group:
            return Publisher(self, attach, hub, partition)
        if attach.role == SENDER or not address.group or partition is None:
            raise LinkRefusedError("amqp:not-allowed", "Wrong direction for this address.")
        return self._consumer(attach, partition)

    def _request_half(self, attach: Attach, address: Address) -> Link:
        if attach.role == SENDER:
            return Requests(self, attach, address.node)
        return Replies(self, attach, address.node, _address_text(attach.target))

    def _consumer(self, attach: Attach, partition: Partition) -> OutgoingLink:
        try:
            position = partition.position(_selector(attach.source))
        except PositionError as problem:
            raise LinkRefusedError("com.microsoft:argument-error", str(problem)) from problem
        consumer = Consumer(self, attach, partition, position)
        self.namespace.consumers.add(consumer)
        return consumer


def _address_text(terminus: Described | None) -> str:
    fields = terminus.value if terminus is not None and isinstance(terminus.value, list) else []
    return fields[0] if fields and isinstance(fields[0], str) else ""


def _selector(terminus: Described | None) -> str | None:
    """The text of the selector filter: field 8 of a source is a map of described values."""
    fields = terminus.value if terminus is not None and isinstance(terminus.value, list) else []
    filters = fields[7] if len(fields) > 7 and isinstance(fields[7], dict) else {}  # noqa: PLR2004  # the filter's place
    selector = filters.get(_FILTER)
    text = selector.value if isinstance(selector, Described) else selector
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace")
    return text if isinstance(text, str) else None
