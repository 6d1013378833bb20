"""Manifests and chart against a real Kubernetes control plane, from registries alone: `python -m tests.cluster`."""
