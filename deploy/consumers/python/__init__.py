"""The consumer in Python. `event_summaries` is the program; README.md says how to run it."""
