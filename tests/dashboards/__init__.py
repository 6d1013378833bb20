"""Alerts and dashboards: the files, and what they say on a real Prometheus that has lived through stories."""
