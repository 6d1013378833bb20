"""The agent's own log: lines of an event name plus fields, on standard error or in a file, as logfmt or JSON.

May import `text` (for safe terminal output), `secrets`, and `files`; other packages only use `protocol.Logger`. Start
with `log.Log`, which renders a line. `writer` writes it, on a separate thread, to a stream or a `files.RotatingFile`.
`log.captured_libraries` redirects the messages of libraries (`logging`, `warnings`) to the same log.
"""
