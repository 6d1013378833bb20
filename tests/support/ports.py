"""Ports of loopback for servers and for nobody."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that refuses connections until a server of the test listens on it, and again when it has stopped.

    Neither a connection nor a server that lets the system choose is given it meanwhile. On Windows, where a server
    could not take it then, it was free a moment ago, no more.
    """
    with socket.socket() as sock:
        if os.name == "posix":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do that shall have it
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        if os.name != "posix":
            sock.close()
        yield port


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]
