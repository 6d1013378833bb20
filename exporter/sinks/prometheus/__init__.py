"""The Prometheus output: the content of `/metrics`, as numbers and words of closed sets.

It may import `core`, the reasons in `sinks.reasons` and prometheus-client, which no other room imports; nothing here
does I/O. Begin reading in `catalogue.py`, which has every family once; `gauges.py` computes the gauges from the
status, and `sink.py` counts facts and renders both.
"""
