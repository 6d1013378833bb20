"""The command `service`: the agent as a Windows service, by `exporter.windows`, which alone speaks with the system.

Imports nothing that `run` does not need unless `service` is called; `program` imports the agent, for the service alone.
Begin in `command`, which also starts, stops and removes the service; `install` makes it and its folder, `program` is
what the service manager runs, and `world` is what all of them see of Windows.
"""
