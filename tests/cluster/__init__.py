"""Manifests and chart on a real Kubernetes control plane, built only from registries: `python -m tests.cluster`."""
