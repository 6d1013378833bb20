"""Tests of `/metrics`: gauges, counters, and the parsing of the text."""
