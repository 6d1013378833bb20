"""The command `service`: the agent as a Windows service. Only `exporter.windows` calls Windows.

Without a call of `service`, nothing that `run` doesn't need is imported. Start with `command`, which also starts,
stops, and removes the service. `install` creates it and its folder, `program` is what the service manager runs, and
`environment` is the access of all of them to Windows.
"""
