"""The HTTP of the metadata service, pure: which requests it refuses, in which words, and what a POST asks for.

Facts: Microsoft's documentation of Scheduled Events [Endpoint discovery, Headers, Start an event] and of the instance
metadata service, whose wording of the refusals is followed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from exporter.simulator.metadata import instance, platform
from exporter.simulator.metadata.story import Vm

EVENTS_PATH = "/metadata/scheduledevents"
INSTANCE_PATH = "/metadata/instance"
MAX_BODY = 64 * 1024
_JSON = ("Content-Type", "application/json; charset=utf-8")
_MORE = "For more information refer to aka.ms/azureimds"


class Response(NamedTuple):
    """A whole HTTP response but for the headers that framing needs."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (_JSON,)


class Request(NamedTuple):
    """What a client sent, at `time` (seconds since the epoch).

    Header names are in lower case; one that came twice has its values joined by a comma.
    """

    time: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class Refusal(Exception):
    """The request is refused with `response`."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"{response.status} {response.body.decode()}")
        self.response = response


def as_json(status: int, document: object) -> Response:
    """`document` as a JSON response."""
    return Response(status, json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())


def refusal(status: int, reason: str, **fields: object) -> Refusal:
    """A refusal in the shape of the metadata service's own: an `error` text, and further fields."""
    return Refusal(as_json(status, {"error": reason, **fields}))


def check_request(request: Request) -> None:
    """Raises Refusal for the first that is wrong of method, headers, path and query."""
    address = urlsplit(request.path)
    path = address.path.rstrip("/")
    allowed = _allowed(path)
    if request.method not in allowed:
        response = refusal(405, f"Method not allowed. The method is not one of {', '.join(allowed)}").response
        raise Refusal(response._replace(headers=(*response.headers, ("Allow", ", ".join(allowed)))))
    if "x-forwarded-for" in request.headers:
        raise refusal(400, f"Bad request. A request must not be forwarded. {_MORE}")
    if request.headers.get("metadata", "").lower() != "true":
        raise refusal(400, f"Bad request. Required metadata header not specified. {_MORE}")
    versions: tuple[str, ...] = instance.API_VERSIONS
    if path == EVENTS_PATH:
        versions = platform.API_VERSIONS
    elif path != INSTANCE_PATH and not path.startswith(f"{INSTANCE_PATH}/"):
        raise refusal(404, "Not found")
    given = parse_qs(address.query, keep_blank_values=True).get("api-version", [])
    fault = "" if len(given) == 1 and given[0] in versions else "is invalid or not supported"
    if not given:
        fault = "was not specified in the request"
    if fault:
        newest = {"newest-versions": list(reversed(versions))}
        raise refusal(400, f"Bad request. api-version {fault}. {_MORE}", **newest)


def start_requests(body: bytes) -> Sequence[str]:
    """The EventIds that the body of a POST asks to start, at least one; else raises Refusal (400)."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise refusal(400, "Bad request. The body is not JSON") from error
    requests = document.get("StartRequests") if isinstance(document, dict) else None
    if not isinstance(requests, list) or not requests:
        raise refusal(400, 'Bad request. The body is not {"StartRequests": [{"EventId": "..."}]}')
    ids = [entry.get("EventId") if isinstance(entry, dict) else None for entry in requests]
    if not all(isinstance(event_id, str) and event_id for event_id in ids):
        raise refusal(400, "Bad request. Each of StartRequests needs its EventId")
    return [str(event_id) for event_id in ids]


def approval_response(body: bytes, approve: Callable[[Sequence[str]], bool]) -> Response:
    """The response to a POST: 200 if `approve` takes the ids; raises Refusal (400), nothing of it counting, if not."""
    if not approve(start_requests(body)):
        raise refusal(400, "Bad request. An EventId is not in the document")
    return Response(200)


def instance_response(request: Request, vm: Vm) -> Response:
    """The response below `/metadata/instance`: a branch as JSON, a leaf as text with `format=text`. Raises Refusal."""
    address = urlsplit(request.path)
    node: Any = instance.instance(vm)
    for part in address.path.rstrip("/").removeprefix(INSTANCE_PATH).split("/")[1:]:
        if not isinstance(node, dict) or part not in node:
            raise refusal(404, "Not found")
        node = node[part]
    text = parse_qs(address.query).get("format", ["json"])[-1] == "text"
    if text == isinstance(node, dict | list):
        raise refusal(400, f"Bad request. A leaf is text and a branch is JSON. {_MORE}")
    if text:
        return Response(200, str(node).encode(), (("Content-Type", "text/plain; charset=utf-8"),))
    return as_json(200, node)


def _allowed(path: str) -> tuple[str, ...]:
    return ("GET",) if path == INSTANCE_PATH or path.startswith(f"{INSTANCE_PATH}/") else ("GET", "POST")
