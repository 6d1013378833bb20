"""The HTTP client: HTTP/1.1 under httpx's request and response types, with one deadline for a whole exchange.

It may import nothing else of the project except `daemon`. Only this package imports h11's client side, for the metadata
client and the OTLP sink. Start reading with `transport.Transport.handle_request`; sockets and deadlines are in
`deadline`. `transport` also reads the environment's proxies, and `tls` certificate files.
"""
