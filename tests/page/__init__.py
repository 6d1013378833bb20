"""Tests of the landing page (`exporter.page`)."""
