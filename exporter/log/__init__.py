"""The agent's own log: lines of an event name plus fields, on standard error or in a file, as logfmt or JSON.

It may import `text` (for what a terminal may show), `secrets` and `files`; other packages only use
`protocol.Logger`. Begin with `log.Log`, which renders a line; `writer` writes it, on a thread of its own, to a stream
or to a `files.RotatingFile`. `log.captured_libraries` redirects what libraries report through `logging` and `warnings`
into the same lines.
"""
