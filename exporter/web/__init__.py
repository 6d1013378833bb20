"""The HTTP server for metrics, status, page, and probes. Slow clients, floods, and wrong passwords don't stop it.

TLS, passwords, headers, and the rate limit come from the exporter-toolkit's web-config file. May import `config`,
`log`, and `core`; of the agent it knows only `responses.Application`, which renders the pages. Start reading in
`server`, which accepts connections and routes requests; `connection` serves one of them.
"""
