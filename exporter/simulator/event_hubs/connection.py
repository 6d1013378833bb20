"""One connection: plain AMQP or inside a websocket, SASL, open, begin, end, and close (AMQP 1.0 part 2)."""

from __future__ import annotations

import asyncio
from typing import Final

from exporter.simulator.event_hubs import frames
from exporter.simulator.event_hubs.amqp import Array, CodecError, Symbol, UByte, UInt, UShort
from exporter.simulator.event_hubs.frames import Begin, Close, End, Open, Performative, ProtocolError, frame
from exporter.simulator.event_hubs.session import HANDLE_MAX, WINDOW, Session
from exporter.simulator.event_hubs.store import Namespace
from exporter.simulator.event_hubs.websocket import Websocket, WebsocketEndError, binary_frame

CHANNEL_MAX: Final = 255
_SMALLEST_FRAME_SIZE: Final = 512  # AMQP 1.0, part 2, section 2.3.1: no peer may request less
_MECHANISMS: Final = Array(map(Symbol, ("ANONYMOUS", "MSSBCBS", "PLAIN", "EXTERNAL")))


class BrokerConnection(asyncio.Protocol):
    """The connection of one peer. Anything the peer sends can end only its own connection."""

    _transport: asyncio.Transport

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.authorised = False
        self.peer_max_frame_size = _SMALLEST_FRAME_SIZE
        self._sessions: dict[int, Session] = {}
        self._websocket: Websocket | None = None
        self._silent = self._ended = self._opened = False
        self._expect_header = True
        self._buffer = bytearray()
        self._outgoing: list[bytes] = []
        self._heartbeat: asyncio.TimerHandle | None = None

    # --- the socket -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection. asyncio calls it."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # always true for a stream server
        self._transport = transport
        self._silent = self.namespace.faults.take("connect") is not None
        with self.namespace.changed:
            self.namespace.connections.add(self)
            self.namespace.total_connections += 1
            self.namespace.changed.notify_all()

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection. asyncio calls it when either side has closed."""
        del exc  # the reason doesn't matter
        self._ended = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        for session in self._sessions.values():
            session.close()
        with self.namespace.changed:
            self.namespace.connections.discard(self)
            self.namespace.changed.notify_all()

    def data_received(self, data: bytes) -> None:
        """Process received bytes. asyncio calls it. A protocol violation closes the connection."""
        if self._silent or self._ended:
            return
        try:
            self._buffer += self._websocket.receive(data) if self._websocket else data
            while not self._ended and self._consume():
                pass
        except CodecError as problem:
            self.close("amqp:decode-error", str(problem))
        except ProtocolError as problem:
            self.close(problem.condition, str(problem))
        except WebsocketEndError:
            self._ended = True
            self._transport.close()

    def write(self, data: bytes) -> None:
        """Queue bytes; all bytes of one iteration of the loop are sent together."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(data)

    def _flush(self) -> None:
        queued, self._outgoing = self._outgoing, []
        if queued and not self._transport.is_closing():
            self._transport.write(b"".join(map(binary_frame, queued) if self._websocket else queued))

    def send(self, channel: int, performative: Performative, payload: bytes = b"") -> None:
        """Queue one AMQP frame."""
        self.write(frame(channel, performative, payload))

    def drop(self) -> None:
        """End the connection like a crash: nothing more is sent, not even queued bytes."""
        self._ended = True
        self._outgoing.clear()
        self._transport.abort()

    def close(self, condition: str = "", description: str = "") -> None:
        """End the connection in order, with AMQP's close if the peer has opened it."""
        if self._opened:
            self.send(0, Close(frames.error(condition, description) if condition else None))
        self._flush()
        self._ended = True
        self._transport.close()

    def detach_hub_links(self, condition: str, description: str, hub: str | None = None) -> None:
        """Detach the links to one event hub, or to all of them."""
        for session in self._sessions.values():
            for link in list(session.links.values()):
                if link.hub and hub in (None, link.hub):
                    session.detach(link, condition, description)

    # --- AMQP -------------------------------------------------------------------------------------------------------

    def _consume(self) -> bool:
        """Consume one header or frame. Return False if more bytes are needed."""
        if not self._expect_header:
            received = frames.next_frame(self._buffer)
            if received is not None:
                self._on_frame(received)
            return received is not None
        if len(self._buffer) < frames.HEADER_SIZE:
            return False
        if self._websocket is None and self._buffer.startswith(b"GET "):
            limit = 2 * frames.MAX_FRAME_SIZE + self.namespace.max_message_size
            self._websocket = Websocket(self._transport.write, limit)
            self._buffer = bytearray(self._websocket.receive(bytes(self._buffer)))
            return True
        header = bytes(self._buffer[: frames.HEADER_SIZE])
        del self._buffer[: frames.HEADER_SIZE]
        self._expect_header = False
        if header not in (frames.AMQP_HEADER, frames.SASL_HEADER):
            self.write(frames.SASL_HEADER)  # part 2, section 2.2: send a supported header, then close
            self.close()
            return False
        self.write(header)
        if header == frames.SASL_HEADER:
            self.write(frame(0, frames.SaslMechanisms(_MECHANISMS), kind=frames.SASL_FRAME))
        return True

    def _on_frame(self, received: frames.Frame) -> None:
        channel, performative = received.channel, received.performative
        session = self._sessions.get(channel)
        match performative:
            case None:
                return
            case frames.SaslInit() if received.kind == frames.SASL_FRAME and not self._opened:
                self.write(frame(0, frames.SaslOutcome(UByte(0)), kind=frames.SASL_FRAME))
                self._expect_header = True
            case _ if received.kind != frames.AMQP_FRAME:
                raise ProtocolError("amqp:not-allowed", "unexpected SASL frame")
            case Open() if not self._opened:
                self._on_open(performative)
            case Close():
                self.close()
            case _ if not self._opened:
                raise ProtocolError("amqp:not-allowed", "expected open")
            case Begin() if session is None and channel <= CHANNEL_MAX:
                self._sessions[channel] = Session(self, channel, performative)
                self.send(channel, Begin(UShort(channel), UInt(0), UInt(WINDOW), UInt(WINDOW), UInt(HANDLE_MAX)))
            case frames.Attach() | frames.Transfer() | frames.Flow() | frames.Detach() | End() if session:
                self._on_session_frame(session, channel, performative, received.payload)
            case frames.Disposition() | frames.Flow() | frames.Detach() | End():
                return  # all deliveries are settled; a detach may follow end, and the last flow may cross it
            case _:
                raise ProtocolError("amqp:not-allowed", f"unexpected {type(performative).__name__.lower()}")

    def _on_session_frame(self, session: Session, channel: int, performative: Performative, payload: bytes) -> None:
        match performative:
            case frames.Attach():
                session.on_attach(performative)
            case frames.Transfer():
                session.on_transfer(performative, payload)
            case frames.Flow():
                session.on_flow(performative)
            case frames.Detach():
                session.on_detach(performative)
            case End():
                session.close()
                del self._sessions[channel]
                self.send(channel, End())

    def _on_open(self, peer: Open) -> None:
        size = frames.MAX_FRAME_SIZE if peer.max_frame_size is None else int(peer.max_frame_size)
        if size < _SMALLEST_FRAME_SIZE:
            raise ProtocolError("amqp:invalid-field", "max-frame-size is at least 512")
        self._opened, self.peer_max_frame_size = True, size
        self.send(0, Open("event-hubs-simulator", None, UInt(frames.MAX_FRAME_SIZE), UShort(CHANNEL_MAX)))
        if peer.idle_time_out:
            self._send_heartbeat(max(int(peer.idle_time_out) / 2000, 0.05))

    def _send_heartbeat(self, interval: float) -> None:
        """Send empty frames to a peer that announced an idle timeout (2.4.5); `interval` in seconds."""
        if not self._ended:
            self.write(frames.EMPTY_FRAME)
            self._heartbeat = asyncio.get_running_loop().call_later(interval, self._send_heartbeat, interval)
