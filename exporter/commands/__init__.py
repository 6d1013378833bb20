"""The commands: each is a module or a package with a function that runs it and, except `run`, `add_arguments`.

Commands may import every other package; no package imports a command. `cli` imports a command only to run it.
Start with `cli.COMMANDS`, which lists the commands, then read the command's module.
"""
