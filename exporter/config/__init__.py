"""The settings: what they are, where their values come from, and every error in them at once, without any secret.

Imports `core.policy` for the rules, and what reads and writes single values (`text`, `secrets`, `files`,
`choices`); nobody that acts on a setting.
Begin in `schema`, which defines every setting, then `load`, which reads them all.
"""
