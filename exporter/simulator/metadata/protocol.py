"""The strict half of the metadata service, pure: which requests it refuses, with which words, and what a body asks.

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


class Answer(NamedTuple):
    """A whole HTTP answer but for the headers that framing needs."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (_JSON,)


class Request(NamedTuple):
    """What a client sent. Header names are in lower case; one that came twice has its values joined by a comma."""

    time: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class Refusal(Exception):
    """The request is answered with this instead."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status} {answer.body.decode()}")
        self.answer = answer


def as_json(status: int, document: object) -> Answer:
    """`document` as a JSON answer."""
    return Answer(status, json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())


def refuse(status: int, reason: str, **more: object) -> Refusal:
    """A refusal in the shape of the metadata service's own: an `error` text, and fields of its own."""
    return Refusal(as_json(status, {"error": reason, **more}))


def checked_api_version(request: Request) -> str:
    """The request's api-version once all that is the same for every request holds, else Refusal.

    Of method, path, headers and query in this order the first that is wrong is answered.
    """
    address = urlsplit(request.path)
    path = address.path.rstrip("/")
    allowed = _allowed(path)
    if request.method not in allowed:
        answer = refuse(405, f"Method not allowed. The method is not one of {', '.join(allowed)}").answer
        raise Refusal(answer._replace(headers=(*answer.headers, ("Allow", ", ".join(allowed)))))
    if "x-forwarded-for" in request.headers:
        raise refuse(400, f"Bad request. A request must not be forwarded. {_MORE}")
    if request.headers.get("metadata", "").lower() != "true":
        raise refuse(400, f"Bad request. Required metadata header not specified. {_MORE}")
    versions: tuple[str, ...] = instance.API_VERSIONS
    if path == EVENTS_PATH:
        versions = platform.API_VERSIONS
    elif path != INSTANCE_PATH and not path.startswith(f"{INSTANCE_PATH}/"):
        raise refuse(404, "Not found")
    asked = parse_qs(address.query, keep_blank_values=True).get("api-version", [])
    newest = list(reversed(versions))
    if not asked:
        raise refuse(
            400, f"Bad request. api-version was not specified in the request. {_MORE}", **{"newest-versions": newest}
        )
    if len(asked) > 1 or asked[0] not in versions:
        raise refuse(
            400, f"Bad request. api-version is invalid or not supported. {_MORE}", **{"newest-versions": newest}
        )
    return asked[0]


def start_requests(body: bytes) -> Sequence[str]:
    """The EventIds that the body of a POST asks to start, at least one; else Refusal (400)."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise refuse(400, "Bad request. The body is not JSON") from error
    asked = document.get("StartRequests") if isinstance(document, dict) else None
    if not isinstance(asked, list) or not asked:
        raise refuse(400, 'Bad request. The body is not {"StartRequests": [{"EventId": "..."}]}')
    ids = [entry.get("EventId") if isinstance(entry, dict) else None for entry in asked]
    if not all(isinstance(event_id, str) and event_id for event_id in ids):
        raise refuse(400, "Bad request. Each of StartRequests needs its EventId")
    return [str(event_id) for event_id in ids]


def approved(body: bytes, approve: Callable[[Sequence[str]], bool]) -> Answer:
    """The answer to a POST: 200 if `approve` knows every id, and 400, nothing of it counting, if not."""
    if not approve(start_requests(body)):
        raise refuse(400, "Bad request. An EventId is not in the document")
    return Answer(200)


def described(request: Request, vm: Vm) -> Answer:
    """The answer below `/metadata/instance`: a branch as JSON, a leaf as text with `format=text`."""
    address = urlsplit(request.path)
    node: Any = instance.instance(vm)
    for part in address.path.rstrip("/").removeprefix(INSTANCE_PATH).split("/")[1:]:
        if not isinstance(node, dict) or part not in node:
            raise refuse(404, "Not found")
        node = node[part]
    text = parse_qs(address.query).get("format", ["json"])[-1] == "text"
    if text == isinstance(node, dict | list):
        raise refuse(400, f"Bad request. A leaf is text and a branch is JSON. {_MORE}")
    if text:
        return Answer(200, str(node).encode(), (("Content-Type", "text/plain; charset=utf-8"),))
    return as_json(200, node)


def _allowed(path: str) -> tuple[str, ...]:
    return ("GET",) if path == INSTANCE_PATH or path.startswith(f"{INSTANCE_PATH}/") else ("GET", "POST")
