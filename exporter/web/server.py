"""The scrape endpoint: metrics, page, status and health (`responses.ROUTES`), on an asyncio loop on its own thread.

Why not an existing server: the client library's `start_http_server` keeps one thread per idle connection indefinitely,
and with TLS one silent connection blocks every scrape (the handshake runs inside accept). None of waitress, cheroot,
uvicorn, hypercorn, aiohttp, and granian bounds the total time of a request's head. A limit on connections without
eviction lets slow clients lock out the scraper. Those servers lack the accept loop and the deadlines, not the parser;
h11 parses, does no I/O, and comes with httpx anyway.

The rules, all in `Limits`: a connection is closed if its client hasn't finished a request's head 5 s after it connected
(including the TLS handshake), hasn't read its response after 9 s, or sends no other request 9 s after the last
response. A new connection is never refused: if there are too many, one is evicted (`connection.choose_eviction`). A
page is rendered at most five times a second.

With a web-config file (`config`) every path needs the password, including `/-/healthy`, as with the exporter-toolkit.
The exception is `/-/gate`: a load balancer's health probe can't send one. A password sent to that path isn't checked,
because checking costs CPU time that unauthenticated clients must not spend. `rate_limit` counts only unauthenticated
clients: otherwise a flood would lock out the scraper and the probes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
import threading
from typing import Final

from exporter.daemon import in_thread
from exporter.log.protocol import Logger, NullLogger
from exporter.text.values import split_address
from exporter.web.auth import Passwords, TokenBucket
from exporter.web.config import WebConfig, tls_requirements
from exporter.web.config_file import WebConfigFile
from exporter.web.connection import Limits, WebConnection, WebRequest, choose_eviction, peer_of
from exporter.web.responses import (
    GATE,
    HEALTH,
    RETRY_AFTER,
    ROUTES,
    Application,
    PageCache,
    WebResponse,
    choose_accept,
    plain,
)
from exporter.web.stream import ClientStream, ClientTlsStream

OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
BACKLOG: Final = 512
METHODS: Final = (b"GET", b"HEAD")
OUT_OF_DESCRIPTORS_PAUSE_SECONDS: Final = 0.2
FAILED_ACCEPT_PAUSE_SECONDS: Final = 0.01
"""Pause after an accept that failed for another reason: the loop must not spin."""
MAX_CONNECTIONS_ON_WINDOWS: Final = 256
"""Half of the sockets that select() can watch there."""
RESERVED_PORTS: Final = "Windows reserves it (netsh int ipv4 show excludedportrange protocol=tcp)"
RELOAD_SECONDS: Final = 1.0
"""Interval of the check for changed web-config files."""
OPEN_TO_ALL: Final = WebConfigFile()
CHALLENGE: Final = ("WWW-Authenticate", 'Basic realm="metrics", charset="UTF-8"')


def max_connections(wanted: int) -> int:
    """Return how many connections may be open: `wanted`, or half of the process's descriptors if that is less."""
    if sys.platform == "win32":
        return min(wanted, MAX_CONNECTIONS_ON_WINDOWS)
    import resource  # noqa: PLC0415  # does not exist on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 2))


