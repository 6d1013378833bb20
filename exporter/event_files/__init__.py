"""Event files: a directory with a JSON file for each event of this VM, for local software.

Imports `core` for the events; the agent passes each status that it publishes. Begin in `writer`, the thread that
reconciles the directory with the last status. `content` defines the files' names and content; `folder` replaces,
removes, and finds them.
"""
