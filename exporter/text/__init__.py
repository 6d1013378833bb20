"""Text for people: formatted values, records as a timeline, and the one module that prints.

It may import `core` and the modules below it (`errors`, `secrets`); `page`, `log`, `config` and the commands import it.
Begin with `format` (durations, instants, counts), then `timeline`; `terminal` decides what may reach a terminal.
"""
