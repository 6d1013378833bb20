"""Consumers of the records in Event Hubs that a team can take as they are; no part of the agent's package."""
