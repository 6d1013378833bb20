"""The scrape endpoint: an HTTP server that stays up under slow clients, floods and wrong passwords, with the TLS,
passwords, headers and rate limit of the exporter-toolkit's web-config file.

May import `config`, `log` and `core`; of the agent it knows only `responses.Application`, which renders the pages.
Begin reading in `server`, which accepts connections and routes requests; `connection` then serves one of them.
"""
