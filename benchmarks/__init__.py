"""What the agent costs and how fast it is, seen from outside. Each module is a command: `python -m benchmarks.NAME`.

Nothing here is a test and no figure is asserted in one: figures belong to the machine that gave them, so each command
prints what it compares itself with, measured in the same run.
"""
