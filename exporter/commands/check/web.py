"""Probes the address to listen on: whether it is free, already served by this agent, or taken by another program."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import re
import socket
import ssl
from collections.abc import Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Final

from exporter.commands.check.report import Finding, ProbeEnvironment, Report, fail, ok, warn
from exporter.config.schema import Settings
from exporter.metadata.errors import one_line
from exporter.web.server import CHALLENGE, RESERVED_PORTS, is_taken, listen

TOPIC: Final = "web"
_OUR_METRIC: Final = b"azure_scheduled_events_build_info"
_READ_AT_MOST: Final = 1 << 20
_LISTENING: Final = "0A"
"""The state of a listening socket in /proc/net/tcp [proc(5)]."""
_UNPRIVILEGED: Final = 1024


def probe_web(settings: Settings, environment: ProbeEnvironment) -> Report:
    """Bind the address and free it again."""
    host, port = settings.web.address
    address = settings.web.listen_address
    try:
        listen(host, port).close()
    except OSError as error:
        return Report((_refused(error, host, port, settings, environment),))
    return Report((ok(TOPIC, f"{address} is free to listen on"),))


def _refused(error: OSError, host: str, port: int, settings: Settings, environment: ProbeEnvironment) -> Finding:
    if is_taken(error):
        return _taken(host, port, settings, environment, reserved=error.errno == errno.EACCES)
    return fail(TOPIC, refusal(error, settings.web.listen_address, port))


def refusal(error: OSError, address: str, port: int) -> str:
    """Why `port` of the configured `address` can't be listened on, for errors other than that it is taken."""
    if error.errno in (errno.EACCES, errno.EPERM) and port < _UNPRIVILEGED:
        return (
            f"{address}: a port below {_UNPRIVILEGED} is for root alone: choose a higher one, such as 10169, or give "
            "the agent CAP_NET_BIND_SERVICE"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address}: this machine has no such address: set web.listen_address to one of its own, or to :{port}"
    if isinstance(error.__cause__, socket.gaierror):
        return f"{address}: the name is not known: set web.listen_address to an address of this machine, or to :{port}"
    return f"{address} cannot be listened on ({error.strerror}): choose another web.listen_address"


def _taken(
    host: str, port: int, settings: Settings, environment: ProbeEnvironment, *, reserved: bool = False
) -> Finding:
    address = settings.web.listen_address
    local = host if host not in ("", "0.0.0.0", "::") else "127.0.0.1"  # noqa: S104  # compared, not bound
    occupant, name = _identify(local, port, bool(settings.web.config_file), environment.timeouts.connect)
    if occupant is _Occupant.AGENT:
        return ok(TOPIC, f"{address} is served by this agent, which is running")
    if occupant is _Occupant.LOCKED:
        return warn(TOPIC, f"{address} is taken by what wants a client certificate: most likely this agent, running")
    owner = owner_of(port, environment.processes)
    named = f" that calls itself {name}" if name else ""
    who = f"by {owner}" if owner else f"by another program{named}"
    if reserved and not name:
        who += f", or {RESERVED_PORTS}"
    return fail(
        TOPIC, f"{address} is taken {who}: stop that, or set web.listen_address to another port (and tell Prometheus)"
    )


class _Occupant(Enum):
    """What listens on an address that is taken."""

    AGENT = auto()
    LOCKED = auto()
    """Something that wants a client certificate, which we have none of."""
    OTHER = auto()


def _identify(host: str, port: int, encrypted: bool, seconds: float) -> tuple[_Occupant, str]:
    """What listens there, judged by its answer to a scrape, and what another program calls itself."""
    connection: http.client.HTTPConnection
    if encrypted:
        # Whose certificate it is does not matter: nothing is told to it, and its answer is only shown.
        context = ssl._create_unverified_context()  # noqa: S323  # as said above
        connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        if answer.status == http.client.UNAUTHORIZED and answer.headers.get(CHALLENGE[0]) == CHALLENGE[1]:
            return _Occupant.AGENT, ""
        if answer.status == http.client.OK and _OUR_METRIC in answer.read(_READ_AT_MOST):
            return _Occupant.AGENT, ""
        return _Occupant.OTHER, one_line(answer.headers.get("Server", ""))[:60]
    except ssl.SSLError as error:
        return (_Occupant.LOCKED if "CERTIFICATE_REQUIRED" in str(error.reason) else _Occupant.OTHER), ""
    except (OSError, http.client.HTTPException):
        return _Occupant.OTHER, ""
    finally:
        connection.close()


def owner_of(port: int, processes: Path) -> str:
    """Name and id of the process that listens on this port, "" where this user may not see it; Linux alone."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port, processes)}
    if not inodes:
        return ""
    for folder in processes.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(entry) in inodes for entry in (folder / "fd").iterdir()):
                name = (folder / "comm").read_text(encoding="utf-8", errors="replace")
                return f"{one_line(name)} (process {folder.name})"
    return ""


def _listening(port: int, processes: Path) -> Iterator[str]:
    """The inodes of the sockets that listen on this port [proc(5), /proc/net/tcp]."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (processes / "net" / table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if re.fullmatch(rf"[0-9A-F]+:{port:04X}", fields[1]) and fields[3] == _LISTENING:
                    yield fields[9]
