"""The responses: each page is rendered once per published status, and otherwise at most five times a second.

The number of clients doesn't matter: many scrapes cost bytes, not rendering. A page is rendered on a short-lived
thread, at most one for each page, so that an application that hangs doesn't stop the loop that closes hostile
connections.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import time
import traceback
from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.daemon import in_thread
from exporter.log.protocol import Logger

Accept = Literal["text", "openmetrics"]
"""The two formats of `/metrics`: Prometheus' text format 0.0.4, and OpenMetrics 1.0.0."""

GATE: Final = "/-/gate"
"""The path that load balancers probe. It needs no password, and none is checked."""
STATUS: Final = "/api/v1/status"
ROUTES: Final = frozenset({"/", "/metrics", STATUS, "/-/healthy", "/-/ready", GATE})
HEALTH: Final = frozenset(path for path in ROUTES if path.startswith("/-/"))
"""The paths of probes, which are exempt from `rate_limit`."""
SMALLEST_GZIPPED: Final = 512
"""Bytes: compressing a smaller body saves next to nothing."""
NO_STORE: Final = ("Cache-Control", "no-store")
"""The header of each response of `GATE`: a proxy between a prober and the VM must not cache it."""
RETRY_AFTER: Final = ("Retry-After", "5")
"""The header, in seconds, of each 503 that the server itself sends: for a slow page or too many passwords."""

T = TypeVar("T")


class WebResponse(Struct, frozen=True):
    """A response. `content_type` includes the charset; `headers` are further headers, without Content-Length."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    gzipped: bytes | None = None
    """The body for clients that accept gzip; None if it would not be smaller. The server sets it."""

    def with_headers(self, headers: tuple[tuple[str, str], ...]) -> WebResponse:
        """Return the response with these headers, which replace those of the same name."""
        if not headers:
            return self
        names = {name.lower() for name, _ in headers}
        own = tuple(header for header in self.headers if header[0].lower() not in names)
        return replace(self, headers=own + headers)


class Application(Protocol):
    """The server's view of the agent: an object that renders pages."""

    def respond(self, path: str, accept: Accept) -> WebResponse:
        """Render a page. Called on a thread of the server, as rarely as `PageCache` allows per (path, accept).

        `path` is one of `ROUTES`; `accept` matters only for `/metrics` and is "text" for the others. An exception
        becomes a 500 without details (200 at `GATE`), and is logged once until the page works again.
        """


def plain(status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> WebResponse:
    """Return a plain-text response of one line."""
    return WebResponse(status, "text/plain; charset=utf-8", (text + "\n").encode(), headers)


FAILED_OPEN: Final = plain(200, "Open: the agent could not determine what is planned.", (NO_STORE,))
"""The response of `GATE` if the application fails: a fault of the agent must not take a VM out of service."""


def choose_accept(header: str) -> Accept:
    """Return the format that an Accept header prefers (RFC 9110, 12.5.1); OpenMetrics 1.0.0 wins a tie with text/plain.

    Prometheus lists several versions with decreasing q-values. An invalid header means "text".
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
    """Return whether this Accept-Encoding accepts gzip (or `*`) with a q-value above 0."""
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


class PageCache(Struct):
    """The application's pages, each at most `fresh_seconds` old and none older than the last `renew`.

    Used only on the server's loop, except for `renew`.
    """

    application: Application
    log: Logger
    fresh_seconds: float = 0.2
    render_seconds: float = 3.0
    clock: Callable[[], float] = time.monotonic
    _version: int = 0
    _rendered: dict[tuple[str, Accept], tuple[int, float, WebResponse]] = field(default_factory=dict)
    _rendering: dict[tuple[str, Accept], tuple[int, asyncio.Future[WebResponse]]] = field(default_factory=dict)

    def renew(self) -> None:
        """Render each page anew for requests from now on. Only one thread may call it; which one doesn't matter."""
        self._version += 1

    async def get(self, path: str, accept: Accept) -> WebResponse:
        """Return the page, possibly one just rendered for another client; 503 if the application takes too long."""
        key, wanted = (path, accept if path == "/metrics" else "text"), self._version
        cached = self._rendered.get(key)
        if cached is not None and cached[0] >= wanted and self.clock() - cached[1] < self.fresh_seconds:
            return cached[2]
        try:
            # Not `wait_for`: in Python 3.11 it can swallow a cancellation.
            async with asyncio.timeout(self.render_seconds):
                while key in self._rendering and self._rendering[key][0] < wanted:
                    await asyncio.wait((self._rendering[key][1],))
                if key not in self._rendering:
                    self._start(key)
                return await asyncio.shield(self._rendering[key][1])
        except TimeoutError:
            late = plain(503, "This page could not be produced in time.", (RETRY_AFTER,))
            return FAILED_OPEN if path == GATE else late
        except RuntimeError as error:  # the system cannot start a thread
            return self._failed(path, error)

    def _start(self, key: tuple[str, Accept]) -> None:
        version, rendering = self._version, in_thread(lambda: self._render(*key), f"web{key[0]}")

        def store(done: asyncio.Future[WebResponse]) -> None:
            del self._rendering[key]
            if not done.cancelled() and done.exception() is None:
                self._rendered[key] = (version, self.clock(), done.result())

        self._rendering[key] = (version, rendering)
        rendering.add_done_callback(store)

    def _render(self, path: str, accept: Accept) -> WebResponse:
        try:
            response = self.application.respond(path, accept)
        except Exception as error:  # the scraper always gets a response; the reason is logged once
            return self._failed(path, error)
        self.log.recovered(f"web{path}", "web.page_works_again", path=path)
        if len(response.body) < SMALLEST_GZIPPED:
            return response
        return replace(response, gzipped=gzip.compress(response.body, 5, mtime=0))

    def _failed(self, path: str, error: Exception) -> WebResponse:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
        self.log.failing(f"web{path}", "web.page_failed", level="error", path=path, error=repr(error), where=place)
        return FAILED_OPEN if path == GATE else plain(500, "This page could not be produced; see the agent's log.")
