"""Join a fleet's records from Event Hubs into one summary per event: `python -m event_summaries --help`.

`record` checks one message, `join` makes the summary of an event from its records (both pure), `store` keeps records
and positions in one SQLite file, `consumer` puts them behind Azure's SDK. Imports nothing of the agent.
"""
