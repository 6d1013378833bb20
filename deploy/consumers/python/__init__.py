"""The consumer in Python. `accounts` is the program; README.md says how to run it."""
