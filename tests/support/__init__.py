"""What several test modules share: scripted peers, clocks and agents, and independent readings of the output."""
