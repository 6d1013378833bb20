"""The client of the metadata service: its requests, its answers, its connections."""
