"""Tests of the recorder, and that `replay` tells from a recording what the agent told."""
