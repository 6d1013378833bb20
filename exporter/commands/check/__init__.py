"""The command `check`: the configuration with the files that it names, and with `--probe` what it points at.

Imports `config` and, as `run` would, the clients of what it probes; a destination's library only where one is
configured. Approves and publishes nothing.
Begin in `command`, which also says what the settings mean; `files` judges what they name, and `probe` runs the probes,
which answer with a `report.Report`.
"""
