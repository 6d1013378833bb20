"""Tests of the three ways out: Prometheus, OpenTelemetry and Event Hubs."""
