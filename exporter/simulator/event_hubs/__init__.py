"""A local Event Hubs: AMQP 1.0 and AMQP over websocket for Azure's own SDKs, in memory, with faults on request.

May import only `faults` of the simulator, and not `exporter.sinks.event_hubs`. Start reading in `broker`, which starts
and stops it and lists the faults; then in the order of the bytes: `connection` (and `websocket`), `frames` over `amqp`,
`session` with its links, `store` for the messages.
"""
