"""`/metrics`: what gauges and counters say, and what readers make of the text."""
