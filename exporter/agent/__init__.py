"""The running agent: it reads, runs the core, commits, acts and publishes.

It owns the poll loop, the threads around it and everything that is done about a decision. `app.py`, the composition
root, may import every room but `commands`; `loop.py`, `approvals.py` and `persistence.py` see the others only through
`ports.py`. Begin with `loop.py`, then `app.py`.
"""
