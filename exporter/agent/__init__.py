"""The running agent: polls, runs the core, commits, sends approvals, and publishes the status.

The package owns the poll loop, its threads, approvals, and delivery. `app.py`, the composition root, may import every
package except `commands`. `loop.py`, `approvals.py`, and `persistence.py` use the others only through `ports.py`. Read
`loop.py` first, then `app.py`.
"""
