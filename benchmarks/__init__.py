"""Measurements of the agent's cost and speed from outside. Most modules are commands: `python -m benchmarks.NAME`.

No test asserts these values, because they depend on the machine. Each command therefore measures and prints a baseline
in the same run.
"""
