"""Whether an address can be reached at all, tried below every protocol, so that a firewall is not taken for a peer."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final

from exporter.commands.check.report import ClockReading


class Reach(StrEnum):
    """How far a TCP connection got."""

    OPEN = "open"
    UNKNOWN_NAME = "unknown-name"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"


REACH_WORDS: Final[Mapping[Reach, str]] = {
    Reach.REFUSED: "refuses connections",
    Reach.TIMEOUT: "does not answer",
    Reach.UNREACHABLE: "has no route from here",
}
"""What an address does that could not be connected to, for a sentence that begins with it."""


def reach(host: str, port: int, seconds: float) -> Reach:
    """Connect and close, within `seconds` for each address of the name."""
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except (socket.gaierror, UnicodeError):
        return Reach.UNKNOWN_NAME
    except ConnectionRefusedError:
        return Reach.REFUSED
    except TimeoutError:
        return Reach.TIMEOUT
    except ConnectionResetError:
        return Reach.OPEN  # somebody took the connection, and hung up before we could look at it
    except OSError:
        return Reach.UNREACHABLE
    return Reach.OPEN


def clock_of(peer: str, date: str, ours: float, took: float) -> tuple[ClockReading, ...]:
    """The reading that an answer's Date header (whole seconds) gives; none where it is no date.

    The answer came at `ours`, in Unix seconds of this machine, `took` seconds after the request.
    """
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, OSError):
        return ()
    return (ClockReading(peer, theirs + 0.5 - (ours - took / 2), 0.5 + took / 2),)
