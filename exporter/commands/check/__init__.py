"""The command `check`: the configuration with the files that it names, and with `--probe` what it points at.

Imports `config` and, as `run` would, the clients of what it probes; a destination's library only where one is
configured. Approves and publishes nothing.
Begin in `command`; `files` judges what settings name, `summary` says what they mean, and `probe` runs the probes, one
module for each thing that is probed, which answer with a `report.Report`.
"""
