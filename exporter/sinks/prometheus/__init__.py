"""The Prometheus output: everything that `/metrics` says, as numbers and words of closed sets.

It may import `core`, the reasons in `sinks.reasons` and prometheus-client, which no other room imports; nothing here
does I/O. Begin reading in `catalogue.py`, which has every family once; `gauges.py` computes what stands now, and
`sink.py` counts what happened and renders both.
"""
