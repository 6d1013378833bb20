"""Join a fleet's records from Event Hubs into one summary per event: `python -m event_summaries --help`.

`record` validates one message, `join` makes the summary of an event from its records (both pure), `store` keeps records
and positions in one SQLite file, and `consumer` connects them to Azure's SDK. Imports nothing from the agent.
"""
