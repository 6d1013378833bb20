"""Coverage-guided fuzzing of all input from outside: `python -m tests.fuzz --seconds N` (needs atheris)."""
