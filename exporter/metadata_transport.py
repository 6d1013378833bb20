"""httpx over sockets of our own: no proxy, no redirect, no cookie, no encoding, and no time-outs but the wire's."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import httpcore
import httpx

from exporter.metadata_wire import Wire


def http_client(wire: Wire, tls: ssl.SSLContext | None) -> httpx.Client:
    """A client whose every request asks as the metadata service wants to be asked."""
    return httpx.Client(
        transport=_Transport(wire, tls),
        trust_env=False,
        follow_redirects=False,
        timeout=None,  # noqa: S113  # the wire keeps the time
        headers={
            "Metadata": "true",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "azure-scheduled-events-exporter",
        },
    )


class _Transport(httpx.BaseTransport):
    """httpx's public seam, with our sockets below it: httpx's own transport takes no network backend.

    It knows no proxy. What would make httpx parse a redirect's target, which can fail in ways of its own, or keep a
    cookie is dropped here.
    """

    def __init__(self, wire: Wire, tls: ssl.SSLContext | None) -> None:
        self._pool = httpcore.ConnectionPool(ssl_context=tls, keepalive_expiry=None, network_backend=wire)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        answer = self._pool.handle_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            status_code=answer.status,
            headers=[(name, value) for name, value in answer.headers if name.lower() not in _UNWANTED],
            stream=_Body(answer),
            extensions=answer.extensions,
        )

    def close(self) -> None:
        self._pool.close()


_UNWANTED = frozenset({b"location", b"set-cookie"})


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        return self._answer.iter_stream()

    def close(self) -> None:
        self._answer.close()
