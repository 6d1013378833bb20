"""The scrape endpoint: metrics, page, status and health (`responses.ROUTES`), on an asyncio loop on its own thread.

Why a server of our own on h11, and not a ready one. The client library's `start_http_server` keeps a thread per idle
connection for ever, and with TLS one silent connection blocks every scrape (the handshake runs inside accept). Of the
others (waitress, cheroot, uvicorn, hypercorn, aiohttp, granian) none bounds the total time of a request's head, and a
cap on connections without eviction turns slow clients into an outage: the cap is theirs and the refusal is ours. What
they lack is the accept loop and the clocks, not the parsing; h11 parses, is sans-I/O and comes with httpx anyway.

The rules, all in `Limits`: a connection is closed when its client has not finished a request's head 5 s after it
connected (TLS handshake included), has not read its response after 9 s, or sends no other request 9 s after the last
response. A new connection is never refused: where there are too many, one is evicted for it
(`connection.choose_eviction`). A page is rendered at most five times a second.

With a web-config file (`config`) every path wants the password, `/-/healthy` too, as with the exporter-toolkit; but for
`/-/gate`, since the health probe of a load balancer can't send one. For that path no password is looked at, also not
one that is sent: checking it would cost what strangers may not spend. `rate_limit` counts strangers alone: else a flood
that uses it up would shut out the scraper and the probes.
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
from exporter.web.config import WebConfig, tls_demands
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
"""After an accept that failed for another reason: nothing may make the loop spin."""
MAX_CONNECTIONS_ON_WINDOWS: Final = 256
"""Half of what select() watches there."""
RESERVED_PORTS: Final = "Windows reserves it (netsh int ipv4 show excludedportrange protocol=tcp)"
RELOAD_SECONDS: Final = 1.0
"""How often the files of the web config are looked at."""
OPEN_TO_ALL: Final = WebConfigFile()
CHALLENGE: Final = ("WWW-Authenticate", 'Basic realm="metrics", charset="UTF-8"')


def max_connections(wanted: int) -> int:
    """How many connections may be open: `wanted`, or half of the process's descriptors; the others are the agent's."""
    if sys.platform == "win32":
        return min(wanted, MAX_CONNECTIONS_ON_WINDOWS)
    import resource  # noqa: PLC0415  # not there on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 2))


class WebServer:
    """Serves an `Application`: its `pages`. `address` is the bound (host, port), known once `start` has returned."""

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
        """`listen_address` as in the settings; raises `config.types.InvalidValue` for what is none."""
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
        """Bind at once, then serve on a thread. Raises OSError, with a sentence, when the address can't be had."""
        self._listener = listen(self.host, self.port)
        self.address = self._listener.getsockname()[:2]
        # Not Windows' proactor: it can't report a waiting connection without accepting it.
        self._loop = asyncio.SelectorEventLoop()
        self._thread.start()

    def stop(self) -> None:
        """Close everything, within a second, also if a page hangs. Only after `start`; a second call does nothing."""
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
            # Not `sock_accept`: cancelled at the wrong moment, it loses a connection that it has already accepted.
            self._loop.add_reader(self._listener, readable.set)
            try:
                await readable.wait()
            finally:
                self._loop.remove_reader(self._listener)
            readable.clear()
            # Evicted before accepting, so that there is a descriptor to accept with.
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
        self._log.failing("web.room", "web.out_of_file_descriptors", open=count, error=error.strerror)
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
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._log.failing("web.connection", "web.connection_failed", level="error", error=repr(error))

    async def _reload_forever(self) -> None:
        while self._config is not None:
            await asyncio.sleep(RELOAD_SECONDS)
            before = self._settings
            try:
                await in_thread(self._config.refresh, "web-config")
            except Exception as error:  # the loop goes on, however a file system may fail
                self._log.failing("web.config", "web.config_unseen", level="error", error=type(error).__name__)
            if self._settings is not before and tls_demands(self._settings) != tls_demands(before):
                for task in self._connections:  # they were admitted by other demands
                    task.cancel()

    async def _respond(self, request: WebRequest) -> WebResponse:
        settings = self._settings
        return (await self._route(request, settings)).with_headers(settings.headers)

    async def _route(self, request: WebRequest, settings: WebConfigFile) -> WebResponse:
        if request.path != GATE and (refusal := await self._refuse_stranger(request, settings)) is not None:
            return refusal
        if request.path not in ROUTES:
            return plain(404, f"Not found. There are {', '.join(sorted(ROUTES))}.")
        if request.method not in METHODS:
            return plain(405, "Only GET and HEAD are served.", (("Allow", "GET, HEAD"),))
        return await self.pages.get(request.path, choose_accept(request.accept))

    async def _refuse_stranger(self, request: WebRequest, settings: WebConfigFile) -> WebResponse | None:
        """The refusal of who may not ask, or may not ask so often; None for all others."""
        verdict = None
        if settings.users:
            verdict = await self._passwords.judge(settings.users, request.authorization, request.peer)
        known = verdict == "admitted" or (verdict is None and request.certified)
        if not known and request.path not in HEALTH and not self._within_rate(settings):
            return plain(429, "Too many requests.")
        if verdict == "busy":
            return plain(503, "Too many passwords are being checked, come back later.", (RETRY_AFTER,))
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
    """A listening socket. "" and "::" take IPv4 and IPv6 where the system can. Raises OSError with a sentence."""
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if host in ("", "::") and socket.has_dualstack_ipv6():
            return _bound(socket.AF_INET6, ("::", port), dual=True)
        host = host or "0.0.0.0"  # noqa: S104  # ":port" says all interfaces
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(candidates, key=lambda entry: entry[0] != socket.AF_INET)
        return _bound(family, address, dual=False)
    except OSError as error:
        hint = "; another program has this port" if is_taken(error) else ""
        hint += f", or {RESERVED_PORTS}" if hint and error.errno == errno.EACCES else ""
        raise OSError(error.errno, f"cannot listen on {shown}: {error.strerror}{hint}") from error


def is_taken(error: OSError, platform: str = sys.platform) -> bool:
    """Whether a refused bind may mean that another program has the port.

    Windows refuses one that another program has for itself alone, and one that is reserved, as forbidden [Winsock,
    "Using SO_REUSEADDR and SO_EXCLUSIVEADDRUSE"]; no port there is for administrators alone.
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