class WebServer:
    """The server of an `Application`. `address` is the bound (host, port), set once `start` has returned."""

    address: tuple[str, int]
    _loop: asyncio.SelectorEventLoop
    _listener: socket.socket

    def __init__(
        self,
        listen_address: str,
        application: Application,
        *,
        web_config: WebConfig | None = None,
        limits: Limits | None = None,
        log: Logger | None = None,
    ) -> None:
        """Take `listen_address` as in the settings. Raises `config.types.InvalidValue` if it is invalid."""
        self.host, self.port = split_address(listen_address)
        self._config = web_config
        self._limits = limits or Limits()
        self._log = log or NullLogger()
        self.pages = PageCache(application, self._log, self._limits.fresh_seconds, self._limits.render_seconds)
        self._max_connections = max_connections(self._limits.connections)
        self._connections: dict[asyncio.Task[None], WebConnection] = {}
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)
        self._passwords = Passwords()
        self._bucket: TokenBucket | None = None

    @property
    def _settings(self) -> WebConfigFile:
        return self._config.current if self._config is not None else OPEN_TO_ALL

    def start(self) -> None:
        """Bind at once, then serve on a thread. Raises OSError, with a readable text, if it can't bind the address."""
        self._listener = listen(self.host, self.port)
        self.address = self._listener.getsockname()[:2]
        # Not Windows' proactor loop: it can't report a waiting connection without accepting it.
        self._loop = asyncio.SelectorEventLoop()
        self._thread.start()

    def stop(self) -> None:
        """Close everything within a second, even if a page hangs. Only after `start`; a second call does nothing."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop ended between the two lines
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(self._limits.stop_seconds)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        background = [asyncio.create_task(self._accept_forever()), asyncio.create_task(self._reload_forever())]
        await self._stopping.wait()
        with self._listener:
            tasks = [*background, *self._connections]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=self._limits.stop_seconds / 2)

    async def _accept_forever(self) -> None:
        readable = asyncio.Event()
        while True:
            # Not `sock_accept`: a cancellation at the wrong moment loses a connection that it has already accepted.
            self._loop.add_reader(self._listener, readable.set)
            try:
                await readable.wait()
            finally:
                self._loop.remove_reader(self._listener)
            readable.clear()
            # Evict before accepting, so that a descriptor is free.
            while len(self._connections) >= self._max_connections:
                await self._evict_one()
            try:
                accepted, remote = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                await self._after_failed_accept(error)
                continue
            self._start_connection(accepted, peer_of(str(remote[0])))

    async def _after_failed_accept(self, error: OSError) -> None:
        if error.errno not in OUT_OF_DESCRIPTORS:
            await asyncio.sleep(FAILED_ACCEPT_PAUSE_SECONDS)  # the client left before it was accepted
            return
        count = len(self._connections)
        self._log.failing("web.file_descriptors", "web.out_of_file_descriptors", open=count, error=error.strerror)
        if self._connections:
            await self._evict_one()
        else:
            await asyncio.sleep(OUT_OF_DESCRIPTORS_PAUSE_SECONDS)

    async def _evict_one(self) -> None:
        """Close the connection whose client loses least, and return when its descriptor is free."""
        evicted = choose_eviction(self._connections.values(), self._loop.time())
        task = next(task for task, connection in self._connections.items() if connection is evicted)
        task.cancel()
        await asyncio.wait([task])

    def _start_connection(self, accepted: socket.socket, peer: str) -> None:
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls, sans = self._settings.tls, self._settings.client_allowed_sans
        stream = ClientStream(accepted) if tls is None else ClientTlsStream(accepted, tls, sans)
        connection = WebConnection(accepted, peer, stream, self._limits, self._respond)
        task = asyncio.create_task(connection.run())
        self._connections[task] = connection
        task.add_done_callback(self._end_connection)

    def _end_connection(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task).close()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.failing("web.connection", "web.connection_failed", level="error", error=repr(error))

    async def _reload_forever(self) -> None:
        while self._config is not None:
            await asyncio.sleep(RELOAD_SECONDS)
            before = self._settings
            try:
                await in_thread(self._config.refresh, "web-config")
            except Exception as error:  # the loop must survive any file-system error
                self._log.failing("web.config", "web.config_unseen", level="error", error=type(error).__name__)
            if self._settings is not before and tls_requirements(self._settings) != tls_requirements(before):
                for task in self._connections:  # they were admitted under the old requirements
                    task.cancel()

    async def _respond(self, request: WebRequest) -> WebResponse:
        settings = self._settings
        return (await self._route(request, settings)).with_headers(settings.headers)

    async def _route(self, request: WebRequest, settings: WebConfigFile) -> WebResponse:
        if request.path != GATE and (refusal := await self._refuse_stranger(request, settings)) is not None:
            return refusal
        if request.path not in ROUTES:
            return plain(404, f"Not found. Available paths: {', '.join(sorted(ROUTES))}.")
        if request.method not in METHODS:
            return plain(405, "Only GET and HEAD are served.", (("Allow", "GET, HEAD"),))
        return await self.pages.get(request.path, choose_accept(request.accept))

    async def _refuse_stranger(self, request: WebRequest, settings: WebConfigFile) -> WebResponse | None:
        """Return the refusal of a client that isn't admitted or exceeds the rate limit; None to serve it."""
        verdict = None
        if settings.users:
            verdict = await self._passwords.judge(settings.users, request.authorization, request.peer)
        known = verdict == "admitted" or (verdict is None and request.certified)
        if not known and request.path not in HEALTH and not self._within_rate(settings):
            return plain(429, "Too many requests.")
        if verdict == "busy":
            return plain(503, "Too many passwords are being checked. Retry later.", (RETRY_AFTER,))
        if verdict == "refused":
            return plain(401, "Unauthorized", (CHALLENGE,))
        return None

    def _within_rate(self, settings: WebConfigFile) -> bool:
        rate = settings.rate_limit
        if rate is None:
            return True
        if self._bucket is None or self._bucket.rate != rate:
            self._bucket = TokenBucket(rate)
        return self._bucket.take()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. "" and "::" mean IPv4 and IPv6 if supported. Raises OSError with a readable text."""
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if host in ("", "::") and socket.has_dualstack_ipv6():
            return _bound(socket.AF_INET6, ("::", port), dual=True)
        host = host or "0.0.0.0"  # noqa: S104  # ":port" means all interfaces
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(candidates, key=lambda entry: entry[0] != socket.AF_INET)
        return _bound(family, address, dual=False)
    except OSError as error:
        hint = "; another program uses this port" if is_taken(error) else ""
        hint += f", or {RESERVED_PORTS}" if hint and error.errno == errno.EACCES else ""
        raise OSError(error.errno, f"cannot listen on {shown}: {error.strerror}{hint}") from error


def is_taken(error: OSError, platform: str = sys.platform) -> bool:
    """Return whether a failed bind may mean that another program uses the port.

    Windows returns EACCES for a port that another program uses exclusively, and for a reserved one [Winsock, "Using
    SO_REUSEADDR and SO_EXCLUSIVEADDRUSE"]. No port there is limited to administrators.
    """
    return error.errno == errno.EADDRINUSE or (platform == "win32" and error.errno == errno.EACCES)


def _bound(family: int, address: tuple[object, ...], *, dual: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform == "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if dual:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
