"""The command `replay`: its flags, and the output as timeline and table or as JSON lines.

The documents go through the same core as in the agent. Nothing is sent and no file is written. Without a policy given
now, decisions are those of the policy that the recording holds; with one, both are replayed and compared.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import BinaryIO, Final, TextIO

from msgspec.structs import replace

from exporter.agent.files import check_files
from exporter.commands.replay.decisions import ReplayResult
from exporter.commands.replay.differences import compare
from exporter.commands.replay.engine import FileCheck, ReplayEngine, ReplayOptions
from exporter.commands.replay.entries import Lost, Unreadable
from exporter.commands.replay.inputs import (
    Input,
    InputError,
    ReplayPlan,
    read_input,
    replay_plans,
    scenario_plan,
)
from exporter.commands.replay.output import AsJson, AsText, ReplayReport, is_recorded, notes_on, policies_then
from exporter.config.command_line import FlagParser, add_format
from exporter.config.load import load, load_policy
from exporter.config.schema import Settings
from exporter.config.sources import add_flags, environ_of
from exporter.config.types import path_argument, word_argument
from exporter.core.policy import Mode, Policy, Presence
from exporter.errors import BAD_USAGE, DONE, FAILED
from exporter.secrets import redact
from exporter.simulator.metadata.platform import AcceptedStartRequest
from exporter.simulator.metadata.scenario import ScenarioError
from exporter.text.format import clean, counted, moment
from exporter.text.terminal import print_error

SECTIONS: Final = ("source", "approval", "records")
LONGEST_NAMES: Final = 500
ASSUMPTIONS: Final[Mapping[str, str]] = {
    "found": "the policy's files are as the agent found them; where the recording does not say, every require_file is "
    "taken to be there, and the hold_file not",
    "absent": "no file that the policy asks for is taken to be there",
    "look": "the files that the policy asks for were looked at on this machine, now",
}
GIVEN: Final = (
    "recorded: what was read, sent and observed, and what a decision marks so; assumed: all that is decided, by a "
    "policy that was not in force then, and what a decision marks so"
)
EPILOG: Final = """\
An input is a recording ([recording] path), one document as the metadata service gives it, several in a row or as JSON
lines, also with the time beside them ({"time": "2026-03-02T09:00:00Z", "document": {...}}), or a scenario of `simulate`
(its name, or a file). Inputs are one story in the order given, the files of a recording in the order of their times,
and each scenario is a story of its own.

Approvals, interruptions and the VM's name are taken from a recording as they happened. Decisions are those of the
policy that was in force then, which a recording holds. With an [approval] setting (file, environment, flag) or
--policy they are made by the policy given now, and compared with those of then, event by event. --policy prints the
comparison alone; where no policy is recorded, `then` is the policy of the settings. Modes are not compared: what
dry-run would have approved counts as approved.

Exit code 0: all inputs could be read, if not every line of them (document.rejected names those), whatever differs;
1: an input could not be read, or holds no document; 2: bad usage, settings or policy file.

