"""The agent's own log: lines of an event name plus fields, on standard error as logfmt or JSON.

Imports `text` (what a terminal may be shown) and `secrets`; the other packages see it as `protocol.Logger` alone.
Begin with `log.Log`; `libraries` brings what libraries say through `logging` and `warnings` into the same lines.
"""
