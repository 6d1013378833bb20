"""The outbox: a SQLite file with the last state and the records that destinations have not acknowledged yet.

May import `core`, the failure types, and `files`. `agent.delivery` sends the records. Begin with `store.Outbox`: the
agent's thread commits, and each destination's thread reads and settles.
"""
