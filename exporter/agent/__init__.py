"""The running agent: it reads, runs the core, commits, sends approvals and publishes.

It owns the poll loop, the threads around it, approvals and delivery. `app.py`, the composition root, may import every
room but `commands`; `loop.py`, `approvals.py` and `persistence.py` use the others only through `ports.py`. Begin with
`loop.py`, then `app.py`.
"""
