"""The one HTTP client: its transport, and the proxies of the environment."""
