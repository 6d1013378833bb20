"""The HTTP of the OTLP destination: a `requests.Session` whose answers are true.

The SDK's exporter calls a 302, a log in page with status 200 and a `partial_success` with rejected records a success,
and tells nobody whether a failure is worth another try. This session is given to it as its public `session=`: every
request ends in a true success or raises `Retryable` or `Permanent`, within a deadline, after reading a bounded answer.
What the answers mean is in `otlp_answers`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_auth_from_url

from exporter.errors import Failure, Retryable
from exporter.sinks.otlp.answers import Answer, judge, unanswered

MAX_RESPONSE_BYTES: Final = 64 * 1024
# What the SDK and requests may say by themselves; the SDK would add whatever the environment has for any collector.
_FOREIGN_HEADERS: Final = frozenset(
    {"accept", "accept-encoding", "connection", "content-encoding", "content-type", "user-agent"}
)
_MAX_TOLD: Final = 200  # characters of the collector's own words in an error
_ALARM_AGAIN: Final = 0.1  # seconds
_GZIP_OR_ZLIB: Final = 32  # zlib's word for finding out by itself which of the two headers it is


class TruthfulSession(requests.Session):
    """One request at a time. `headers` are all that is added; those of the environment are not. None is ever told.

    `deadline` is for the whole of a request, in seconds: connection, redials, headers and body (looking up the name
    cannot be interrupted).
    """

    def __init__(
        self,
        *,
        deadline: float,
        headers: Mapping[str, str],
        certificate_file: str = "",
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.failure: Failure | None = None
        self.warning = ""
        self.asked = False
        self.ended = threading.Event()
        self._deadline = deadline
        self._own_headers = dict(headers)
        self._certificate_file = certificate_file
        self._wall = wall
        self.auth = _OwnAuth()
        self._adapter = _SeverableAdapter()
        self._alarm = _Alarm(deadline, self._adapter.sever)
        self.mount("http://", self._adapter)
        self.mount("https://", self._adapter)

    def begin(self) -> None:
        """Forget what the last request told."""
        self.failure = None
        self.warning = ""
        self.asked = False

    def end(self) -> None:
        """For good, from any thread: a request that is under way raises now, a later one at once."""
        self.ended.set()
        self._adapter.sever()

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """As `requests.Session.request`, but return only a true success.

        Anything else raises a `Failure`, also readable as `failure` when the SDK swallows it. Causes are cut off: their
        texts hold addresses and headers.
        """
        self.asked = True
        for name in [name for name in self.headers if name.lower() not in _FOREIGN_HEADERS]:
            del self.headers[name]
        given = kwargs.get("headers") or {}
        kwargs["headers"] = {name: value for name, value in given.items() if name.lower() in _FOREIGN_HEADERS}
        try:
            return super().request(*args, **kwargs)
        except Failure as failure:
            self.failure = failure
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            self.failure = unanswered(error)
        raise self.failure from None

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """Called by `request`, with what it prepared."""
        request.headers.update({"Accept-Encoding": "identity", **self._own_headers})
        kwargs |= {"stream": True, "allow_redirects": False}
        if self._certificate_file:
            kwargs["verify"] = self._certificate_file  # REQUESTS_CA_BUNDLE would beat the session's own
        expired = threading.Event()
        with self._alarm.over(expired):
            try:
                response = self._dial(request, kwargs, expired)
                content = _read(response)
            except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError):
                if expired.is_set():
                    raise Retryable("timeout", f"no whole answer within {self._deadline:g} s") from None
                raise
        self._judge(response, content)
        return response

    def _dial(
        self, request: requests.PreparedRequest, kwargs: dict[str, Any], expired: threading.Event
    ) -> requests.Response:
        """A kept connection that the collector closed meanwhile costs one more try, not a failure."""
        if self.ended.is_set():
            raise Retryable("closed", "going down")
        try:
            return super().send(request, **kwargs)
        except requests.ConnectionError as error:
            hung_up = bool(error.args) and isinstance(error.args[0], urllib3.exceptions.ProtocolError)
            if not hung_up or expired.is_set() or self.ended.is_set():
                raise
            return super().send(request, **kwargs)

    def _judge(self, response: requests.Response, content: bytes) -> None:
        media = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        answer = Answer(response.status_code, media, response.headers.get("Retry-After", ""), content)
        verdict = judge(answer, self._wall())
        if isinstance(verdict, str):
            self.warning = self._tellable(verdict)
            return
        verdict.detail = self._tellable(verdict.detail)
        verdict.args = (f"{verdict.reason}: {verdict.detail}",)
        raise verdict

    def _tellable(self, text: str) -> str:
        """The other side's words, cut, on one line and without any header of ours that they may repeat."""
        for secret in filter(None, self._own_headers.values()):
            text = text.replace(secret, "***")
        return " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _MAX_TOLD]).split())[:_MAX_TOLD]


class _OwnAuth(AuthBase):
    """The user and password of the URL alone: without this, requests sends what `~/.netrc` has for the host.

    The rest of the environment, proxies and CA certificates, is meant for all programs and heard.
    """

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        user, password = get_auth_from_url(request.url or "")
        return HTTPBasicAuth(user, password)(request) if user or password else request


