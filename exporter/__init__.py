"""Exports Azure Scheduled Events as Prometheus metrics, OpenTelemetry logs, and Event Hubs messages."""

__version__ = "0.1.0"
