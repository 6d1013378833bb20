"""Node for the tests: what is locked loads."""
