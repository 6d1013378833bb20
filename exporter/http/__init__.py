"""The one HTTP client: HTTP/1.1 under httpx's request and response types, with one deadline over a whole exchange.

It may import nothing else of the project; h11's client side is imported here alone, for the metadata client and the
OTLP sink. Begin with `transport.Transport.handle_request`; sockets and deadlines are in `deadline`. For callers that
use them, `transport` reads the environment's proxies and `tls` certificate files.
"""
