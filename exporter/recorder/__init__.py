"""The recording: a bounded set of files with what the metadata service answered and what the agent did, for `replay`.

Imports `core` for the times and the VM, and `files`; the agent calls the recorder.
Begin in `recorder`, which describes the format, decides what is worth a line, and writes the lines.
"""
