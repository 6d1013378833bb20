"""The KQL of deploy/consumers/adx: its language, its mapping, and the results of its functions."""
