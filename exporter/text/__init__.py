"""Text for people: values in words, records as a timeline, and the only module that prints.

Imports `core` and the modules below it (`errors`, `secrets`); `page`, `log`, `config` and the commands import this.
Begin with `format` (durations, instants, counts), then `timeline`; `terminal` says what may reach a terminal.
"""
