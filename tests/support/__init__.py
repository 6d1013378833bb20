"""Code that several test packages share: scripted peers, clocks, agents, and independent readings of the output."""
