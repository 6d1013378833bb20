"""The command `replay`: its flags, and the output as timeline and table or as JSON lines.

The documents go through the same core as in the agent. Nothing is sent and no file is written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, BinaryIO, Final, TextIO

from exporter.agent.files import check_files
from exporter.commands.replay.engine import FileCheck, Options, ReplayEngine
from exporter.commands.replay.entries import read_time
from exporter.commands.replay.inputs import Input, InputError, read_input
from exporter.commands.replay.plans import ReplayPlan, replay_plans, scenario_plan
from exporter.commands.replay.table import as_values, table
from exporter.config.load import load
from exporter.config.schema import Settings
from exporter.config.sources import add_flags, environ_of
from exporter.config.types import path_argument, word_argument
from exporter.core.folding import folded
from exporter.core.policy import Policy, Presence
from exporter.core.records import Record
from exporter.exit_codes import DONE, FAILED
from exporter.secrets import redact
from exporter.simulator.metadata.platform import Approval
from exporter.text.format import clean, counted
from exporter.text.terminal import complain, say, supports_colour
from exporter.text.timeline import record_lines
from exporter.text.values import describe

SECTIONS: Final = ("source", "approval", "records")
NAMES_SHOWN: Final = 20
LONGEST_NAMES: Final = 500
ASSUMPTIONS: Final[Mapping[str, str]] = {
    "ready": "every require_file is taken to be there, and the hold_file not",
    "present": "every file that the policy asks for is taken to be there",
    "absent": "no file that the policy asks for is taken to be there",
    "look": "the files that the policy asks for were looked at on this machine, now",
}
EPILOG: Final = """\
An input is a recording ([recorder] path), one document as the metadata service gives it, several in a row or as JSON
lines, also with the time beside them ({"time": "2026-03-02T09:00:00Z", "document": {...}}), or a scenario of `simulate`
(its name, or a file). Inputs are one story in the order given, the files of a recording in the order of their times,
and each scenario is a story of its own.

Approvals, interruptions and the VM's name are taken from a recording as they happened; decisions are made anew, by the
rules given now. Exit code 0: all inputs could be read, if not every line of them (document.rejected names those);
1: an input could not be read, or holds no document; 2: bad usage or settings.

--json prints one JSON object a line: the records as CloudEvents, and for each story a last one with the key
"decisions": for each event its moments, each with verdict, reason, rule, `rules` (each rule tried, `outcome` matches,
differs or unreadable) and `conditions` (what else was asked, with the hold `reason` where it was not `met`).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `replay`."""
    parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, max_help_position=8)
    parser.epilog = EPILOG
    parser.add_argument(
        "files", metavar="FILE", nargs="+", type=path_argument, help="What to replay; - for standard input."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON lines instead of timeline and table.")
    parser.add_argument(
        "--vm-name",
        metavar="NAME",
        type=word_argument,
        default="",
        help="Decide as this VM, whatever the settings and the recording say.",
    )
    parser.add_argument(
        "--start",
        metavar="TIME",
        type=_start,
        help="When the first document without a time was read, or a scenario began (RFC 3339). Default: the last "
        "document is read now, or all as early as Azure would have announced the first start.",
    )
    parser.add_argument(
        "--assume-files",
        choices=tuple(ASSUMPTIONS),
        default="ready",
        help="What require_file and hold_file of the policy are taken to be. Default: ready (prepared, not held).",
    )
    add_flags(parser, sections=SECTIONS)


def _start(text: str) -> datetime:
    moment = read_time(text)
    if moment is None:
        raise argparse.ArgumentTypeError(f"expected a time such as 2026-03-02T09:00:00Z, found {describe(text)}")
    return moment


def replay(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    settings = load(args, environ_of(os.environ, SECTIONS))
    standard_input = None if sys.stdin is None else sys.stdin.buffer
    return _replay(args, settings, standard_input, sys.stdout, datetime.now(UTC))


def _replay(
    args: argparse.Namespace, settings: Settings, standard_input: BinaryIO | None, out: TextIO, now: datetime
) -> int:
    inputs: list[Input] = []
    failed = False
    for name in args.files:
        try:
            inputs.append(read_input(name, standard_input))
        except InputError as error:
            failed = True
            complain(clean(redact(str(error)), LONGEST_NAMES))
    documents = 0
    for plan in replay_plans(inputs, settings.source.poll_interval, args.start, now):
        documents += _replay_plan(plan, args, settings, out)
    if not documents and not failed:
        complain("no document in the input")
    return DONE if documents and not failed else FAILED


def _replay_plan(plan: ReplayPlan, args: argparse.Namespace, settings: Settings, out: TextIO) -> int:
    """Replay one plan and print it. Returns how many documents it had."""
    policy = settings.approval.policy
    options = Options(
        policy,
        settings.source.poll_interval,
        _file_check(args.assume_files, policy, check_files),
        args.vm_name,
        settings.source.vm_name,
        settings.records.scope == "all",
    )
    plan = _with_approvals(plan, options, args.start)
    engine = ReplayEngine(plan, options)
    notes = [*plan.notes, *_about_files(policy, args.assume_files)]
    output = _AsJson(out, notes) if args.json else _AsText(out, notes, supports_colour(out, os.environ))
    output.begin(plan, engine, policy)
    for record in engine.run():
        output.record(record)
    output.end(engine, policy)
    return engine.result.documents


def _file_check(how: str, policy: Policy, check: FileCheck) -> FileCheck:
    """The assumed presence of the policy's files: `ready` (prepared and not held), `present`, `absent`; or `check`."""
    if how == "look":
        return check
    if how == "ready":
        return lambda paths: {p: Presence.ABSENT if p == policy.hold_file else Presence.PRESENT for p in paths}
    assumed = Presence(how)
    return lambda paths: dict.fromkeys(paths, assumed)


