"""Tests of the HTTP client: its transport, and the proxies of the environment."""
