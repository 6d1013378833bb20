"""Coverage-guided fuzzing of whatever strangers can send: `python -m tests.fuzz --seconds N` (needs atheris)."""