def _with_approvals(plan: ReplayPlan, options: Options, start: datetime | None) -> ReplayPlan:
    """The plan with the approvals that it leads to: as each changes the scenario, it is replayed after each of them."""
    sent: dict[str, Approval] = {}
    while plan.scenario is not None:
        engine = ReplayEngine(plan, options)
        for _ in engine.run():
            pass
        due = min((item for item in engine.result.approvals if item[1] not in sent), default=None)
        if due is None:
            break
        sent[due[1]] = Approval(due[1], due[0])
        plan = scenario_plan(plan.scenario, options.poll_interval, start, tuple(sent.values()))
    return plan


def _about_files(policy: Policy, assumed: str) -> list[str]:
    asked = policy.hold_file or any(rule.require_file for rule in policy.rules)
    return [f"{ASSUMPTIONS[assumed]} (--assume-files {assumed})"] if asked else []


def _hints(engine: ReplayEngine) -> list[str]:
    """Which flag would give a more useful result."""
    names = list(engine.result.names)
    if not names or (engine.vm.name and folded(engine.vm.name) in {folded(name) for name in names}):
        return []
    shown = clean(", ".join(names[:NAMES_SHOWN]), LONGEST_NAMES)
    if not engine.vm.name:
        return [f"this VM's name is not known: give --vm-name; the documents name {shown}"]
    return [f"no event names {clean(engine.vm.name, LONGEST_NAMES)}; the documents name {shown} (--vm-name)"]


@dataclass(frozen=True, slots=True)
class _AsText:
    """The timeline, then the table."""

    out: TextIO
    notes: list[str]
    colour: bool

    def _print(self, text: str = "") -> None:
        say(text, self.out, colour=self.colour)

    def begin(self, plan: ReplayPlan, engine: ReplayEngine, policy: Policy) -> None:
        self._print(
            f"As {clean(engine.vm.name, LONGEST_NAMES) or 'an unknown VM'}: {_policy(policy)}. Nothing is sent."
        )
        for note in [plan.title, *self.notes] if plan.title else self.notes:
            self._print(f"({clean(note, LONGEST_NAMES)})")
        self._print()

    def record(self, record: Record) -> None:
        for text in record_lines(record, self.colour):
            self._print(text)

    def end(self, engine: ReplayEngine, policy: Policy) -> None:
        result = engine.result
        self._print()
        self._print(
            f"{counted(result.documents, 'document')}, {counted(len(result.decisions), 'event')}. {_policy(policy)}:"
        )
        for text in table(result, self.colour):
            self._print(text)
        for hint in _hints(engine):
            self._print()
            self._print(f"({hint})")
        self._print()


@dataclass(frozen=True, slots=True)
class _AsJson:
    """One JSON object a line."""

    out: TextIO
    notes: list[str]

    def begin(self, plan: ReplayPlan, engine: ReplayEngine, policy: Policy) -> None:
        pass

    def record(self, record: Record) -> None:
        say(record.to_json().decode(), self.out)

    def end(self, engine: ReplayEngine, policy: Policy) -> None:
        result = engine.result
        last: dict[str, Any] = {
            "decisions": as_values(result, policy),
            "vm_name": engine.vm.name or None,
            "mode": policy.mode.value,
            "coordination": policy.coordination.value,
            "rules": [rule.name for rule in policy.rules],
            "documents": result.documents,
            "rejected": result.rejected,
            "failures": result.failures,
            "notes": [*self.notes, *_hints(engine)],
        }
        say(json.dumps(last, ensure_ascii=False, separators=(",", ":")), self.out)


def _policy(policy: Policy) -> str:
    names = ", ".join(rule.name for rule in policy.rules) or "none"
    return f"mode {policy.mode.value}, coordination {policy.coordination.value}, rules {names}"
