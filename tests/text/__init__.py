"""Tests of text for people (`exporter.text`)."""