class _SeverableAdapter(HTTPAdapter):
    """Knows its open connections, so that another thread can end them.

    A time-out of requests is for each operation of a socket: headers that drip are read for hours. Shutting the socket
    down is the one thing that wakes a thread out of any such read.
    """

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self._watch(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        known = proxy in self.proxy_manager
        manager = super().proxy_manager_for(proxy, **kwargs)
        if not known:
            self._watch(manager)
        return manager

    def sever(self) -> None:
        """Shut down every open connection, from any thread."""
        for connection in list(self._connections):
            sock = getattr(connection, "sock", None)
            if isinstance(sock, socket.socket):
                with contextlib.suppress(OSError):  # it was closed meanwhile
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _watch(self, manager: Any) -> None:
        """Let the manager's pools, direct, proxied or SOCKS, make connections that are remembered here."""
        seen = self._connections

        def watched(pool_class: Any) -> Any:
            class Connection(pool_class.ConnectionCls):  # type: ignore[misc]  # a class known at run time only
                def connect(self) -> None:
                    seen.add(self)
                    super().connect()

            return type(pool_class.__name__, (pool_class,), {"ConnectionCls": Connection})

        manager.pool_classes_by_scheme = {
            scheme: watched(pool_class) for scheme, pool_class in manager.pool_classes_by_scheme.items()
        }


class _Alarm:
    """Calls `act` on another thread when a block takes more than `seconds`, and again until the block ends.

    Again, since a connection may just be in the making and then has nothing to shut down yet. One thread looks after
    all blocks, sleeps over those that end in time, and ends itself when there is none: a thread for each request would
    take a third of the time that a backlog takes to drain.
    """

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._seconds = seconds
        self._act = act
        self._lock = threading.Lock()
        self._watching = False
        self._due = 0.0
        self._expired: threading.Event | None = None
        """Of the block under way."""

    @contextlib.contextmanager
    def over(self, expired: threading.Event) -> Iterator[None]:
        """One block, which begins now. `expired` is set before the first call of `act`, none comes after the block."""
        with self._lock:
            self._due, self._expired = time.monotonic() + self._seconds, expired
            if not self._watching:
                threading.Thread(target=self._watch, name="otlp-deadline", daemon=True).start()
                self._watching = True
        try:
            yield
        finally:
            with self._lock:
                self._expired = None

    def _watch(self) -> None:
        wait = self._seconds
        while wait > 0:
            time.sleep(wait)
            wait = self._look()

    def _look(self) -> float:
        """In how many seconds to look again; 0 for never, when no block is under way."""
        with self._lock:
            if self._expired is None:
                self._watching = False
                return 0.0
            left = self._due - time.monotonic()
            if left > 0:
                return left
            self._expired.set()
            self._act()
            return _ALARM_AGAIN


def _whole(response: requests.Response, content: bytes) -> bool:
    """Whether the answer came to its end, which the libraries below do not always mind.

    Headers cut off anywhere are taken for all of them, so a 200 without any length says nothing if nothing follows.
    """
    announced = response.headers.get("Content-Length", "")
    if announced.isdecimal():
        return len(content) >= int(announced)
    chunked = "Transfer-Encoding" in response.headers  # an early end of these raises
    return bool(content) or chunked or response.status_code == 204  # noqa: PLR2004  # the one that never has a length


def _plain(content: bytes, encoding: str) -> bytes:
    """The body as it was meant, never more than the cap.

    We ask for no encoding; some proxies compress all the same, and whether the record was taken stands inside.
    """
    if encoding in ("", "identity") or not content:
        return content
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise Retryable("protocol", "an answer in an encoding that was not asked for", needs_operator=True)
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | _GZIP_OR_ZLIB)
    try:
        plain = unpacking.decompress(content, MAX_RESPONSE_BYTES + 1)
    except zlib.error:
        raise Retryable("protocol", f"an answer that is not {encoding} as it says", needs_operator=True) from None
    if len(plain) > MAX_RESPONSE_BYTES:
        raise Retryable("protocol", f"an answer of more than {MAX_RESPONSE_BYTES} bytes", needs_operator=True)
    if not unpacking.eof:
        raise Retryable("protocol", f"an answer that is not {encoding} as it says", needs_operator=True)
    return plain


def _read(response: requests.Response) -> bytes:
    """The body, never more than the cap; a connection with something left over is not used again."""
    raw = response.raw
    try:
        content: bytes = raw.read(MAX_RESPONSE_BYTES + 1, decode_content=False)
        if len(content) > MAX_RESPONSE_BYTES:
            raise Retryable("protocol", f"an answer of more than {MAX_RESPONSE_BYTES} bytes", needs_operator=True)
        if not _whole(response, content):
            raise ConnectionError("the answer ended early")
        content = _plain(content, response.headers.get("Content-Encoding", "").strip().lower())
    except BaseException:
        raw.close()
        raise
    raw.release_conn()
    response._content = content  # the SDK reads `text`, and there is no public way to give it
    return content
