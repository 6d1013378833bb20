"""One connection: AMQP straight or inside a websocket, SASL, open, begin, end and close (AMQP 1.0 part 2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from exporter.simulator.event_hubs.amqp import Array, CodecError, Symbol, UByte, UInt, UShort
from exporter.simulator.event_hubs.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    HEADER_SIZE,
    MAX_FRAME_SIZE,
    SASL_FRAME,
    SASL_HEADER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Frame,
    Open,
    Performative,
    ProtocolError,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
    error,
    frame,
    next_frame,
)
from exporter.simulator.event_hubs.session import HANDLE_MAX, WINDOW, Link, Namespace, Session
from exporter.simulator.event_hubs.websocket import Websocket, WebsocketError, binary_frame

CHANNEL_MAX: Final = 255
_SMALLEST_FRAME_SIZE: Final = 512  # AMQP 1.0, part 2, section 2.3.1: no peer may ask for less
_WEBSOCKET_MESSAGE: Final = 65536  # what is written at once in one message; clients refuse messages of some MiB
_MECHANISMS: Final = Array(map(Symbol, ("ANONYMOUS", "MSSBCBS", "PLAIN", "EXTERNAL")))


class Connection(asyncio.Protocol):
    """The connection of one peer. Whatever the peer sends, at worst its own connection ends."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.paused = False
        self.authorised = False
        self.peer_max_frame_size = _SMALLEST_FRAME_SIZE
        self.sessions: dict[int, Session] = {}
        self._transport: asyncio.Transport | None = None
        self._websocket: Websocket | None = None
        self._silent = self._ended = self._opened = False
        self._transport_known, self._expect_header = False, True
        self._buffer = bytearray()
        self._outgoing: list[bytes] = []
        self._heartbeat: asyncio.TimerHandle | None = None

    # --- the socket -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # a stream server makes no other
        self._transport = transport
        self._silent = self.namespace.faults.take("connect") is not None
        self.namespace.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when either side has closed."""
        del exc  # the peer is gone, for whatever reason
        self._ended = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        for session in self.sessions.values():
            session.close()
        self.sessions.clear()
        self.namespace.remove(self)

    def pause_writing(self) -> None:
        """Called by asyncio when the peer reads too slowly."""
        self.paused = True

    def resume_writing(self) -> None:
        """Called by asyncio when the peer has read enough."""
        self.paused = False
        for session in list(self.sessions.values()):
            session.pump()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio. What violates a protocol closes the connection."""
        if self._silent or self._ended:
            return
        try:
            self._receive(data)
        except CodecError as problem:
            self.close("amqp:decode-error", str(problem))
        except ProtocolError as problem:
            self.close(problem.condition, str(problem))
        except WebsocketError:
            self.close()

    def write(self, data: bytes) -> None:
        """Queue bytes; what is written within one iteration of the loop is sent together."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(data)

    def _flush(self) -> None:
        data, self._outgoing = b"".join(self._outgoing), []
        if self._transport is None or self._transport.is_closing() or not data:
            return
        if self._websocket is None:
            self._transport.write(data)
            return
        for start in range(0, len(data), _WEBSOCKET_MESSAGE):
            self._transport.write(binary_frame(data[start : start + _WEBSOCKET_MESSAGE]))

    def send(self, channel: int, performative: Performative, payload: bytes = b"") -> None:
        """Queue one AMQP frame."""
        self.write(frame(channel, performative, payload))

    def drop(self) -> None:
        """End the connection as a crash would: nothing more is sent, not even what was queued."""
        self._ended = True
        self._outgoing.clear()
        if self._transport is not None:
            self._transport.abort()

    def close(self, condition: str = "", description: str = "") -> None:
        """End the connection in order, with AMQP's close if the peer had opened it."""
        if self._opened:
            self.send(0, Close(error(condition, description) if condition else None))
        self._flush()
        self._ended = True
        if self._transport is not None:
            self._transport.close()

    def all_links(self, first: Session) -> Iterator[Link]:
        """The links of every session, those of `first` first."""
        for session in (first, *(other for other in self.sessions.values() if other is not first)):
            yield from session.links.values()

    def detach_hub_links(self, condition: str, description: str, hub: str | None = None) -> None:
        """Detach the links to one event hub, or to all of them."""
        for session in list(self.sessions.values()):
            for link in list(session.links.values()):
                if link.hub_name is not None and hub in (None, link.hub_name):
                    session.detach(link, condition, description)

    # --- AMQP -------------------------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        if self._websocket is not None:
            self._unwrap(self._websocket, data)
        else:
            self._buffer += data
            if not self._transport_known and len(self._buffer) >= 4:  # noqa: PLR2004  # "GET " or "AMQP"
                self._transport_known = True
                if self._buffer.startswith(b"GET "):
                    self._websocket = Websocket(2 * MAX_FRAME_SIZE + self.namespace.max_message_size)
                    start, self._buffer = bytes(self._buffer), bytearray()
                    self._unwrap(self._websocket, start)
        while not self._ended and self._consume():
            pass

    def _unwrap(self, websocket: Websocket, data: bytes) -> None:
        received = websocket.receive(data)
        if received.reply and self._transport is not None:
            self._transport.write(received.reply)
        self._buffer += received.data
        if received.closed:
            self._ended = True
            if self._transport is not None:
                self._transport.close()

    def _consume(self) -> bool:
        """Consume one header or frame; False when more bytes are needed."""
        if not self._expect_header:
            received = next_frame(self._buffer)
            if received is not None:
                self._on_frame(received)
            return received is not None
        if len(self._buffer) < HEADER_SIZE:
            return False
        header = bytes(self._buffer[:HEADER_SIZE])
        del self._buffer[:HEADER_SIZE]
        self._expect_header = False
        if header not in (AMQP_HEADER, SASL_HEADER):
            self.write(SASL_HEADER)  # part 2, section 2.2: send a header that we speak, then close
            self.close()
            return False
        self.write(header)
        if header == SASL_HEADER:
            self.write(frame(0, SaslMechanisms(_MECHANISMS), kind=SASL_FRAME))
        return True

    def _on_frame(self, received: Frame) -> None:
        channel, performative = received.channel, received.performative
        match performative:
            case None:
                return
            case SaslInit() if received.kind == SASL_FRAME and not self._opened:
                self.write(frame(0, SaslOutcome(UByte(0)), kind=SASL_FRAME))
                self._expect_header = True
            case _ if received.kind != AMQP_FRAME:
                raise ProtocolError("amqp:not-allowed", "unexpected SASL frame")
            case Open() if not self._opened:
                self._on_open(performative)
            case Close():
                self.close()
            case _ if not self._opened:
                raise ProtocolError("amqp:not-allowed", "expected open")
            case Begin() if channel not in self.sessions and channel <= CHANNEL_MAX:
                self._on_begin(channel, performative)
            case Flow() | Disposition() | Detach() | End() if channel not in self.sessions:
                return  # a detach may come after end, and the last flow crosses our end on its way
            case Attach() | Flow() | Transfer() | Detach() | Disposition() | End() if channel in self.sessions:
                self._on_session_frame(self.sessions[channel], performative, received.payload)
            case _:
                raise ProtocolError("amqp:not-allowed", f"unexpected {type(performative).__name__.lower()}")

    def _on_session_frame(self, session: Session, performative: Performative, payload: bytes) -> None:
        match performative:
            case Transfer():
                session.on_transfer(performative, payload)
            case Flow():
                session.on_flow(performative)
            case Attach():
                session.on_attach(performative)
            case Detach():
                session.on_detach(performative)
            case End():
                session.close()
                del self.sessions[session.channel]
                self.send(session.channel, End())
            case _:
                return  # a consumer's dispositions: everything was sent settled

    def _on_open(self, peer: Open) -> None:
        size = MAX_FRAME_SIZE if peer.max_frame_size is None else int(peer.max_frame_size)
        if size < _SMALLEST_FRAME_SIZE:
            raise ProtocolError("amqp:invalid-field", "max-frame-size is at least 512")
        self._opened, self.peer_max_frame_size = True, size
        container = "event-hubs-simulator"
        self.send(0, Open(container, None, UInt(MAX_FRAME_SIZE), UShort(CHANNEL_MAX)))
        if peer.idle_time_out:
            self._send_heartbeat(max(int(peer.idle_time_out) / 2000, 0.05))

    def _send_heartbeat(self, interval: float) -> None:
        """Send empty frames to a peer that announced an idle timeout (2.4.5); `interval` in seconds."""
        if not self._ended:
            self.write(EMPTY_FRAME)
            self._heartbeat = asyncio.get_running_loop().call_later(interval, self._send_heartbeat, interval)

    def _on_begin(self, channel: int, begin: Begin) -> None:
        self.sessions[channel] = Session(self, channel, begin)
        self.send(channel, Begin(UShort(channel), UInt(0), UInt(WINDOW), UInt(WINDOW), UInt(HANDLE_MAX)))
