"""AMQP over websocket (RFC 6455): the server's side, limited to what Azure's SDKs need. No I/O."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable
from typing import Final, NoReturn

PATH: Final = "/$servicebus/websocket"
SUBPROTOCOL: Final = "AMQPWSB10"
MAX_REQUEST: Final = 8192
_SALT: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0, 2, 8, 9, 10
_LENGTH_16: Final = 126
_MASKED, _OPCODE, _LENGTH = 0x80, 0x0F, 0x7F


class WebsocketEndError(Exception):
    """The peer closed, requested something else, or violated the protocol: the connection must end."""


class Websocket:
    """One connection: first the HTTP upgrade, then frames. `max_frame` limits the announced length of a frame in bytes.

    `write` sends the responses of the websocket protocol itself.
    """

    def __init__(self, write: Callable[[bytes], None], max_frame: int) -> None:
        self._write, self._max_frame = write, max_frame
        self._buffer = bytearray()
        self._is_upgraded = False

    def receive(self, data: bytes) -> bytes:
        """Return the AMQP bytes in `data`. Raises `WebsocketEndError`, whose text never contains the peer's bytes."""
        self._buffer += data
        if not self._is_upgraded:
            head, end, _ = self._buffer[:MAX_REQUEST].partition(b"\r\n\r\n")
            if not end:
                if len(self._buffer) >= MAX_REQUEST:
                    raise WebsocketEndError("request head too long")
                return b""
            self._upgrade(head.decode("latin-1"))
            del self._buffer[: len(head) + len(end)]
        output = bytearray()
        while (frame := self._next_frame()) is not None:
            opcode, payload = frame
            if opcode in (_BINARY, _CONTINUATION):
                output += payload
            elif opcode == _PING:
                self._write(_frame(_PONG, payload))
            elif opcode == _CLOSE:
                self._write(_frame(_CLOSE, payload[:2]))
                raise WebsocketEndError("the peer has closed")
            elif opcode != _PONG:
                raise WebsocketEndError("only binary frames carry AMQP")
        return bytes(output)

    def _next_frame(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:  # noqa: PLR2004  # the shortest frame head
            return None
        length, start = buffer[1] & _LENGTH, 2
        if not buffer[1] & _MASKED or buffer[0] & 0x70:
            raise WebsocketEndError("a client masks its frames and uses no extension")
        if length >= _LENGTH_16:
            layout = struct.Struct(">H" if length == _LENGTH_16 else ">Q")
            if len(buffer) < start + layout.size:
                return None
            length = layout.unpack_from(buffer, start)[0]
            start += layout.size
        if length > self._max_frame:
            raise WebsocketEndError("frame too long")
        end = start + 4 + length
        if len(buffer) < end:
            return None
        opcode, mask, payload = buffer[0] & _OPCODE, buffer[start : start + 4], buffer[start + 4 : end]
        del buffer[:end]
        # One XOR over two big integers: a loop over bytes would be the slowest thing in the broker.
        stream = (mask * (length // 4 + 1))[:length]
        return opcode, (int.from_bytes(payload, "big") ^ int.from_bytes(stream, "big")).to_bytes(length, "big")

    def _upgrade(self, head: str) -> None:
        request, *lines = head.split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if not request.startswith((f"GET {PATH} ", f"GET {PATH}?")):
            self._refuse("404 Not Found", f"the websocket is at {PATH}")
        key = headers.get("sec-websocket-key", "")
        offered = [name.strip() for name in headers.get("sec-websocket-protocol", "").split(",")]
        if not key or SUBPROTOCOL not in offered:
            self._refuse("400 Bad Request", f"expected the upgrade to a websocket with the protocol {SUBPROTOCOL}")
        digest = hashlib.sha1(key.encode() + _SALT, usedforsecurity=False).digest()
        self._write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
            + base64.b64encode(digest)
            + f"\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n".encode()
        )
        self._is_upgraded = True

    def _refuse(self, status: str, sentence: str) -> NoReturn:
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(sentence)}\r\nConnection: close"
        self._write(f"{head}\r\n\r\n{sentence}".encode())
        raise WebsocketEndError(sentence)


def binary_frame(data: bytes) -> bytes:
    """Return AMQP bytes as one binary message from the server."""
    return _frame(_BINARY, data)


def _frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)  # never more than AMQP's largest frame, which has a length of 16 bits
    head = [size] if size < _LENGTH_16 else [_LENGTH_16, *size.to_bytes(2, "big")]
    return bytes([0x80 | opcode, *head]) + payload
