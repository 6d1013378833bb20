"""A scripted OTLP/HTTP receiver: it decodes requests with the protocol's own messages and answers by its script.

with Receiver(reply(503, {"Retry-After": "7"}), Hang()) as receiver:
    ...                     # the first request gets the 503, the second no answer, every further one a success
    receiver.logs           # the accepted ones: (resource attributes, scope, log record)
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from exporter.config.schema import OtlpSettings
from exporter.secrets import Secret
from exporter.sinks.otlp.sink import OtlpDestination

PROTOBUF = {"Content-Type": "application/x-protobuf"}


@dataclass(frozen=True)
class Reply:
    """An HTTP response. `announce` is a false Content-Length: fewer bytes follow, then the end."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    announce: int | None = None


@dataclass(frozen=True)
class Raw:
    """These bytes and the end of the connection."""

    data: bytes


class Drop:
    """Accept the request and close the connection."""


class Hang:
    """Accept the request and stay silent until the receiver ends or the client disconnects."""


class Drip:
    """Send the headers of a response one byte each `every` seconds, without end."""

    def __init__(self, every: float = 0.02) -> None:
        self.every = every


Action = Reply | Raw | Drop | Hang | Drip


def success(*, rejected: int = 0, message: str = "") -> Reply:
    """Return a whole response of a receiver: 200 with or without a `partial_success`."""
    answer = ExportLogsServiceResponse()
    if rejected or message:
        answer.partial_success.rejected_log_records = rejected
        answer.partial_success.error_message = message
    return Reply(200, PROTOBUF, answer.SerializeToString())


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    size: int


Log = tuple[dict[str, Any], InstrumentationScope, LogRecord]

Taste = Callable[[list[str]], tuple[Action, set[str]]]
"""Maps the ids of a request's records to the response, and the ids of those that are not accepted."""


def refusing(*ids: str, answer: Action | None = None) -> Taste:
    """Accept all but these, which a `partial_success` counts; with `answer`, reject the whole request."""

    def taste(sent: list[str]) -> tuple[Action, set[str]]:
        refused = set(ids) & set(sent)
        if not refused:
            return success(), set()
        return (success(rejected=len(refused), message="no"), refused) if answer is None else (answer, set(sent))

    return taste


def uid(log: Log) -> str:
    """Return the record's id."""
    return str(attributes(log[2].attributes)["log.record.uid"])


class Receiver:
    """Listens on loopback; `url` has the path of the protocol. Each request uses up one action; then `taste`
    decides."""

    def __init__(
        self, *actions: Action, port: int = 0, tls: ssl.SSLContext | None = None, taste: Taste | None = None
    ) -> None:
        self.requests: list[Seen] = []
        self.batches: list[list[str]] = []
        """The ids of each request's records."""
        self.pieces: list[int] = []
        """The number of ResourceLogs of each request."""
        self._taste = taste or refusing()
        self.logs: list[Log] = []
        self.connections: list[socket.socket] = []
        self.asked = threading.Event()
        self._actions = deque(actions)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._server = _server(self, port)
        self._scheme = "https" if tls else "http"
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}/v1/logs"

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self.connections:
            with contextlib.suppress(OSError):  # most are closed already
                connection.shutdown(socket.SHUT_RDWR)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> Action:
        """Note a request and return the action for it."""
        with self._lock:
            self.requests.append(Seen(path, headers, len(body)))
            request = _decode(headers, body)
            self.pieces.append(len(request.resource_logs))
            logs = _logs(request)
            ids = [uid(log) for log in logs]
            self.batches.append(ids)
            action, left = (self._actions.popleft(), set[str]()) if self._actions else self._taste(ids)
            if isinstance(action, Reply) and 200 <= action.status < 300:
                self.logs.extend(log for log in logs if uid(log) not in left)
        self.asked.set()
        return action

    def wait(self, seconds: float) -> bool:
        """Return whether the receiver ended within that time."""
        return self._over.wait(seconds)


def plain(value: AnyValue) -> Any:
    """Return a protocol value as a Python value."""
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [plain(item) for item in value.array_value.values]
    if which == "kvlist_value":
        return attributes(value.kvlist_value.values)
    return getattr(value, which)


def attributes(pairs: Any) -> dict[str, Any]:
    """Return attributes by name; none may occur twice."""
    known: list[KeyValue] = list(pairs)
    assert len({pair.key for pair in known}) == len(known)
    return {pair.key: plain(pair.value) for pair in known}


def _decode(headers: dict[str, str], body: bytes) -> ExportLogsServiceRequest:
    assert headers["content-type"] == "application/x-protobuf"
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    request = ExportLogsServiceRequest()
    request.ParseFromString(body)
    return request


def _logs(request: ExportLogsServiceRequest) -> list[Log]:
    return [
        (attributes(resource.resource.attributes), scope.scope, log)
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for log in scope.log_records
    ]


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, as expected."""


def _server(receiver: Receiver, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            receiver.connections.append(self.connection)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            match receiver.take(self.path, headers, body):
                case Reply() as reply:
                    self._reply(reply)
                case Raw(data=data):
                    self.wfile.write(data)
                    self.close_connection = True
                case Drop():
                    self.close_connection = True
                case Hang():
                    receiver.wait(30)
                    self.close_connection = True
                case Drip(every=every):
                    self._drip(every)

        def _reply(self, reply: Reply) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.status != 204:
                self.send_header("Content-Length", str(len(reply.body) if reply.announce is None else reply.announce))
            self.end_headers()
            self.wfile.write(reply.body)
            self.close_connection = reply.announce is not None

        def _drip(self, every: float) -> None:
            self.close_connection = True
            try:
                for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 10_000:
                    if receiver.wait(every):
                        return
                    self.wfile.write(bytes([byte]))
            except OSError:
                return  # the client has disconnected, as expected

        def log_message(self, *args: Any) -> None:
            """Suppress the request log."""

    server = _Quiet(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    return server


def otlp_to(url: str, *, headers: Mapping[str, str] | None = None, **options: Any) -> OtlpDestination:
    """Return a destination with these settings and other arguments of `OtlpDestination`."""
    further = {name: options.pop(name) for name in ("environ", "idle_close", "monotonic", "wall") if name in options}
    hidden = tuple((name, Secret(value)) for name, value in (headers or {}).items())
    return OtlpDestination(OtlpSettings(logs_url=url, headers=hidden, **options), **further)
