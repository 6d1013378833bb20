"""Tests of the commands, run as on the command line."""
