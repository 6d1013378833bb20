"""The command `replay`: what the agent made of recorded documents, or would make of them, and why.

It owns the shapes in which people keep documents, and the engine that feeds them to the core. It may import the core,
the settings and the text for people; nothing is committed and nothing is sent. Begin with `engine.py`.
"""
