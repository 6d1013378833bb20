"""The interruption observer in a real virtual machine that is really paused: `python -m tests.vm`."""
