"""Tests of the metadata client: requests, responses, and connections."""
