"""Simulated services on loopback, with faults on request.

`metadata` simulates Azure's metadata service, `event_hubs` an Event Hubs namespace, and `otlp_collector` an
OpenTelemetry collector. May import `core`, `text`, and `files`. Only `commands`, the tests, and the benchmarks import
it, and `run` never loads it. Start reading in `metadata.service` and `event_hubs.broker`.
"""
