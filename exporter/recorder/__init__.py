"""The recording: a bounded set of files with metadata-service responses and agent actions, for `replay`.

Imports `core` for the times and the VM, and `files`; the agent calls the recorder. `recorder` describes the format,
decides when a line is needed, and writes the lines.
"""
