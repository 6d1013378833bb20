"""AMQP over websocket (RFC 6455), the server's half, as far as Azure's SDKs need it. No I/O: bytes in, bytes out."""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from typing import Final

from msgspec import Struct

PATH: Final = "/$servicebus/websocket"
SUBPROTOCOL: Final = "AMQPWSB10"
MAX_REQUEST: Final = 8192
_SALT: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_LENGTH_16, _LENGTH_64 = 126, 127
_MASKED, _OPCODE, _LENGTH = 0x80, 0x0F, 0x7F


class WebsocketError(ValueError):
    """The peer violated the protocol; the connection can't go on."""


class Received(Struct, frozen=True):
    """The result of some input: AMQP bytes, bytes to reply with, and whether the peer has closed."""

    data: bytes = b""
    reply: bytes = b""
    closed: bool = False


class Websocket:
    """One connection: first the HTTP upgrade, then frames. `max_frame` bounds what one frame may announce, in bytes."""

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._buffer = bytearray()
        self._upgraded = False

    def receive(self, data: bytes) -> Received:
        """Process what arrived. Raises `WebsocketError`; its text never contains the peer's bytes."""
        self._buffer += data
        reply = b""
        if not self._upgraded:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0 and len(self._buffer) <= MAX_REQUEST:
                return Received()
            if end < 0 or end > MAX_REQUEST:
                raise WebsocketError("request head too long")
            reply = _upgrade(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            self._upgraded = reply.startswith(b"HTTP/1.1 101 ")
            if not self._upgraded:
                return Received(reply=reply, closed=True)
        output = bytearray()
        while (frame := self._next_frame()) is not None:
            opcode, payload = frame
            if opcode == _CLOSE:
                return Received(bytes(output), reply + _frame(_CLOSE, payload[:2]), closed=True)
            if opcode == _PING:
                reply += _frame(_PONG, payload)
            elif opcode in (_BINARY, _CONTINUATION):
                output += payload
            elif opcode != _PONG:
                raise WebsocketError("only binary frames carry AMQP")
        return Received(bytes(output), reply)

    def _next_frame(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:  # noqa: PLR2004  # the shortest head of a frame
            return None
        length, start = buffer[1] & _LENGTH, 2
        if not buffer[1] & _MASKED or buffer[0] & 0x70:
            raise WebsocketError("a client masks its frames and uses no extension")
        if length >= _LENGTH_16:
            layout = struct.Struct(">H" if length == _LENGTH_16 else ">Q")
            if len(buffer) < start + layout.size:
                return None
            length = layout.unpack_from(buffer, start)[0]
            start += layout.size
        if length > self._max_frame:
            raise WebsocketError("frame too long")
        if len(buffer) < start + 4 + length:
            return None
        mask, opcode = bytes(buffer[start : start + 4]), buffer[0] & _OPCODE
        payload = _unmask(bytes(buffer[start + 4 : start + 4 + length]), mask)
        del buffer[: start + 4 + length]
        return opcode, payload


def binary_frame(data: bytes) -> bytes:
    """AMQP bytes as one binary message from the server."""
    return _frame(_BINARY, data)


def _frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < _LENGTH_16:
        return bytes([0x80 | opcode, size]) + payload
    if size < 1 << 16:
        return bytes([0x80 | opcode, _LENGTH_16]) + struct.pack(">H", size) + payload
    return bytes([0x80 | opcode, _LENGTH_64]) + struct.pack(">Q", size) + payload


def _unmask(payload: bytes, mask: bytes) -> bytes:
    """One XOR over two big integers: a loop over bytes would be the slowest thing in the broker."""
    size = len(payload)
    stream = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")


def _upgrade(head: bytes) -> bytes:
    request, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    method, _, rest = request.partition(" ")
    if method != "GET" or rest.partition(" ")[0].partition("?")[0] != PATH:
        return _refusal("404 Not Found", f"the websocket is at {PATH}")
    if headers.get("upgrade", "").lower() != "websocket":
        return _refusal("426 Upgrade Required", "expected Upgrade: websocket")
    offered = [name.strip() for name in headers.get("sec-websocket-protocol", "").split(",")]
    if SUBPROTOCOL not in offered:
        return _refusal("400 Bad Request", f"expected Sec-WebSocket-Protocol: {SUBPROTOCOL}")
    key = headers.get("sec-websocket-key", "")
    if not _is_key(key):
        return _refusal("400 Bad Request", "expected Sec-WebSocket-Key with 16 bytes in base64")
    digest = hashlib.sha1(key.encode() + _SALT, usedforsecurity=False).digest()
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
    ).encode()


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16  # noqa: PLR2004  # RFC 6455, section 4.1
    except (binascii.Error, ValueError):
        return False


def _refusal(status: str, sentence: str) -> bytes:
    body = (sentence + "\n").encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
