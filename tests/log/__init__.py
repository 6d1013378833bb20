"""Tests of the agent's own log (`exporter.log`)."""
