"""Tests of the HTTP server: responses, passwords, TLS, and resistance to hostile clients."""
