"""Tests of the three outputs: Prometheus, OpenTelemetry, and Event Hubs."""
