"""A local Event Hubs: AMQP 1.0 and AMQP over websocket for Azure's own SDKs, in memory, with faults on request.

May import nothing of the simulator but its `faults`, and not `exporter.sinks.event_hubs`.
Begin reading in `broker`, which starts and stops it and names the faults; then in the order of the bytes: `connection`
(and `websocket`), `frames` over `amqp`, `session` with its links, `store` for what is kept.
"""
