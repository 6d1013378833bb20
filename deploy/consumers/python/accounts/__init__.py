"""Reads a fleet's records from Event Hubs and joins them into one account per event: `python -m accounts --help`.

`record` checks one message, `join` makes the account of an event from its records (both pure), `store` keeps records
and positions in one SQLite file, `consumer` puts them behind Azure's SDK. Imports nothing of the agent.
"""
