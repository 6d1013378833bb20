"""Tests of the Event Hubs sink, over Azure's own SDK."""
