"""Tests of the scrape endpoint: its answers, passwords and TLS, and what it withstands."""
