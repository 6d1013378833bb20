"""The Prometheus output: the content of `/metrics`, as numbers and label values of closed sets.

May import `core`, `sinks.reasons`, and prometheus-client, which no other package imports; does no I/O. Begin reading in
`catalogue.py`, which defines every family once. `gauges.py` computes the gauges from the status, and `sink.py` counts
facts and renders both.
"""
