"""Alerts and dashboards: the files, and their results on a real Prometheus with recorded scenarios."""
