"""Tests of the pure core, without clocks, files or threads."""
