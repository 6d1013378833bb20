"""The command `check`: validates the configuration and its files, and with `--probe` the services it points at.

Imports `config` and the clients that `run` uses; a destination's library only if that destination is configured.
Approves and publishes nothing. Begin in `command`, which also prints the meaning of the settings. `files` validates the
files that the settings name; `probe` runs the probes, each of which returns a `report.Report`.
"""
