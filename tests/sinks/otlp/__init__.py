"""Tests of the OTLP sink, against a scripted receiver."""
