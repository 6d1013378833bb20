"""The manual page azure-scheduled-events-exporter(1), made of the parsers and of the catalogue of settings.

Not by help2man or argparse-manpage: the program gives only the command that was called its flags, and a setting is a
flag of up to four commands. Here each is told once, with its variable, its key in the file and its default.
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
    DONE: "Done: the command did what it was asked for, or was asked to end.",
    FAILED: "Failed: standard error says why.",
    BAD_USAGE: "Bad usage or bad configuration: all errors are told at once, each with its file and key, flag or "
    "variable. The unit is not restarted after it.",
}
FILES: Final = {
    f"{SETTINGS}/config.toml": "The settings that the packages' unit reads. An upgrade keeps what was changed in it.",
    f"{SETTINGS}/environment": "Variables for the unit, one on a line. It need not be there.",
    hold_place("linux"): "While it is there, nothing is approved: the hold file of the shipped configuration.",
    ready_place("linux").replace("{event_id}", "EVENT-ID"): "What local software makes once it is prepared, for a rule "
    "with require_file. The unit makes the folder.",
    outbox_path("linux"): "The state, and all records that were not delivered yet.",
    f"{PROGRAM_FOLDER}/": "The program with its own Python.",
    f"{DOCUMENTS}/examples/": "Drop-ins for the unit: a connection string as a credential, and limited addresses.",
}
EXAMPLES: Final = {
    f"{NAME} check {CONFIG_FLAG} {SETTINGS}/config.toml": "What the settings mean, or all that is wrong with them.",
    f"{NAME} check --probe {CONFIG_FLAG} {SETTINGS}/config.toml": "Also try the metadata service and each destination.",
    f"{NAME} tail --outbox {outbox_path('linux')}": "What happened so far, as root.",
    f"{NAME} demo": "All of it on this machine, with a simulated metadata service.",
    f"touch {hold_place('linux')}": "Hold everything, with the shipped configuration.",
}


def page(version: str, day: date) -> str:
    """The page in roff's man macros [groff_man(7)]. `day` is the date in its footer."""
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
            "An agent that tells operators what Azure is about to do to their VM. It polls Scheduled Events once a "
            "second, publishes every change as Prometheus metrics, OpenTelemetry logs and Event Hubs messages out of a "
            "durable outbox, and approves events under a conservative set of rules: only with approval.mode = enforce "
            "is anything ever sent to Azure but the polls."
        ),
        ".SH COMMANDS",
        *(line for command in commands() for line in _command(command)),
        ".SH SETTINGS",
        *paragraph(
            "Each is a flag, a variable and a key of the settings file, TOML. A flag beats the variable, that beats "
            "the standard OTEL_* variables, those beat the file. Durations are written as Prometheus writes them: "
            "100ms, 1s, 2m; sizes with a unit, 100MB (10^6 bytes each) or 100MiB (2^20), or as bytes. "
            "Rules are a list in the file alone, approval.rules; secrets are never a flag."
        ),
        *(line for section in SECTIONS for line in _section(section)),
        ".SH ENVIRONMENT",
        *item(CONFIG_ENV, f"The settings file, as {CONFIG_FLAG}."),
        *item("SCHEDULED_EVENTS_SECTION_KEY", "A setting, as named above."),
        *item(
            "OTEL_EXPORTER_OTLP_*, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES",
            "The standard variables of OpenTelemetry, for the destination of [otlp].",
        ),
        *item("NOTIFY_SOCKET", "Where systemd is told that the agent is ready, and that it is alive."),
        ".SH FILES",
        *(line for path, text in FILES.items() for line in item(path, text)),
        ".SH EXIT STATUS",
        *(line for code, text in EXIT_CODES.items() for line in item(str(code), text)),
        ".SH SIGNALS",
        *item("SIGTERM, SIGINT", "End within 5 s, with exit status 0; what was not delivered stays in the outbox."),
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
            "rules", "In the settings file alone: tried in order, the first match approves. By default two rules."
        )


def _setting(setting: Setting) -> Iterator[str]:
    shown = setting.kind.show(setting.default)
    flag = "never a flag" if setting.secret else setting.flag
    yield from item(setting.key, setting.help)
    yield ".br"
    yield from paragraph(f"Default: {shown}. {flag}, {setting.env}")


def item(name: str, text: str, flag: Flag | None = None) -> Iterator[str]:
    """A tagged paragraph. With `flag`, its value stands behind the name."""
    yield ".TP"
    value = ""
    if flag is not None and flag.value:
        value = f"\\fI{escaped(flag.value)}\\fR{'...' if flag.repeated else ''}"
        value = f"[{value}]" if flag.optional else value
    yield " ".join(part for part in (f"\\fB{escaped(name)}\\fR" if name else "", value) if part)
    yield from paragraph(text or "See above.")


def paragraph(text: str) -> Iterator[str]:
    """Running text: one line per sentence, what stood in backticks bold."""
    for sentence in re.split(r"(?<=[.:;]) +(?=[A-Z])", " ".join(text.split())):
        line = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", escaped(sentence))
        yield f"\\&{line}" if line.startswith((".", "'")) else line


def escaped(text: str) -> str:
    """Text as roff shows it: a backslash, a dash that can be copied, and no ligature of quotes."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("…", "...")
