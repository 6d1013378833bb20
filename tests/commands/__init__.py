"""Tests of the commands as they are typed."""
