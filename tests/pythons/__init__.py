"""The suite on other CPythons than the current one: `python -m tests.pythons`."""
