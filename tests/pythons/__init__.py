"""The suite on other CPythons than the one at hand: `python -m tests.pythons`."""
