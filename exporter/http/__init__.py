"""The one HTTP client: HTTP/1.1 under httpx's request and response types, with one deadline over a whole exchange.

It imports nothing else of the project, is the room of h11's client side, and serves the metadata client and the OTLP
sink. Begin with `transport.Transport.handle_request`; the sockets and the clock below it are in `deadline`, and
`proxies` and `tls` read the environment's proxies and certificate files for callers that want them.
"""
