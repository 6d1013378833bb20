"""The agent's own log: lines of an event name plus fields, on standard error as logfmt or JSON.

It may import `text` (for what a terminal may show) and `secrets`; other packages only use `protocol.Logger`. Begin with
`log.Log`; `libraries` redirects what libraries report through `logging` and `warnings` into the same lines.
"""
