"""Tests of the recorder, and of `replay` with its recordings."""
