"""Compares the settings with the agent that already runs on this machine, by its `/api/v1/status`.

The request goes to an address of this machine and contains no secret, so the server's certificate isn't verified: the
response is only compared and shown. It may come from a later version or from another program: its size is limited, and
missing or mistyped members are ignored.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from exporter import __version__
from exporter.agent.files import presence
from exporter.commands.check.report import Finding, fail, ok, warn
from exporter.config.load import policy_values
from exporter.config.places import hold_place
from exporter.config.schema import Settings
from exporter.core.document import alike
from exporter.core.policy import Presence
from exporter.core.snapshot import DESTINATIONS
from exporter.event_files.content import STATUS_NAME
from exporter.metadata.errors import one_line
from exporter.page.sentences import failure
from exporter.page.status import TYPE
from exporter.text.format import format_duration
from exporter.web.responses import STATUS
from exporter.web.server import CHALLENGE

TOPIC: Final = "agent"
_OUR_METRIC: Final = b"azure_scheduled_events_build_info"
_READ_AT_MOST: Final = 4 << 20
_SHOWN: Final = 100
"""Characters of a value of the response that a finding quotes."""
_LONGEST: Final = 86400
"""Upper bound of a poll interval, in seconds."""
_UNNAMED: Final = {"", "0.0.0.0", "::"}  # noqa: S104  # compared, not bound
"""Hosts of `web.listen_address` that mean all addresses."""


OccupantKind = Literal["agent", "password", "certificate", "other"]
"""The program that listens on an address: the agent, the agent with a required password (the settings contain only its
hash), a server that requires a client certificate, or another program."""


class Occupant(Struct, frozen=True):
    """The program at an address.

    `name` is another program's Server header. `status` is an agent's status; None if the agent is just starting or its
    response can't be read.
    """

    kind: OccupantKind
    name: str = ""
    status: Mapping[str, Any] | None = None


_REFUSED: Final = Occupant("other")
"""A server that returned 400 to a valid request, as TLS servers do for plain HTTP."""


def identify(host: str, port: int, *, encrypted: bool, seconds: float) -> Occupant:
    """Return the program at this address of this machine, within `seconds`.

    `encrypted` is whether the settings use TLS. The running program may have other settings, so both ways are tried.
    """
    end = time.monotonic() + seconds
    for local in _addresses(host, port):
        for tls in (encrypted, not encrypted):
            try:
                occupant = _ask(local, port, tls=tls, end=end)
            except ssl.SSLError as error:
                if "CERTIFICATE_REQUIRED" in str(error.reason):
                    return Occupant("certificate")
            except TimeoutError:
                break
            except (OSError, http.client.HTTPException):
                continue
            else:
                if occupant is not _REFUSED:
                    return occupant
    return Occupant("other")


def _addresses(host: str, port: int) -> list[str]:
    """Return the addresses to try for a server that listens on `host`; empty if the name doesn't resolve."""
    if host in _UNNAMED:
        return ["127.0.0.1", "::1"]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    *_, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)  # as `listen` chooses
    return [str(address[0])]


def _ask(host: str, port: int, *, tls: bool, end: float) -> Occupant:
    """Request the status, then the metrics. Raises OSError and http.client.HTTPException."""
    connection = http.client.HTTPConnection(host, port)
    if tls:
        context = ssl._create_unverified_context()  # noqa: S323  # see the module's docstring
        connection = http.client.HTTPSConnection(host, port, context=context)
    try:
        answer, body = _get(connection, STATUS, end)
        if answer.status == http.client.BAD_REQUEST:
            return _REFUSED
        if answer.status == http.client.UNAUTHORIZED and answer.headers.get(CHALLENGE[0]) == CHALLENGE[1]:
            return Occupant("password")
        if answer.status == http.client.OK and (status := _read(body)) is not None:
            return Occupant("agent", status=status)
        answer, body = _get(connection, "/metrics", end)
        if answer.status == http.client.OK and _OUR_METRIC in body:
            return Occupant("agent")
        return Occupant("other", one_line(answer.headers.get("Server", ""))[:60])
    finally:
        connection.close()


def _get(connection: http.client.HTTPConnection, path: str, end: float) -> tuple[http.client.HTTPResponse, bytes]:
    """Return a response and its body, or the first part of a body that is too long or too late."""
    connection.close()
    connection.timeout = max(0.1, end - time.monotonic())
    connection.request("GET", path)
    answer = connection.getresponse()
    body = b""
    while len(body) < _READ_AT_MOST and time.monotonic() < end and (part := answer.read1(1 << 16)):
        body += part
    return answer, body


