"""The commands besides `run`: each a module or a package with `add_arguments` and the function that runs it.

May import every room below; no room imports a command, and `cli` imports one only when it is run.
Begin in `cli.COMMANDS`, which lists them, then in the module of the command.
"""
