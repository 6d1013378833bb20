"""A small OTLP/HTTP log receiver for `demo`: accepts and decodes requests like a collector, and keeps the ids."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

MAX_BODY: Final = 4 << 20
PROTOBUF: Final = "application/x-protobuf"


class Collector:
    """A collector as a context manager. `endpoint` is the base URL, `ids` the `log.record.uid` in order of arrival."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "")
                body = self.rfile.read(min(int(length), MAX_BODY)) if length.isdigit() else b""
                status = collector.take(self.path, self.headers.get("Content-Encoding", ""), body)
                response = ExportLogsServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("Content-Type", PROTOBUF)
                self.send_header("Content-Length", str(len(response)))
                self.end_headers()
                self.wfile.write(response)

            def log_message(self, *_: object) -> None:
                """Log nothing: the demo prints its own output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, path: str, encoding: str, body: bytes) -> int:
        """Decode one request. Return the HTTP status of the response."""
        if path != "/v1/logs":
            return 404
        request = ExportLogsServiceRequest()
        try:
            request.ParseFromString(gzip.decompress(body) if encoding == "gzip" else body)
        except (DecodeError, OSError, EOFError):
            return 400
        for resource in request.resource_logs:
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    self.ids += [pair.value.string_value for pair in record.attributes if pair.key == "log.record.uid"]
        return 200

    def __enter__(self) -> Collector:
        """Start to serve, on a daemon thread."""
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="collector", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
