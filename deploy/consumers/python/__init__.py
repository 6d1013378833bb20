"""The consumer in Python. `event_summaries` is the program; see README.md."""