--format json prints one JSON object a line: the records as CloudEvents, and for each story a last one with the keys
"decisions": for each event its moments, each with verdict, reason, rule, `rules` (each rule tried, `outcome` matches,
differs or unreadable) and `conditions` (what else was asked, with the hold `reason` where it was not `met`);
"then": the policies in force then, each `from` when, whether `recorded`, and `faults` of one that can't be read;
"assumed": the kinds of records that are not as recorded, since a policy decided that was not in force then;
"now": the policy given now with its `file`, "summary": how many events were decided alike, and how many of each kind;
"differences": of each other event the `kind` (approved, held, earlier, later, rule, reason, unknown: what the policy
given now does), a moment for `then` and for `now`, `seconds` by which it is approved later (negative: earlier),
`held` (the decision of the later one that stood when the other approved), `assumed` (later, had nothing been sent and
had the event stayed as it was), and what was really `sent`. Without a policy given now, the last three are null.
"""


def add_arguments(parser: FlagParser) -> None:
    """Declare the flags of `replay`."""
    parser.show_arguments("[OPTIONS] FILE...")
    parser.epilog = EPILOG
    replayed = parser.add_argument_group("what is replayed")
    replayed.add_argument(
        "files", metavar="FILE", nargs="+", type=path_argument, help="What to replay; - for standard input."
    )
    replayed.add_argument(
        "--vm",
        metavar="NAME",
        type=word_argument,
        default="",
        help="Decide as this VM, whatever the settings and the recording say.",
    )
    decided = parser.add_argument_group("by what it is decided")
    decided.add_argument(
        "--policy",
        metavar="FILE",
        type=path_argument,
        help="Compare what was decided with what the [approval] of this settings file decides.",
    )
    decided.add_argument(
        "--assume-files",
        metavar="|".join(ASSUMPTIONS),
        choices=tuple(ASSUMPTIONS),
        default="found",
        help="What require_file and hold_file of the policy are taken to be. Default: found (as the agent found them "
        "then or, where no recording says it, prepared, and not held).",
    )
    add_format(parser.add_argument_group("output"))
    add_flags(parser, sections=SECTIONS)


def replay(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    settings = load(args, environ_of(os.environ, SECTIONS))
    standard_input = None if sys.stdin is None else sys.stdin.buffer
    return _replay(args, settings, standard_input, sys.stdout, datetime.now(UTC))


def _replay(
    args: argparse.Namespace, settings: Settings, standard_input: BinaryIO | None, out: TextIO, now: datetime
) -> int:
    reviewed = load_policy(args.policy) if args.policy is not None else None
    inputs: list[Input] = []
    failed = False
    for name in args.files:
        try:
            inputs.append(read_input(name, standard_input))
        except ScenarioError as error:
            print_error(str(error))
            return BAD_USAGE
        except InputError as error:
            failed = True
            print_error(clean(redact(str(error)), LONGEST_NAMES))
    documents = 0
    plans = replay_plans(inputs, settings.source.poll_interval, now)
    for plan in plans:
        documents += _replay_plan(plan, args, settings, reviewed, out)
    if not documents and not failed:
        print_error("no document in the input")
    return DONE if documents and not failed else FAILED


def _replay_plan(
    plan: ReplayPlan, args: argparse.Namespace, settings: Settings, reviewed: Settings | None, out: TextIO
) -> int:
    """Replay one plan and print it. Returns how many documents it had."""
    then = policies_then(plan, settings.approval.policy)
    use_recorded_policy = is_recorded(then) and reviewed is None and not settings.approval_given
    policy = (reviewed or settings).approval.policy
    options = ReplayOptions(
        policy,
        settings.source.poll_interval,
        _file_check(args.assume_files, policy, check_files),
        args.vm,
        settings.source.vm_name,
        settings.records.scope == "all",
        use_recorded_policy=use_recorded_policy,
        use_recorded_findings=args.assume_files == "found",
    )
    if reviewed is None:
        plan = _with_approvals(plan, options)
    engine = ReplayEngine(plan, options)
    compared = reviewed is not None or (is_recorded(then) and not use_recorded_policy)
    report = ReplayReport(plan, engine, then, None if use_recorded_policy else reviewed or settings, compared)
    report.notes += [
        *plan.notes,
        *_about_review(reviewed),
        *(notes_on(then, compared) if compared or use_recorded_policy else ()),
    ]
    report.notes += [*_about_files(report.policies, args.assume_files), *_about_holes(plan)]
    if compared and reviewed is None:
        report.notes.append(GIVEN)
    output = AsJson(out) if args.format == "json" else AsText(out, alone=reviewed is not None)
    output.begin(report)
    for record in engine.run():
        output.record(report, record)
    comparison = None
    if compared:  # with what was decided then, for which the plan is replayed once more
        before = _replayed(plan, replace(options, policy=settings.approval.policy, use_recorded_policy=True))
        times = [entry.at for entry in plan.entries if not isinstance(entry, Unreadable) and entry.at]
        comparison = compare(before, engine.result, engine.vm.name, times)
    output.end(report, comparison)
    return engine.result.documents


def _replayed(plan: ReplayPlan, options: ReplayOptions) -> ReplayResult:
    engine = ReplayEngine(plan, options)
    for _ in engine.run():
        pass
    return engine.result


def _file_check(how: str, policy: Policy, check: Callable[[Iterable[str]], Mapping[str, Presence]]) -> FileCheck:
    """The presence of a policy's files, as `ASSUMPTIONS` describes each way.

    `policy` is the one given now: only its files are looked at on this machine. What a recording names is of another
    machine, or from anybody.
    """

    def ready(policy: Policy, paths: Iterable[str]) -> dict[str, Presence]:
        return {path: Presence.ABSENT if path == policy.hold_file else Presence.PRESENT for path in paths}

    if how == "absent":
        return lambda _, paths, __: dict.fromkeys(paths, Presence.ABSENT)
    if how == "look":
        return lambda asking, paths, _: check(paths) if asking == policy else ready(asking, paths)
    return lambda asking, paths, found: {
        path: found.get(path, presence) for path, presence in ready(asking, paths).items()
    }


def _with_approvals(plan: ReplayPlan, options: ReplayOptions) -> ReplayPlan:
    """The plan with the approvals that it leads to: as each changes the scenario, it is replayed after each of them."""
    sent: dict[str, AcceptedStartRequest] = {}
    while plan.scenario is not None:
        approved = _replayed(plan, options).approved
        approvals = ((each.at, key) for key, each in approved.items() if each.mode is Mode.ENFORCE)
        at, key = min((item for item in approvals if item[1] not in sent), default=(None, ""))
        if at is None:
            break
        sent[key] = AcceptedStartRequest(key, at)
        plan = scenario_plan(plan.scenario, options.poll_interval, tuple(sent.values()))
    return plan


def _about_review(reviewed: Settings | None) -> list[str]:
    if reviewed is None:
        return []
    silent = [] if reviewed.approval_given else [f"{reviewed.config_file}: no [approval], so that it is the default"]
    return [*silent, *reviewed.warnings]


def _about_holes(plan: ReplayPlan) -> Iterator[str]:
    """Where lines of the recording are missing."""
    for hole in plan.entries:
        if isinstance(hole, Lost):
            lines = counted(hole.lines, "line")
            yield f"{lines} lost by {moment(hole.at)}: what was read and done until then is not all recorded"


def _about_files(policies: Iterable[Policy], assumed: str) -> list[str]:
    asked = any(policy.hold_file or any(rule.require_file for rule in policy.rules) for policy in policies)
    return [f"{ASSUMPTIONS[assumed]} (--assume-files {assumed})"] if asked else []
