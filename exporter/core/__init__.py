"""Documents, state, transitions, decisions, and records, as pure functions of values.

The core owns every rule that users rely on. It imports only itself and `errors` of the package, and nothing
with an effect of the standard library: no clock, no I/O, no logging, no threads. Start with `cycle.py`, which has the
steps of a poll in order, then read `lifecycle.py` (the table of transitions) and `decision.py` (approve or hold).
"""
