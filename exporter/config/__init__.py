"""The settings: their definitions, the sources of their values, and all errors in them at once, without secrets.

Imports `core.policy` for the rules, and modules that read and write single values (`text`, `secrets`, `files`,
`choices`), but no package that uses a setting. Start with `schema`, which defines every setting, then read `load`.
"""
