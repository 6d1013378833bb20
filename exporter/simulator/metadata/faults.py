"""The ways in which a metadata service fails, by name, to be switched on and off while it runs.

A fault is written `[WHERE/]NAME[:ARG][*COUNT][@START-END]`: WHERE is `events` (the default), `instance` or `all`; COUNT
answers and no more; START and END are durations of the wall clock since it was set (`10s`, or 10), either may be left
out.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from exporter.simulator.metadata.protocol import Response, as_json
from exporter.text.format import parse_duration
from exporter.text.values import unknown_word

_SPEC = re.compile(
    r"(?:(?P<where>[a-z]+)/)?(?P<name>[a-z0-9-]+)(?::(?P<arg>[^*@]+))?(?:\*(?P<count>[0-9]{1,9}))?"
    r"(?:@(?P<start>[0-9][0-9a-z.]*)?-(?P<end>[0-9][0-9a-z.]*)?)?"
)
_SECONDS = re.compile(r"(?:[0-9]{1,12}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})s?")
_SCOPES = frozenset({"events", "instance", "all"})
_MIB = 1024 * 1024


class FaultError(ValueError):
    """A fault that cannot be understood; the text says why."""


class Kind(NamedTuple):
    """What a fault does, in a line for `--list`, and what its argument means: seconds or MiB (None: it takes none)."""

    does: str
    argument: float | None = None
    method: str = ""


KINDS: Mapping[str, Kind] = {
    "slow-first": Kind("the first answer takes ARG seconds (Azure: up to two minutes)", 120),
    "slow": Kind("every answer takes ARG seconds", 2),
    "400": Kind("400 with a JSON error"),
    "401": Kind("401, as the Metadata Security Protocol refuses a process"),
    "403": Kind("403, as the Metadata Security Protocol refuses a process"),
    "404": Kind("404 with a JSON error"),
    "408": Kind("408 with a JSON error"),
    "410": Kind("410 for ARG seconds (Azure: up to 70), then all is well", 70),
    "429": Kind("429 with Retry-After: ARG", 1),
    "500": Kind("500 with a JSON error"),
    "502": Kind("502 with a JSON error"),
    "503": Kind("503 with Retry-After: ARG", 1),
    "504": Kind("504 with a JSON error"),
    "html": Kind("200 with the HTML page of a proxy"),
    "empty": Kind("200 with an empty body"),
    "not-json": Kind("200 with a body that is not JSON"),
    "truncated": Kind("200 with the first half of the document, well framed"),
    "redirect": Kind("302 to another path of this service"),
    "gzip": Kind("200, gzip encoded though nobody asked, with ARG MiB of blanks behind the document", 0),
    "huge": Kind("200 with ARG MiB of blanks behind the document", 5),
    "endless": Kind("200 without a length, and blanks until the client leaves"),
    "deep": Kind("200 with lists nested 100,000 deep"),
    "nan": Kind("200 with NaN as its number"),
    "surrogate": Kind("200 with a lone surrogate in every Description"),
    "duplicate-keys": Kind("200 with every key of the document twice"),
    "bom": Kind("200 with the true document behind a byte order mark: valid"),
    "drip": Kind("the answer byte by byte, one each ARG seconds", 0.2),
    "reset": Kind("the connection is reset in the middle of the answer"),
    "half-close": Kind("half the announced length, then the sending side is closed"),
    "hang": Kind("no answer, for ARG seconds, then the connection is closed", 3600),
    "gap": Kind("no answer: every connection is reset as soon as it has asked"),
    "post-400": Kind("POST alone: 400, not approved", method="POST"),
    "post-500": Kind("POST alone: 500, not approved", method="POST"),
    "post-hang": Kind("POST alone: no answer for ARG seconds, not approved", 3600, method="POST"),
    "post-reset": Kind("POST alone: approved, but the answer is lost in a reset", method="POST"),
}

HANGING = frozenset({"hang", "post-hang"})


class Fault(Struct, frozen=True):
    """One fault in force from `start` to `end` (seconds since it was set), for `count` answers more."""

    name: str
    where: str = "events"
    argument: float = 0.0
    count: int | None = None
    start: float = 0.0
    end: float = math.inf

    def applies(self, where: str, method: str, age: float) -> bool:
        """True if a request there, `age` seconds after the fault was set, fails by it."""
        if self.where not in (where, "all") or self.count == 0 or not self.start <= age < self.end:
            return False
        return KINDS[self.name].method in ("", method)


def parse(spec: str) -> Fault:
    """The fault written as `spec`; raises FaultError if there is no such one."""
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise FaultError(f"{spec!r}: expected [events/|instance/|all/]NAME[:ARG][*COUNT][@START-END]")
    name, where = match["name"], match["where"] or "events"
    kind = KINDS.get(name)
    if kind is None:
        raise FaultError(unknown_word("fault", name, KINDS))
    if where not in _SCOPES:
        raise FaultError(f"{spec!r}: {unknown_word('place', where, sorted(_SCOPES))}")
    try:
        start, end = (_number(match[side]) if match[side] else math.inf for side in ("start", "end"))
    except ValueError:
        raise FaultError(f"{spec!r}: expected times such as 10s or 2m behind the @") from None
    start = 0.0 if match["start"] is None else start
    if end <= start:
        raise FaultError(f"{spec!r}: ends before it begins")
    argument = _argument(spec, kind, match["arg"])
    if name == "410":
        end = min(end, start + argument)
    count = int(match["count"]) if match["count"] else (1 if name == "slow-first" else None)
    return Fault(name, where, argument, count, start, end)


def _argument(spec: str, kind: Kind, text: str | None) -> float:
    if text is None:
        return kind.argument or 0.0
    if kind.argument is None:
        raise FaultError(f"{spec!r}: takes no argument")
    try:
        argument = _number(text)
    except ValueError:
        argument = math.nan
    if not 0 <= argument <= 86400:  # noqa: PLR2004  # a day: no fault of a test or a rehearsal is longer
        raise FaultError(f"{spec!r}: expected a number from 0 to 86400 behind the colon, or a duration such as 500ms")
    return argument


def _number(text: str) -> float:
    """A bare number, or the seconds of a duration: `0.5`, `5s`, `500ms`. Raises ValueError."""
    return float(text.removesuffix("s")) if _SECONDS.fullmatch(text) else parse_duration(text)


class Faults:
    """The faults in force, for many threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = 0.0
        self._faults: list[Fault] = []

    def set(self, specs: Iterable[str], now: float) -> None:
        """Replace all faults by these, at `now` in seconds; raises FaultError, and nothing changes, if one is none."""
        faults = [parse(spec) for spec in specs]
        with self._lock:
            self._faults, self._since = faults, now

    def take(self, where: str, method: str, now: float) -> list[Fault]:
        """The faults that this request fails by: all the delays in force, and the first of the others."""
        taken: list[Fault] = []
        with self._lock:
            for index, fault in enumerate(self._faults):
                if not fault.applies(where, method, now - self._since):
                    continue
                if not is_delay(fault) and any(not is_delay(other) for other in taken):
                    continue
                taken.append(fault)
                if fault.count is not None:
                    self._faults[index] = replace(fault, count=fault.count - 1)
        return taken


