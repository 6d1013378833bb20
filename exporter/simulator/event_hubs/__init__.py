"""A local Event Hubs: AMQP 1.0 and AMQP over websocket for Azure's own SDKs, in memory, with faults on request.

May import nothing but the standard library; no other part of the simulator, and not `exporter.sinks.event_hubs`.
Begin reading in `broker`, which starts and stops it; then in the order of the bytes: `connection` (and `websocket`),
`frames` over `amqp`, `session` with its links, `requests` for tokens and management, `store` for what is kept. `faults`
says what goes wrong.
"""
