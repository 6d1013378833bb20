"""Tests of the simulated services, which other tests rely on."""
