"""Stand-ins for what the agent talks to, on loopback, with faults on request: `metadata` for Azure's metadata service,
`event_hubs` for a namespace of Event Hubs, `otlp_collector` for an OpenTelemetry collector.

May import `core`; nothing but `commands`, the tests and the benchmarks imports it, and `run` never loads it.
Begin reading in `metadata.service` and `event_hubs.broker`, which are what those three start.
"""
