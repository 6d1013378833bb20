"""The interruption observer in a real virtual machine that is paused: `python -m tests.vm`."""
