"""The command `tail`: reads the records back, from Event Hubs or from the outbox, as a timeline or as JSON lines.

May import every room but `agent` and `simulator`; nothing imports it but `cli`, which loads it when it is given, and
`demo`, which reads messages as it does. Begin reading in `command`: its flags, then one loop for each of the two
sources, and the view that filters and prints; `records` makes records of what is read.
"""