def _read(body: bytes) -> Mapping[str, Any] | None:
    """Return the status in a response body; None if it isn't a status, or has another version of the format."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("type") == TYPE else None


# --- the findings


def findings(status: Mapping[str, Any], settings: Settings) -> tuple[Finding, ...]:
    """Return the findings about the running agent: its state, and its differences from these settings."""
    agent = _AgentStatus(status)
    version, mode, name = agent.text("agent", "version"), agent.text("approval", "mode"), agent.text("vm", "name")
    on = f"on {name}" if name else "on a VM whose name is unknown"
    running = f"version {version or 'unknown'} is running in mode {mode or 'unknown'} {on}"
    reason = agent.text("source", "failure")
    if agent.value("source", "up") is True:
        first = ok(TOPIC, f"{running}; it reads the metadata service")
    else:
        why = (
            f"cannot read the metadata service: {failure(reason)}"
            if reason
            else "has not polled the metadata service yet"
        )
        first = warn(TOPIC, f"{running}; it {why}")
    differences = "; ".join(_differences(agent, settings))
    restart = f"the running agent has {differences}: restart it to apply these settings"
    return (first, *((warn(TOPIC, restart),) if differences else ()), *_files(agent, settings))


def _files(agent: _AgentStatus, settings: Settings) -> Iterator[Finding]:
    """Yield the files of these settings for which the agent and this command disagree whether they exist.

    Files that this command can't check aren't compared.
    """
    events, folder = agent.value("event_files"), settings.event_files.path
    files = agent.value("approval", "files")
    theirs: dict[str, object] = dict(files) if isinstance(files, dict) else {}
    asked = {settings.approval.hold_file, *(rule.require_file for rule in settings.approval.rules)}
    if folder and events == {"path": folder, "error": None}:
        status = os.path.join(folder, STATUS_NAME)
        theirs[status] = Presence.PRESENT
        asked.add(status)
    # No other files: the response may come from another program.
    known = re.compile("|".join(re.escape(path).replace(r"\{event_id\}", r"[^/\\]+") for path in asked - {""}))
    for path, found in theirs.items():
        here = presence(path) if path and known.fullmatch(path) else Presence.UNKNOWN
        if here is not Presence.UNKNOWN and found in [*Presence] and found != here:
            yield fail(
                TOPIC,
                f"{path} is {found} for the running agent and {here} for this command: the agent sees another "
                "directory (PrivateTmp=, a mount, a container) or has other permissions, unless the file has just "
                f"changed; use a path that both see, for example {hold_place()}",
            )


class _AgentStatus(Struct, frozen=True):
    """A status in which any member may be missing or have any type."""

    status: Mapping[str, Any]

    def value(self, *path: str) -> object:
        found: object = self.status
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def text(self, *path: str) -> str:
        """Return the member on one line, truncated; "" if it isn't a string."""
        found = self.value(*path)
        return one_line(found)[:_SHOWN] if isinstance(found, str) else ""


def _differences(agent: _AgentStatus, settings: Settings) -> Iterator[str]:
    """Yield the settings whose values differ; members missing from the status aren't compared."""
    version = agent.text("agent", "version")
    if version and version != __version__:
        yield f"version {version} (this program: {__version__})"
    ours, approval = policy_values(settings.approval.policy), agent.value("approval")
    for key in ("mode", "coordination", "takeover_after", "hold_file"):
        theirs = agent.value("approval", key)
        known = isinstance(approval, dict) and key in approval and isinstance(theirs, str | None)
        if known and (theirs or "") != ours[key]:
            yield f"approval.{key} {agent.text('approval', key) or 'none'} (these settings: {ours[key] or 'none'})"
    rules = agent.value("approval", "rules")
    if isinstance(rules, list) and rules != ours["rules"]:
        yield "different approval.rules"
    interval, wanted = agent.value("source", "poll_interval_seconds"), settings.source.poll_interval
    if isinstance(interval, int | float) and 0 < interval < _LONGEST and interval != wanted:
        yield f"source.poll_interval {format_duration(interval)} (these settings: {format_duration(wanted)})"
    name, configured = agent.text("vm", "name"), settings.source.vm_name
    if name and configured and not alike(name, configured):
        yield f"the VM name {name} (source.vm_name in these settings: {configured})"
    yield from _destinations(agent, settings)


def _destinations(agent: _AgentStatus, settings: Settings) -> Iterator[str]:
    found = agent.value("destinations")
    if not isinstance(found, list):
        return
    theirs = [each.get("name") for each in found if isinstance(each, dict) and each.get("configured") is True]
    ours = {"event_hubs": settings.event_hubs.configured, "otlp": settings.otlp.configured}
    for name in DESTINATIONS:
        if name in theirs and not ours[name]:
            yield f"the destination {name} (not configured in these settings)"
        elif ours[name] and name not in theirs:
            yield f"no destination {name} (configured in these settings)"
