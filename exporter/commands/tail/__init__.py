"""The command `tail`: prints records from Event Hubs or from the outbox, as a timeline or as JSON lines.

May import every package except `agent` and `simulator`. Only `cli` imports it, to run the command, and `demo`, which
parses messages the same way. Start with `command`: the flags, one loop for each source, and the view that filters and
prints. `records` parses messages and outbox rows.
"""
