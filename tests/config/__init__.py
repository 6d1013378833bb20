"""Tests of the settings: from files, environment, and flags to values or a list of all errors."""
