"""What is answered: the application's pages, rendered at most five times a second each, whoever asks and however often.

A scrape storm then costs bytes, not rendering. Rendering runs on a short-lived thread of its own, so that an
application that hangs leaves the loop that closes hostile connections alone; there is never more than one at work per
page, hence never more threads than pages.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol, TypeVar

from exporter.log.protocol import Logger

Accept = Literal["text", "openmetrics"]
"""The two answers `/metrics` has: Prometheus' text format 0.0.4, and OpenMetrics 1.0.0."""

ROUTES: Final = frozenset({"/", "/metrics", "/-/healthy", "/-/ready"})
HEALTH: Final = frozenset(path for path in ROUTES if path.startswith("/-/"))
"""What probes ask for: `rate_limit` does not count it."""
NOT_WORTH_PACKING: Final = 512
"""Bytes: under this a gzip body is not noticeably smaller."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Response:
    """One page. `content_type` includes its charset; `headers` are further ones, without Content-Length."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Application(Protocol):
    """What has something to show. Called on a thread of the server's, at most five times a second per (path, accept).

    `path` is one of `ROUTES`; `accept` matters for `/metrics` alone and is "text" for the others. An exception becomes
    a 500 that tells nothing; it is logged once until the page works again.
    """

    def respond(self, path: str, accept: Accept) -> Response: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A response as it goes out: `packed` is the gzip body, or None where packing gains nothing."""

    response: Response
    packed: bytes | None = None

    def with_headers(self, headers: tuple[tuple[str, str], ...]) -> Answer:
        """The same answer with these headers, which replace the response's own of the same name."""
        if not headers:
            return self
        names = {name.lower() for name, _ in headers}
        own = tuple(header for header in self.response.headers if header[0].lower() not in names)
        return replace(self, response=replace(self.response, headers=own + headers))


def plain(status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """A one-sentence answer of the server's own."""
    return Answer(Response(status, "text/plain; charset=utf-8", (text + "\n").encode(), headers))


def choose_accept(header: str) -> Accept:
    """OpenMetrics 1.0.0 if the header likes it at least as well as text/plain; whatever else it says, text.

    Prometheus names several versions with falling q-values; a header that can't be read is no reason to refuse.
    """
    best = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for entry in header.split(","):
        kind, _, rest = entry.partition(";")
        kind = kind.strip().lower()
        parameters = dict(_parameter(part) for part in rest.split(";"))
        if kind not in best or (kind != "text/plain" and parameters.get("version", "1.0.0") != "1.0.0"):
            continue
        best[kind] = max(best[kind], _quality(parameters.get("q", "1")))
    wanted = best["application/openmetrics-text"]
    return "openmetrics" if wanted > 0 and wanted >= best["text/plain"] else "text"


def takes_gzip(header: str) -> bool:
    """True if this Accept-Encoding names gzip (or anything) with a q-value above 0."""
    for entry in header.lower().split(","):
        coding, _, rest = entry.partition(";")
        if coding.strip() in ("gzip", "*"):
            return _quality(dict(_parameter(part) for part in rest.split(";")).get("q", "1")) > 0
    return False


def _parameter(part: str) -> tuple[str, str]:
    name, _, value = part.partition("=")
    return name.strip().lower(), value.strip().strip('"').lower()


def _quality(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value <= 1 else 0.0  # also refuses nan, which compares false


def in_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run a blocking call on a daemon thread of its own. Unlike an executor's, it never holds up the process's end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # a T whenever there is no error

    def run() -> None:
        result, failure = None, None
        try:
            result = call()
        except Exception as error:  # carried to whoever awaits the future
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            return  # the server was stopped meanwhile: nobody is waiting

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


@dataclass(slots=True)
class Answers:
    """The application's pages, each at most `fresh_seconds` old. Used on the server's loop only."""

    application: Application
    log: Logger
    fresh_seconds: float = 0.2
    patience_seconds: float = 3.0
    clock: Callable[[], float] = time.monotonic
    failures: int = 0
    _ready: dict[tuple[str, Accept], tuple[float, Answer]] = field(default_factory=dict)
    _rendering: dict[tuple[str, Accept], asyncio.Future[Answer]] = field(default_factory=dict)

    async def get(self, path: str, accept: Accept) -> Answer:
        """The page, perhaps rendered for somebody else a moment ago; 503 if the application takes too long."""
        key = (path, accept if path == "/metrics" else "text")
        known = self._ready.get(key)
        if known is not None and self.clock() - known[0] < self.fresh_seconds:
            return known[1]
        if key not in self._rendering:
            self._rendering[key] = in_thread(lambda: self._render(*key), f"web{path}")
            self._rendering[key].add_done_callback(lambda done: self._keep(key, done))
        try:
            # Not `wait_for`: cancelled at the wrong moment, it goes on (in Python 3.11).
            async with asyncio.timeout(self.patience_seconds):
                return await asyncio.shield(self._rendering[key])
        except TimeoutError:
            return plain(503, "This page could not be produced in time.", (("Retry-After", "5"),))

    def _keep(self, key: tuple[str, Accept], done: asyncio.Future[Answer]) -> None:
        del self._rendering[key]
        if not done.cancelled() and done.exception() is None:
            self._ready[key] = (self.clock(), done.result())

    def _render(self, path: str, accept: Accept) -> Answer:
        try:
            response = self.application.respond(path, accept)
        except Exception as error:  # whatever a page trips over, the scraper gets an answer and the log says why, once
            self.failures += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            self.log.failing(f"web{path}", "web.page_failed", level="error", path=path, error=repr(error), where=place)
            return plain(500, "This page could not be produced; the agent's log says why.")
        self.log.recovered(f"web{path}", "web.page_works_again", path=path)
        worth_it = len(response.body) >= NOT_WORTH_PACKING
        return Answer(response, gzip.compress(response.body, 5, mtime=0) if worth_it else None)
