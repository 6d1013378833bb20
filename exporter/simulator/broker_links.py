"""The ends of links at the broker: publishing to an event hub, consuming a partition, and requests with replies."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from exporter.simulator.amqp import CodecError, Described
from exporter.simulator.broker_faults import Fault, FaultKind, Stage
from exporter.simulator.broker_frames import (
    ACCEPTED,
    MODIFIED,
    RECEIVER,
    RELEASED,
    Attach,
    Disposition,
    Flow,
    ProtocolError,
    Transfer,
    rejected,
)
from exporter.simulator.broker_requests import answer_management, answer_token
from exporter.simulator.broker_store import BATCH_FORMAT, Hub, Message, Partition, parse_message

if TYPE_CHECKING:
    from exporter.simulator.broker_session import Session

CREDIT: Final = 1000
_UINT: Final = 0xFFFF_FFFF


class IncomingLink:
    """A link on which the peer sends: puts deliveries together from their frames and grants credit."""

    hub_name: str | None = None

    def __init__(self, session: Session, attach: Attach) -> None:
        self.session, self.name, self.handle = session, attach.name, attach.handle
        self._delivery_count = attach.initial_delivery_count or 0
        self._credit = CREDIT
        self._first: Transfer | None = None
        self._payload = bytearray()

    def grant(self) -> None:
        """Tells the peer how many deliveries it may send."""
        self.session.flow(handle=self.handle, delivery_count=self._delivery_count, link_credit=self._credit)

    def flow(self, flow: Flow) -> None:
        """The sending peer's flow asks for nothing but an echo."""
        if flow.echo:
            self.grant()

    def pump(self) -> None:
        """Nothing to send on a link that receives."""

    def transfer(self, transfer: Transfer, payload: bytes) -> None:
        """One frame of a delivery; the last one completes it. A delivery over the limit costs the sender its link."""
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

    def delivered(self, delivery_id: int, message_format: int, settled: bool, payload: bytes) -> None:
        """A complete delivery."""
        raise NotImplementedError

    def settle(self, delivery_id: int, settled: bool, outcome: Described) -> None:
        """Tells the sender the outcome, unless it doesn't want to know."""
        if not settled:
            self.session.send(Disposition(RECEIVER, delivery_id, delivery_id, True, outcome))  # type: ignore[arg-type] # typed when written


class Publisher(IncomingLink):
    """Stores what arrives in an event hub, or in the one partition that the link names. The place where sends fail."""

    def __init__(self, session: Session, attach: Attach, hub: Hub, partition: Partition | None) -> None:
        super().__init__(session, attach)
        self._hub, self._partition, self.hub_name = hub, partition, hub.name

    def delivered(self, delivery_id: int, message_format: int, settled: bool, payload: bytes) -> None:
        fault = self.session.namespace.faults.take(Stage.SEND)
        if fault is not None and self._refused(fault, delivery_id, settled):
            return
        try:
            envelope = parse_message(payload)
            messages = [parse_message(data) for data in envelope.data] if message_format == BATCH_FORMAT else [envelope]
        except CodecError as error:
            self.settle(delivery_id, settled, rejected("amqp:decode-error", str(error)))
            return
        self.session.namespace.publish(self._hub, self._partition, messages, envelope.partition_key)
        if fault is not None and fault.kind is FaultKind.DROP_AFTER_STORE:
            self.session.connection.drop()
        elif fault is None or fault.kind is not FaultKind.NO_DISPOSITION:
            self.settle(delivery_id, settled, ACCEPTED)

    def _refused(self, fault: Fault, delivery_id: int, settled: bool) -> bool:
        """Lets the fault happen; whether it was one that keeps the message from being stored."""
        told = "a fault was asked for"
        outcome = {
            FaultKind.RELEASED: RELEASED,
            FaultKind.MODIFIED: MODIFIED,
            FaultKind.REJECTED: rejected(fault.condition, told),
        }.get(fault.kind)
        if outcome is not None:
            self.settle(delivery_id, settled, outcome)
        elif fault.kind is FaultKind.DROP_BEFORE_STORE:
            self.session.connection.drop()
        elif fault.kind is FaultKind.DETACH:
            self.session.detach(self, fault.condition, told)
        else:
            return False
        return True


class Requests(IncomingLink):
    """The request half of `$cbs` or `$management`. A request has no reply-to in Azure's Python SDK."""

    def __init__(self, session: Session, attach: Attach, node: str) -> None:
        super().__init__(session, attach)
        self.node = node

    def delivered(self, delivery_id: int, message_format: int, settled: bool, payload: bytes) -> None:
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
            fault = namespace.faults.take(Stage.MANAGEMENT)
            if fault is not None:
                return None
            return answer_management(request, namespace.store, authorised=self.session.connection.authorised)
        fault = namespace.faults.take(Stage.CBS)
        if fault is not None and fault.kind is FaultKind.CBS_SILENT:
            return None
        accepted, reply = answer_token(request, refuse=fault is not None)
        self.session.connection.authorised |= accepted
        return reply


class OutgoingLink:
    """A link on which the broker sends, as far as the peer's credit goes."""

    hub_name: str | None = None

    def __init__(self, session: Session, attach: Attach) -> None:
        self.session, self.name, self.handle = session, attach.name, attach.handle
        self._delivery_count = self._credit = 0

    def transfer(self, transfer: Transfer, payload: bytes) -> None:
        """A peer that sends on a link it receives on has lost its way."""
        del transfer, payload
        raise ProtocolError("amqp:not-allowed", "transfer on a link of the wrong direction")

    def flow(self, flow: Flow) -> None:
        """The peer's credit; with `drain`, what is not needed now is used up at once."""
        if flow.link_credit is not None:
            under_way = (self._delivery_count - (flow.delivery_count or 0)) & _UINT
            self._credit = max(flow.link_credit - under_way, 0)
        self.pump()
        if flow.drain:
            self._delivery_count = (self._delivery_count + self._credit) & _UINT
            self._credit = 0
        if flow.drain or flow.echo:
            self.session.flow(
                handle=self.handle, delivery_count=self._delivery_count, link_credit=self._credit, drain=flow.drain
            )

    def pump(self) -> None:
        """Sends what there is and what is allowed."""
        while self._credit > 0 and self.session.can_send():
            payload = self.take()
            if payload is None:
                return
            self._credit -= 1
            self._delivery_count = (self._delivery_count + 1) & _UINT
            self.session.deliver(self.handle, payload)

    def take(self) -> bytes | None:
        """The next message to send, if there is one."""
        raise NotImplementedError


class Consumer(OutgoingLink):
    """Reads one partition from a position on. `epoch` is the owner level of an exclusive consumer."""

    def __init__(self, session: Session, attach: Attach, partition: Partition, group: str, position: int) -> None:
        super().__init__(session, attach)
        self.partition, self.group, self._position = partition, group, position
        self.hub_name = partition.hub
        epoch = (attach.properties or {}).get("com.microsoft:epoch")
        self.epoch: int | None = int(epoch) if isinstance(epoch, int) else None

    def take(self) -> bytes | None:
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
        self._waiting: deque[bytes] = deque(maxlen=CREDIT)  # a peer that never gives credit costs no more than this

    def put(self, payload: bytes) -> None:
        self._waiting.append(payload)
        self.pump()

    def take(self) -> bytes | None:
        return self._waiting.popleft() if self._waiting else None


Link = IncomingLink | OutgoingLink
