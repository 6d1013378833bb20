"""The manual page azure-scheduled-events-exporter(1), generated from the parsers and the catalogue of settings.

help2man and argparse-manpage aren't used: the program adds flags only to the command that is called, and a setting is a
flag of up to four commands. This page describes each setting once, with its variable, its key, and its default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Final

from deploy.packages import HOMEPAGE, NAME
from deploy.packages.contents import DOCUMENTS, PROGRAM_FOLDER, SETTINGS, SUMMARY
from deploy.packages.program import Command, Flag, commands
from exporter.config.places import hold_place, ready_place
from exporter.config.schema import SECTIONS, Setting, outbox_path, settings_of
from exporter.config.sources import CONFIG_ENV, CONFIG_FLAG
from exporter.errors import BAD_USAGE, DONE, FAILED

EXIT_CODES: Final = {
    DONE: "Success: the command completed, or was stopped.",
    FAILED: "Failure: the reason is on standard error.",
    BAD_USAGE: "Invalid usage or configuration: all errors are printed, each with its file and key, flag, or variable. "
    "systemd does not restart the unit.",
}
FILES: Final = {
    f"{SETTINGS}/config.toml": "The settings of the packaged unit. Upgrades keep your changes.",
    f"{SETTINGS}/environment": "Optional variables for the unit, one per line.",
    hold_place("linux"): "The hold file of the shipped configuration: while it exists, nothing is approved.",
    ready_place("linux").replace("{event_id}", "EVENT-ID"): "The ready file, which local software creates once it is "
    "prepared, for a rule with require_file. The unit creates the directory.",
    outbox_path("linux"): "The outbox: the state and the undelivered records.",
    f"{PROGRAM_FOLDER}/": "The program with its own Python.",
    f"{DOCUMENTS}/examples/": "Examples: drop-ins for the unit (credentials, permitted addresses) and the handshake.",
}
EXAMPLES: Final = {
    f"{NAME} check {CONFIG_FLAG} {SETTINGS}/config.toml": "Show what the settings mean, or all errors.",
    f"{NAME} check --probe {CONFIG_FLAG} {SETTINGS}/config.toml": "Also test the metadata service and destinations.",
    f"{NAME} tail --outbox {outbox_path('linux')}": "Show the records of the outbox (as root).",
    f"{NAME} demo": "Run a complete demo on this machine, with a simulated Azure.",
    f"touch {hold_place('linux')}": "Stop all approvals, with the shipped configuration.",
}


def page(version: str, day: date) -> str:
    """Return the page in roff's man macros [groff_man(7)]. `day` is the date in its footer."""
    lines = [
        f'.TH {escaped(NAME.upper())} 1 "{day.isoformat()}" "{escaped(NAME)} {version}" "User Commands"',
        ".nh",
        ".SH NAME",
        f"{escaped(NAME)} \\- {escaped(SUMMARY)}",
        ".SH SYNOPSIS",
        f".B {escaped(NAME)}",
        "[\\fB\\-h\\fR] [\\fB\\-\\-version\\fR] \\fICOMMAND\\fR [\\fIOPTION\\fR]...",
        ".SH DESCRIPTION",
        *paragraph(
            "An agent for Azure VMs that watches Scheduled Events: notices of freezes, reboots, redeployments, Spot "
            "evictions, and deletions. It polls the metadata service once a second and publishes every change as "
            "Prometheus metrics, OpenTelemetry logs, and Event Hubs messages from a durable outbox. It approves events "
            "early under strict rules, only with approval.mode = enforce. In every mode, polling switches Scheduled "
            "Events on for the VM."
        ),
        ".SH COMMANDS",
        *(line for command in commands() for line in _command(command)),
        ".SH SETTINGS",
        *paragraph(
            "Each setting is a flag, an environment variable, and a key of the settings file (TOML). Flags take "
            "precedence over variables, those over the standard OTEL_* variables, and those over the file. "
            "Durations are written as in Prometheus: 100ms, 1s, 2m. Sizes have a unit, 100MB (10^6 bytes each) or "
            "100MiB (2^20), or are in bytes. Rules can only be set in the file (approval.rules). Secrets have no flag."
        ),
        *(line for section in SECTIONS for line in _section(section)),
        ".SH ENVIRONMENT",
        *item(CONFIG_ENV, f"The settings file, like {CONFIG_FLAG}. There is no default: without it, no file is read."),
        *item("SCHEDULED_EVENTS_SECTION_KEY", "A setting, named as above."),
        *item(
            "OTEL_EXPORTER_OTLP_*, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES",
            "The standard variables of OpenTelemetry, for the destination of [otlp].",
        ),
        *item("NOTIFY_SOCKET", "The socket for systemd's readiness and watchdog notifications."),
        ".SH FILES",
        *(line for path, text in FILES.items() for line in item(path, text)),
        ".SH EXIT STATUS",
        *(line for code, text in EXIT_CODES.items() for line in item(str(code), text)),
        ".SH SIGNALS",
        *item("SIGTERM, SIGINT", "Stop within 5 s with exit status 0. Undelivered records stay in the outbox."),
        ".SH EXAMPLES",
        *(line for example, text in EXAMPLES.items() for line in item(example, text)),
        ".SH SEE ALSO",
        "\\fBsystemctl\\fR(1), \\fBjournalctl\\fR(1), \\fBsystemd.exec\\fR(5)",
        ".PP",
        f".UR {HOMEPAGE}",
        "the project",
        ".UE",
    ]
    return "\n".join(lines) + "\n"


