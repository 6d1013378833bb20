"""An agent that exports Azure Scheduled Events as metrics, logs, and messages."""

__version__ = "0.1.0"
