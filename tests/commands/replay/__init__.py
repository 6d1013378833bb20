"""Tests of `replay`: recordings of every shape, and the records and decisions they lead to."""
