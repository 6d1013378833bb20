"""Tests of `replay`: recordings of every shape, and what they would have told."""
