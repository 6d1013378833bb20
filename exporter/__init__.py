"""Tells operators what Azure is about to do to their VM."""

__version__ = "0.1.0"
