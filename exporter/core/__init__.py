"""Documents, the state, transitions, decisions and records, as pure functions of values.

The core owns every rule that users rely on. It may import nothing of the package but itself, `errors` and `retry`, and
of the standard library nothing with an effect: no clock, no I/O, no logging, no threads. Begin with `cycle.py`, which
has the steps of each poll in order; then `lifecycle.py` (the table of transitions) and `decision.py` (approve or hold).
"""
