"""What the agent was told: settings from flags, environment and file, checked all at once.

    parser = FlagParser(...); add_flags(parser)            every setting as a flag, from the one definition
    settings = load(parser.parse_args(), os.environ)       or ConfigError with every error, each a sentence

`config_schema` holds the definition of every setting, `config_sources` where values come from, `config_kinds` and
`config_checks` what they must look like.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter.config.destinations import event_hubs, otlp, settings_of
from exporter.config.places import MOUNTS, unseen
from exporter.config.rules import read_rules, show_rules
from exporter.config.schema import (
    SECTIONS,
    ApprovalSettings,
    LogSettings,
    OutboxSettings,
    RecorderSettings,
    RecordsSettings,
    Settings,
    SourceSettings,
    WebSettings,
    catalogue,
)
from exporter.config.sources import (
    ReadFile,
    Sources,
    config_path,
    given_flags,
    read_capped,
    read_toml,
)
from exporter.config.types import KNOWN_API_VERSIONS, InvalidValue


class ConfigError(Exception):
    """The settings are wrong. `errors` are sentences, each with file and key, flag or variable, none with a secret."""

    def __init__(self, errors: tuple[str, ...]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


def load(
    flags: argparse.Namespace,
    environ: Mapping[str, str],
    read_file: ReadFile = read_capped,
    mounts: Path = MOUNTS,
) -> Settings:
    """The settings from flags, environment, OTEL_* variables and file. Raises `ConfigError` with all errors.

    `mounts` is what this process has mounted, as /proc/self/mountinfo tells it.
    """
    errors: list[str] = []
    path = ""
    document: dict[str, Any] = {}
    try:
        path = config_path(flags, environ)
        document = read_toml(path, read_file) if path else {}
    except InvalidValue as error:
        errors.append(str(error))
    sources = Sources(given_flags(flags), environ, document, path, errors)
    sources.check_names()
    settings = Settings(
        source=SourceSettings(**_values(sources, "source")),
        approval=_approval(sources),
        event_hubs=event_hubs(sources, read_file),
        otlp=otlp(sources),
        records=RecordsSettings(**_values(sources, "records")),
        outbox=OutboxSettings(**_values(sources, "outbox")),
        web=WebSettings(**_values(sources, "web")),
        log=LogSettings(**_values(sources, "log")),
        recorder=RecorderSettings(**_values(sources, "recorder")),
        config_file=path,
    )
    _check_together(settings, sources)
    _check_places(settings, sources, mounts)
    if errors:
        raise ConfigError(tuple(errors))
    return replace(settings, warnings=tuple(sources.warnings))


def _values(sources: Sources, name: str) -> dict[str, Any]:
    return {key: sources.pick(setting).value for key, setting in settings_of(name).items()}


def _approval(sources: Sources) -> ApprovalSettings:
    values = _values(sources, "approval")
    table = sources.document.get("approval")
    if isinstance(table, dict) and "rules" in table:
        read = read_rules(table["rules"], sources.key("approval", "rules"))
        sources.errors += read.errors
        sources.warnings += read.warnings
        values["rules"] = read.rules
    return ApprovalSettings(**values)


def _check_together(settings: Settings, sources: Sources) -> None:
    """What is right alone and doubtful or wrong beside the rest."""
    source, approval, recorder = settings.source, settings.approval, settings.recorder
    if source.api_version not in KNOWN_API_VERSIONS:
        known = ", ".join(KNOWN_API_VERSIONS)
        sources.warnings.append(f"source.api_version: {source.api_version} is not one this version knows ({known})")
    if approval.takeover_after is not None and approval.coordination != "leader":
        sources.warnings.append(
            f"approval.takeover_after: without effect while coordination is {approval.coordination}"
        )
    if approval.mode == "enforce" and not approval.rules:
        sources.warnings.append("approval.rules: empty, so nothing is ever approved")
    if recorder.path and recorder.path == settings.outbox.path:
        sources.errors.append(
            f"{sources.key('recorder', 'path')}: expected another file than outbox.path, found the same"
        )


def _check_places(settings: Settings, sources: Sources, mounts: Path) -> None:
    """Files that a person is to make from outside, where this process may not see them: an error where that is sure."""
    approval = settings.approval
    hold = sources.pick(settings_of("approval")["hold_file"]).origin if approval.hold_file else ""
    sentences, sure = unseen(approval, hold, sources.key("approval", "rules"), mounts)
    (sources.errors if sure else sources.warnings).extend(sentences)


def settings_table() -> str:
    """All settings as a Markdown table, for the README."""
    lines = ["| setting | default | flag | environment | meaning |", "| --- | --- | --- | --- | --- |"]
    for setting in catalogue():
        flag = "never a flag" if setting.secret else f"`{setting.flag}`"
        default = f"`{setting.kind.show(setting.default)}`"
        meaning = setting.help.replace("|", "\\|")
        lines.append(f"| `{setting.name}` | {default} | {flag} | `{setting.env}` | {meaning} |")
        if setting.name == "approval.hold_file":
            lines.append(
                "| `approval.rules` | two rules | file only | file only | Tried in order: the first match approves. |"
            )
    return "\n".join(lines) + "\n"


def to_toml(settings: Settings) -> str:
    """The settings in force as a TOML file, secrets as a placeholder."""
    blocks = []
    for name in SECTIONS:
        values = getattr(settings, name)
        lines = [f"{key} = {setting.kind.show(getattr(values, key))}" for key, setting in settings_of(name).items()]
        if name == "approval":
            lines.append(f"rules = {show_rules(values.rules)}")
        blocks.append("\n".join((f"[{name}]", *lines)))
    return "\n\n".join(blocks) + "\n"
