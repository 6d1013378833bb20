"""Tests of `check` and of what its probes find."""
