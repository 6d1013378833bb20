"""The transport of an `httpx.Client`: HTTP/1.1 with h11, over the sockets of `deadline`.

httpx's transport has no deadline for a whole exchange, and the pool, locks, and traces of httpcore take as much of a
poll's time as everything else; the client itself takes 0.05 ms. Redirects and cookies aren't used: the client never
sees their headers. At most one connection is kept, and there is one exchange at a time.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

import h11
import httpx

from exporter.http.deadline import DeadlineStream, DeadlineTlsStream, Dialer, Disconnected, Exchange, Resolve, Stage
from exporter.http.tls import default_context

_MAX_HEAD_BYTES: Final = 100 * 1024  # of a response's status line and headers, or of a chunk's header
_PORTS: Final = {"http": 80, "https": 443}
_UNUSED: Final = (b"location", b"set-cookie")
"""Response headers to drop: httpx would parse the address, which may be invalid, and keep the cookie."""

Origin = tuple[bytes, bytes, int | None]
"""Scheme, host, and port of a URL, as in httpx; None for the scheme's default port."""


class InvalidAnswer(Exception):
    """The data received isn't a complete HTTP response. The text may quote the peer."""


class ProxyRefused(ConnectionError):
    """The proxy did not open the tunnel that an https address needs."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. `authorization` is the value of `Proxy-Authorization`, empty for none."""

    host: str
    port: int
    authorization: bytes = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> Proxy:
        """Parse `http://user:password@host:port` or a part of it. Raises ValueError, whose text omits the input."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port or _PORTS["http"]
        except ValueError:
            raise ValueError("expected a proxy address with a numeric port") from None
        if parts.scheme != "http" or not host:
            raise ValueError("expected a proxy address like http://HOST:PORT; TLS to the proxy is not supported")
        token = ""
        if parts.username or parts.password:
            token = basic_authorization(unquote(parts.username or ""), unquote(parts.password or ""))
        return cls(host, port, token.encode())


def basic_authorization(user: str, password: str) -> str:
    """Return the value of an `Authorization` header (RFC 7617), in Latin-1 if possible, else in UTF-8."""
    text = f"{user}:{password}"
    try:
        data = text.encode("latin-1")
    except UnicodeEncodeError:
        data = text.encode()
    return f"Basic {base64.b64encode(data).decode()}"


class Transport(httpx.BaseTransport):
    """The transport under the deadline and size limit of `exchange`, which the caller begins before each request.

    `tls` creates the context of each new TLS connection; `proxy`, if given, is used for every request. `handle_request`
    and the body of its response raise OSError (including TimeoutError and ConnectionError), Aborted, Flooded,
    InvalidAnswer, ValueError for a request or number that HTTP doesn't allow, and what `tls` raises.
    """

    def __init__(
        self,
        exchange: Exchange,
        *,
        connect_seconds: float,
        resolve: Resolve = socket.getaddrinfo,
        tls: Callable[[], ssl.SSLContext] = default_context,
        proxy: Proxy | None = None,
    ) -> None:
        self._exchange = exchange
        self._dialer = Dialer(exchange, resolve, connect_seconds)
        self._tls = tls
        self._proxy = proxy
        self._kept: _Connection | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Return the response once its headers are received; its body is received as it is read.

        A kept connection is used unless the peer has closed it or sent unrequested data. If it breaks before any
        response, the request is sent again on a new one. The connection of a request with `Connection: close` is never
        kept, so such a request is sent at most once.
        """
        self._exchange.slice()  # raises if aborted
        url = request.url
        if url.scheme not in _PORTS:
            raise ValueError("expected an http or https URL")
        origin = (url.raw_scheme, url.raw_host, url.port)
        connection, self._kept = self._kept, None
        if connection is not None and connection.is_usable_for(origin):
            try:
                return self._respond(connection, request)
            except TimeoutError:
                raise
            except OSError:
                if self._exchange.received:
                    raise
            self._exchange.restart()
        elif connection is not None:
            connection.close()
        return self._respond(_Connection(self._connect(url), self._exchange, origin), request)

    def _respond(self, connection: _Connection, request: httpx.Request) -> httpx.Response:
        try:
            self._exchange.leave()
            headers = request.headers.raw
            if self._proxy is not None and self._proxy.authorization and request.url.scheme == "http":
                headers.append((b"Proxy-Authorization", self._proxy.authorization))
            connection.send(request.method.encode(), self._target(request.url), headers, request.content)
            head = connection.receive_head()
        except BaseException:
            connection.close()
            raise
        kept = [(name, value) for name, value in head.headers if name not in _UNUSED]
        return httpx.Response(head.status_code, headers=kept, stream=_Body(connection, self._keep))

    def close(self) -> None:
        """Close the kept connection. Don't call it during an exchange: abort that first."""
        connection, self._kept = self._kept, None
        if connection is not None:
            connection.close()

    def _keep(self, connection: _Connection) -> None:
        self._kept = connection

    def _target(self, url: httpx.URL) -> bytes:
        """Return the request target: in origin form, or absolute for http through a proxy (RFC 9112 §3.2)."""
        if self._proxy is None or url.scheme == "https":
            return url.raw_path
        return url.raw_scheme + b"://" + url.netloc + url.raw_path

    def _connect(self, url: httpx.URL) -> DeadlineStream:
        proxy = self._proxy
        host, port = url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]
        connection = self._dialer.connect(host, port) if proxy is None else self._dialer.connect(proxy.host, proxy.port)
        stream: DeadlineStream = connection
        try:
            if proxy is not None and url.scheme == "https":
                self._open_tunnel(stream, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            if url.scheme == "https":
                stream = DeadlineTlsStream(stream, self._tls(), host, self._exchange)
        except BaseException:
            connection.close()
            raise
        return stream

    def _open_tunnel(self, stream: DeadlineStream, proxy: Proxy, target: str) -> None:
        """Open a tunnel through the proxy with CONNECT (RFC 9110 §9.3.6)."""
        self._exchange.stage = Stage.CONNECT
        headers = [(b"Host", target.encode())]
        if proxy.authorization:
            headers.append((b"Proxy-Authorization", proxy.authorization))
        connection = _Connection(stream, self._exchange)
        connection.send(b"CONNECT", target.encode(), headers, b"")
        status = connection.receive_head().status_code
        if not 200 <= status < 300:  # noqa: PLR2004  # 2xx
            raise ProxyRefused(f"the proxy returned HTTP {status}")
        if connection.has_unread:
            raise ProxyRefused("the proxy sent data after its response")
        self._exchange.restart()  # the bytes received so far are the proxy's


def client_over(transport: Transport) -> httpx.Client:
    """Return a client that ignores the environment, follows no redirect, and doesn't log the URL."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # below, it logs each request with its URL
    return httpx.Client(transport=transport, trust_env=False)


class _Connection:
    """HTTP/1.1 on one stream to `origin`."""

    def __init__(self, stream: DeadlineStream, exchange: Exchange, origin: Origin | None = None) -> None:
        self._stream = stream
        self._exchange = exchange
        self._origin = origin
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._sent_whole = True
        self._announced = 0

    @property
    def has_unread(self) -> bool:
        """Whether bytes after the response were received."""
        return bool(self._h11.trailing_data[0])

    def is_usable_for(self, origin: Origin) -> bool:
        """Return whether it goes to `origin` and is idle: one that is readable now is closed or out of sync."""
        return origin == self._origin and not self._stream.is_readable()

    def send(self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], content: bytes) -> None:
        """Send a request. Raises ValueError for one that HTTP doesn't allow.

        A peer may respond and close before it has read everything, so `receive_head` reports a failed send.
        """
        try:
            data = self._h11.send(h11.Request(method=method, target=target, headers=headers)) or b""
            if content:
                data += self._h11.send(h11.Data(data=content)) or b""
            data += self._h11.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError as error:
            raise ValueError("HTTP does not allow this request") from error
        try:
            self._stream.send(data)
        except TimeoutError:
            raise
        except OSError:
            self._sent_whole = False

    def receive_head(self) -> h11.Response:
        """Return the head of the final response, skipping interim ones."""
        while True:
            event = self._next()
            if isinstance(event, h11.Response):
                self._announced = int(dict(event.headers).get(b"content-length", b"0"))
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise InvalidAnswer("no response to the request")

    def receive_body(self) -> Iterator[bytes]:
        """Yield the body in parts, as they arrive. Raises Flooded if it is, or claims to be, longer than allowed."""
        size = 0
        self._exchange.check_body(self._announced)
        while isinstance(event := self._next(), h11.Data):
            size += len(event.data)
            self._exchange.check_body(size)
            yield bytes(event.data)

    def start_next(self) -> bool:
        """Prepare for another request. Return False if the connection can't be reused."""
        done = self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE
        if not done or not self._sent_whole or self.has_unread:
            return False
        self._h11.start_next_cycle()
        return True

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    def _next(self) -> object:
        """Return the next event of h11, after reading the data it needs."""
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise InvalidAnswer(str(error)) from error
            if event is not h11.NEED_DATA:
                return event
            data = self._exchange.count(self._stream.receive())
            if not data and self._h11.their_state is h11.SEND_RESPONSE:
                raise Disconnected("the peer closed the connection without a response")
            self._h11.receive_data(data)


class _Body(httpx.SyncByteStream):
    """The body of a response. Closing it keeps the connection if the whole response was read, else closes it."""

    def __init__(self, connection: _Connection, keep: Callable[[_Connection], None]) -> None:
        self._connection = connection
        self._keep = keep

    def __iter__(self) -> Iterator[bytes]:
        return self._connection.receive_body()

    def close(self) -> None:
        if self._connection.start_next():
            self._keep(self._connection)
        else:
            self._connection.close()


@dataclass(frozen=True, slots=True)
class EnvironmentProxy:
    """A proxy's address, which may contain a password, and the variable that sets it, for messages."""

    variable: str
    url: str = field(repr=False)


def environment_proxy(url: str, environ: Mapping[str, str]) -> EnvironmentProxy | None:
    """Return the proxy that the environment sets for requests to `url`; None for none.

    Reads the variables as curl does: `http_proxy`, `https_proxy`, `all_proxy`, and `no_proxy`, in lower case before
    upper case. It ignores the settings of Windows and macOS (`urllib.request.getproxies`): they belong to the signed-in
    user, so `check --probe` and the service would use different proxies.
    """
    parts = urlsplit(url)
    exempt = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    for name in _variables(parts.scheme, environ):
        if environ[name]:
            return None if _is_exempt(parts, exempt) else EnvironmentProxy(name, environ[name])
    return None


def _variables(scheme: str, environ: Mapping[str, str]) -> list[str]:
    """Return the variables set for this scheme. A lower-case one overrides the upper-case one, even if empty."""
    pairs = [(f"{word}_proxy", f"{word.upper()}_PROXY") for word in (scheme, "all")]
    names = [small if small in environ else large for small, large in pairs]
    # In a CGI program, HTTP_PROXY is the value of the request header `Proxy` (CVE-2016-1000110).
    return [name for name in names if name in environ and not (name == "HTTP_PROXY" and "REQUEST_METHOD" in environ)]


def _is_exempt(parts: SplitResult, exempt: str) -> bool:
    """Return whether `no_proxy` names the host.

    `no_proxy` is `*`, or a list of host names and domains (with or without a leading dot or a port), addresses, and
    networks (10.0.0.0/8).
    """
    if exempt.strip() == "*":
        return True
    host = parts.hostname or ""
    forms = (host, f"{host}:{parts.port}" if parts.port else host)
    for word in filter(None, (word.strip().lower() for word in exempt.split(","))):
        name = word.lstrip(".")
        if _is_inside(host, word) or any(form == name or form.endswith(f".{name}") for form in forms):
            return True
    return False


def _is_inside(host: str, network: str) -> bool:
    if "/" not in network:
        return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
