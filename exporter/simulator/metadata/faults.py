"""The faults of the simulated metadata service, by name (`simulator.faults`). They can change while it runs.

WHERE is `events` (the default), `instance` or `all`.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from exporter.simulator.faults import EVERYWHERE, Fault, FaultKind
from exporter.simulator.metadata.protocol import SimulatedResponse, as_json

PLACES = ("events", "instance", EVERYWHERE)
_MIB = 1024 * 1024

KINDS: Mapping[str, FaultKind] = {
    "slow": FaultKind("every response takes ARG seconds (Azure's first: up to two minutes)", 2),
    **{
        status: FaultKind(f"{status} with a JSON error") for status in ("400", "404", "408", "410", "500", "502", "504")
    },
    **{status: FaultKind(f"{status}, as if the Metadata Security Protocol refused") for status in ("401", "403")},
    "429": FaultKind("429 with Retry-After: ARG", 1),
    "503": FaultKind("503 with Retry-After: ARG", 1),
    "html": FaultKind("200 with the HTML page of a proxy"),
    "empty": FaultKind("200 with an empty body"),
    "not-json": FaultKind("200 with a body that is not JSON"),
    "truncated": FaultKind("200 with the first half of the document and a matching Content-Length"),
    "redirect": FaultKind("302 to another path of this service"),
    "gzip": FaultKind("200 with unrequested gzip encoding and ARG MiB of blanks after the document", 0),
    "huge": FaultKind("200 with ARG MiB of blanks after the document", 5),
    "endless": FaultKind("200 without a length, and blanks until the client disconnects"),
    "deep": FaultKind("200 with lists nested 100,000 deep"),
    "nan": FaultKind("200 with NaN as DocumentIncarnation"),
    "surrogate": FaultKind("200 with a lone surrogate in every Description"),
    "duplicate-keys": FaultKind("200 with every key of the document twice"),
    "bom": FaultKind("200 with the valid document after a byte order mark"),
    "drip": FaultKind("the response byte by byte, one every ARG seconds", 0.2),
    "reset": FaultKind("the connection is reset in the middle of the response"),
    "half-close": FaultKind("half of the announced length, then the sending side is closed"),
    "hang": FaultKind("no response for ARG seconds, then the connection is closed", 3600),
    "gap": FaultKind("no response: every connection is reset after its request"),
    "post-400": FaultKind("only POST: 400, not approved"),
    "post-500": FaultKind("only POST: 500, not approved"),
    "post-hang": FaultKind("only POST: no response for ARG seconds, not approved", 3600),
    "post-reset": FaultKind("only POST: approved, but the response is lost in a reset"),
}

HANGING = frozenset({"hang", "post-hang"})


def apply_fault(fault: Fault, response: SimulatedResponse) -> SimulatedResponse:
    """Return the response with the fault; unchanged for faults of the connection."""
    name = fault.name.removeprefix("post-")
    if name.isdecimal():
        headers = (("Retry-After", f"{fault.argument:g}"),) if name in ("429", "503") else ()
        return as_json(int(name), {"error": f"simulated {name}"}, headers)
    body = response.body
    padding = b" " * int(fault.argument * _MIB) if name in ("gzip", "huge") else b""
    if name == "redirect":
        return SimulatedResponse(302, b"", (("Location", "/metadata/elsewhere"),))
    if name == "html":
        return SimulatedResponse(
            200, b"<!DOCTYPE html><html><body>Sign in to the proxy</body></html>", (("Content-Type", "text/html"),)
        )
    if name == "gzip":
        encoded = (*response.headers, ("Content-Encoding", "gzip"))
        return response._replace(body=gzip.compress(body + padding, 6), headers=encoded)
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
    broken = [{**event, "Description": "\ud800"} for event in document.get("Events", []) if isinstance(event, dict)]
    return json.dumps({**document, "Events": broken, "Note": "\ud800"}).encode()
