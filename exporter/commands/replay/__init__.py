"""The command `replay`: the records and decisions that recorded documents lead to, and the checks behind them.

It owns the forms in which people keep documents, and the engine that runs the core's cycle on them. It may import the
core, the settings and the text for people; nothing is committed and nothing is sent. Begin with `engine.py`.
"""
