"""Ports of loopback, with and without a server."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that refuses connections until a server of the test listens on it, and again when it has stopped.

    The system gives it to no connection and no server meanwhile. On Windows, where a server could not use it then, the
    port was only free a moment ago.
    """
    with socket.socket() as sock:
        if os.name == "posix":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do that will use it
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        if os.name != "posix":
            sock.close()
        yield port


@contextmanager
def silent_port() -> Iterator[int]:
    """Yield a port that accepts connections and never sends a byte."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]
