"""Tests of the metadata service: its platform, scenarios and faults."""
