"""Tests of the event files: what stands in them, the folder that is kept, and the agent that keeps it."""
