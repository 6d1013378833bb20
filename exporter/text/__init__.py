"""Human-readable text: formatted values, records as a timeline, and the only module that prints.

It may import `core` and the modules below it (`errors`, `secrets`); `page`, `log`, `config` and the commands import it.
Begin with `format` (durations, instants, counts), then `timeline`; `terminal` escapes what a terminal would act on.
"""
