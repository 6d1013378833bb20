"""The command `replay`: the records and decisions for recorded documents, with the checks behind each decision.

It contains the input formats of documents, and the engine that runs the core's cycle on them. It may import the core,
the settings, and `text`; it commits nothing and sends nothing. Begin with `engine.py`.
"""