def _command(command: Command) -> Iterator[str]:
    words = [f"\\fB{escaped(command.name)}\\fR", "[\\fIOPTION\\fR]..."]
    words += [f"\\fI{escaped(flag.value)}\\fR{'...' if flag.repeated else ''}" for flag in command.arguments]
    words += ["\\fIACTION\\fR"] if command.actions else []
    yield ".SS " + " ".join(words)
    yield from paragraph(command.summary[0].upper() + command.summary[1:] + ".")
    for flag in (*command.arguments, *command.flags):
        if not flag.setting and flag.spelling != "--help":
            yield from item(flag.spelling, flag.help, flag)
    for action in command.actions:
        yield from item(action.name, action.summary + ".")
    if command.sections:
        yield ".PP"
        named = "all" if set(command.sections) == set(SECTIONS) else ", ".join(f"[{name}]" for name in command.sections)
        yield from paragraph(f"Settings: {named}.")
    for part in filter(None, command.epilog.strip().split("\n\n")):
        yield ".PP"
        yield from paragraph(part)


def _section(section: str) -> Iterator[str]:
    yield f".SS [{section}]"
    for setting in settings_of(section).values():
        yield from _setting(setting)
    if section == "approval":
        yield from item(
            "rules",
            "Only in the file. Tried in order; the first rule that matches decides. There are two default rules.",
        )


def _setting(setting: Setting) -> Iterator[str]:
    shown = setting.kind.show(setting.default)
    flag = "never a flag" if setting.secret else setting.flag
    yield from item(setting.key, setting.help)
    yield ".br"
    yield from paragraph(f"Default: {shown}. {flag}, {setting.env}")


def item(name: str, text: str, flag: Flag | None = None) -> Iterator[str]:
    """Return a tagged paragraph. With `flag`, the name is followed by the flag's value."""
    yield ".TP"
    value = ""
    if flag is not None and flag.value:
        value = f"\\fI{escaped(flag.value)}\\fR{'...' if flag.repeated else ''}"
        value = f"[{value}]" if flag.optional else value
    yield " ".join(part for part in (f"\\fB{escaped(name)}\\fR" if name else "", value) if part)
    yield from paragraph(text or "See above.")


def paragraph(text: str) -> Iterator[str]:
    """Return running text: one line per sentence, with text in backticks in bold."""
    for sentence in re.split(r"(?<=[.:;]) +(?=[A-Z])", " ".join(text.split())):
        line = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", escaped(sentence))
        yield f"\\&{line}" if line.startswith((".", "'")) else line


def escaped(text: str) -> str:
    """Return text escaped for roff: backslashes, dashes that can be copied, and plain quotes."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("…", "...")