def is_delay(fault: Fault) -> bool:
    """True for a fault that only delays the response."""
    return fault.name in ("slow", "slow-first")


def apply_fault(fault: Fault, response: Response) -> Response:
    """The response with the fault; those of the connection itself leave it as it is."""
    name = fault.name.removeprefix("post-")
    if name.isdecimal():
        refusal = as_json(int(name), {"error": f"simulated {name}"})
        if name not in ("429", "503"):
            return refusal
        return refusal._replace(headers=(*refusal.headers, ("Retry-After", f"{fault.argument:g}")))
    body = response.body
    padding = b" " * int(fault.argument * _MIB) if name in ("gzip", "huge") else b""
    if name == "redirect":
        return Response(302, b"", (("Location", "/metadata/elsewhere"),))
    if name == "html":
        return Response(
            200, b"<!DOCTYPE html><html><body>Sign in to the proxy</body></html>", (("Content-Type", "text/html"),)
        )
    if name == "gzip":
        return response._replace(
            body=gzip.compress(body + padding, 6), headers=(*response.headers, ("Content-Encoding", "gzip"))
        )
    bodies: Mapping[str, Callable[[], bytes]] = {
        "empty": lambda: b"",
        "not-json": lambda: b"no json here",
        "truncated": lambda: body[: len(body) // 2],
        "huge": lambda: body + padding,
        "deep": lambda: b'{"DocumentIncarnation":1,"Events":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "nan": lambda: json.dumps({**_object(body), "DocumentIncarnation": math.nan}).encode(),
        "surrogate": lambda: _with_surrogate(body),
        "duplicate-keys": lambda: b'{"DocumentIncarnation":0,"Events":[],' + body.lstrip()[1:],
        "bom": lambda: b"\xef\xbb\xbf" + body,
    }
    return response._replace(body=bodies[name]()) if name in bodies else response


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _with_surrogate(body: bytes) -> bytes:
    document = _object(body)
    events = document.get("Events", [])
    broken = [{**event, "Description": "\ud800"} for event in events if isinstance(event, dict)]
    return json.dumps({**document, "Events": broken, "Note": "\ud800"}).encode()
