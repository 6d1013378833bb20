"""The agent that already runs here: what it says of itself at `/api/v1/status`, and where it differs from the settings.

It is asked at an address of this machine, without a password and without anything else that is secret. So whose
certificate it shows does not matter: its answer is compared and shown, and nothing else depends on it. The answer may
come from a later version, or from another program: it is bounded, and what is missing or mistyped in it is not told.
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
"""Characters of a word that is repeated from the answer."""
_LONGEST: Final = 86400
"""Seconds: no poll interval is longer."""
_UNNAMED: Final = {"", "0.0.0.0", "::"}  # noqa: S104  # compared, not bound
"""Addresses to listen on that stand for all."""


OccupantKind = Literal["agent", "password", "certificate", "other"]
"""What listens on an address that is taken: the agent; the agent, and it wants a password, of which the settings hold
only a hash; something that wants a client certificate, which we have none of; or something else."""


class Occupant(Struct, frozen=True):
    """What answers at an address: `name` is what another program calls itself, `status` what an agent says; None for
    an agent that is just starting, or whose answer can't be read."""

    kind: OccupantKind
    name: str = ""
    status: Mapping[str, Any] | None = None


_REFUSED: Final = Occupant("other")
"""What answers 400 to a good request: servers of TLS do so to one without."""


def identify(host: str, port: int, *, encrypted: bool, seconds: float) -> Occupant:
    """What answers at this address of this machine, asked for so many seconds.

    `encrypted` is what the settings say; what runs may have been started with others, so the other way is tried too.
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
    """Where on this machine to ask for a server on `host`: the one address that it would listen on."""
    if host in _UNNAMED:
        return ["127.0.0.1", "::1"]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    *_, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)  # as `listen` chooses
    return [str(address[0])]


def _ask(host: str, port: int, *, tls: bool, end: float) -> Occupant:
    """Raises OSError and http.client.HTTPException."""
    connection = http.client.HTTPConnection(host, port)
    if tls:
        context = ssl._create_unverified_context()  # noqa: S323  # as the module says
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
    """An answer with its body, or the first part of one that is long or late."""
    connection.close()
    connection.timeout = max(0.1, end - time.monotonic())
    connection.request("GET", path)
    answer = connection.getresponse()
    body = b""
    while len(body) < _READ_AT_MOST and time.monotonic() < end and (part := answer.read1(1 << 16)):
        body += part
    return answer, body


def _read(body: bytes) -> Mapping[str, Any] | None:
    """The status in an answer; None where it is none, or one of a version that can't be understood."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("type") == TYPE else None


# --- what it says


def findings(status: Mapping[str, Any], settings: Settings) -> tuple[Finding, ...]:
    """What the running agent says of itself, and where it differs from these settings."""
    agent = _AgentStatus(status)
    version, mode, name = agent.text("agent", "version"), agent.text("approval", "mode"), agent.text("vm", "name")
    on = f"on {name}" if name else "and does not know the name of this VM"
    running = f"version {version or 'not said'} runs in mode {mode or 'not said'} {on}"
    reason = agent.text("source", "failure")
    if agent.value("source", "up") is True:
        first = ok(TOPIC, f"{running}; it reads the metadata service")
    else:
        why = failure(reason) if reason else "it was not asked yet"
        first = warn(TOPIC, f"{running}; it does not read the metadata service: {why}")
    differences = "; ".join(_differences(agent, settings))
    restart = f"the agent that runs here has {differences}: restart it to take them over"
    return (first, *((warn(TOPIC, restart),) if differences else ()), *_files(agent, settings))


def _files(agent: _AgentStatus, settings: Settings) -> Iterator[Finding]:
    """Files of these settings that the agent sees otherwise than this command, whatever makes the difference.

    What this command can't look at is not compared.
    """
    events, folder = agent.value("event_files"), settings.event_files.path
    files = agent.value("approval", "files")
    theirs: dict[str, object] = dict(files) if isinstance(files, dict) else {}
    asked = {settings.approval.hold_file, *(rule.require_file for rule in settings.approval.rules)}
    if folder and events == {"path": folder, "error": None}:
        status = os.path.join(folder, STATUS_NAME)
        theirs[status] = Presence.PRESENT
        asked.add(status)
    # Only these are looked at: the answer may be of another program.
    known = re.compile("|".join(re.escape(path).replace(r"\{event_id\}", r"[^/\\]+") for path in asked - {""}))
    for path, found in theirs.items():
        here = presence(path) if path and known.fullmatch(path) else Presence.UNKNOWN
        if here is not Presence.UNKNOWN and found in [*Presence] and found != here:
            yield fail(
                TOPIC,
                f"{path} is {found} to the agent that runs here and {here} to this command: if that has not just "
                "changed, the agent has another folder there (PrivateTmp=, a mount, a container) or other rights: name "
                f"a path that both see alike, such as {hold_place()}",
            )


class _AgentStatus(Struct, frozen=True):
    """A status that may lack anything."""

    status: Mapping[str, Any]

    def value(self, *path: str) -> object:
        found: object = self.status
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def text(self, *path: str) -> str:
        """On one line, cut; empty where it is no text."""
        found = self.value(*path)
        return one_line(found)[:_SHOWN] if isinstance(found, str) else ""


def _differences(agent: _AgentStatus, settings: Settings) -> Iterator[str]:
    """In the words of the settings; of what it does not say, nothing."""
    version = agent.text("agent", "version")
    if version and version != __version__:
        yield f"version {version}, this program is {__version__}"
    ours, approval = policy_values(settings.approval.policy), agent.value("approval")
    for key in ("mode", "coordination", "takeover_after", "hold_file"):
        theirs = agent.value("approval", key)
        known = isinstance(approval, dict) and key in approval and isinstance(theirs, str | None)
        if known and (theirs or "") != ours[key]:
            yield f"approval.{key} {agent.text('approval', key) or 'none'}, these settings say {ours[key] or 'none'}"
    rules = agent.value("approval", "rules")
    if isinstance(rules, list) and rules != ours["rules"]:
        yield "other approval.rules than these settings"
    interval, wanted = agent.value("source", "poll_interval_seconds"), settings.source.poll_interval
    if isinstance(interval, int | float) and 0 < interval < _LONGEST and interval != wanted:
        yield f"source.poll_interval {format_duration(interval)}, these settings say {format_duration(wanted)}"
    name, configured = agent.text("vm", "name"), settings.source.vm_name
    if name and configured and not alike(name, configured):
        yield f"the name {name}, these settings say source.vm_name {configured}"
    yield from _destinations(agent, settings)


def _destinations(agent: _AgentStatus, settings: Settings) -> Iterator[str]:
    found = agent.value("destinations")
    if not isinstance(found, list):
        return
    theirs = [each.get("name") for each in found if isinstance(each, dict) and each.get("configured") is True]
    ours = {"event_hubs": settings.event_hubs.configured, "otlp": settings.otlp.configured}
    for name in DESTINATIONS:
        if name in theirs and not ours[name]:
            yield f"{name}, which these settings do not configure"
        elif ours[name] and name not in theirs:
            yield f"no {name}, which these settings configure"
