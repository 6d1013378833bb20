"""The one file on disk: the last state, and the records that its destinations have not acknowledged yet.

It may import the core, the failure types and the private files; what sends the records is `agent.delivery`.
Begin with `store.Outbox`: the agent's thread commits, and each destination's thread reads and settles.
"""
