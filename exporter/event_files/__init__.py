"""Event files: what local software may know of this VM's events, in a folder, so that it needs no requests of its own.

Imports `core` for what there is to say; the agent hands over each status that it publishes.
Begin in `writer`, the thread that takes the last status and brings the folder to it; `content` is what stands in the
files and what they are called, `folder` replaces, removes and finds them.
"""
