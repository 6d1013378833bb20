"""Tests of the recorder, and that `replay` of a recording gives the records of the agent."""
