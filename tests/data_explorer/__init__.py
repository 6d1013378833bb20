"""The KQL of deploy/consumers/adx: its language, its mapping, and what its functions find."""
