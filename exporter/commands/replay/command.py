"""The command `replay`: its flags, and the replays that they ask for.

Documents pass through the agent's core. Nothing is sent and no file is written. Without a policy given now, decisions
use the recorded policy; with one, both policies are replayed and compared.
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
    "found": "the policy's files are as recorded; if a file is not recorded, every require_file is assumed to exist, "
    "and the hold_file not",
    "absent": "the policy's files are assumed not to exist",
    "look": "the policy's files were checked on this machine, now",
}
GIVEN: Final = (
    "recorded: documents, approvals sent, observations, and details marked so; assumed: decisions, by a policy that "
    "was not in force then, and details marked so"
)
EPILOG: Final = """\
An input is a recording ([recording] path), a document of the metadata service, several documents in a row or as JSON
lines, also with their time ({"time": "2026-03-02T09:00:00Z", "document": {...}}), or a scenario of `simulate` (its name
or file). Inputs are replayed together in the given order, files of a recording in the order of their times, and each
scenario separately.

Approvals, interruptions, and the VM's name come from the recording. Decisions use the recorded policy. With an
[approval] setting (file, environment, flag) or --policy, they use the policy given now, and are compared with the
decisions then, event by event. --policy prints only the comparison; if no policy is recorded, `then` is the policy of
the settings. Modes are not compared: an approval in dry-run counts as an approval.

Exit code 0: all inputs are readable, except for single lines (recorded as document.rejected), whatever the differences;
1: an input is unreadable, or contains no document; 2: invalid usage, settings, or policy file.

--format json prints one JSON object on each line: the records as CloudEvents, and then for each replay an object with:
"decisions": the `moments` of each event, each with verdict, reason, rule, `rules` (each rule tried, with the `outcome`
matches, differs, or unreadable), and `conditions` (further checks, with the hold `reason` if not `met`);
"then": the policies in force then, each with `from`, `recorded`, and `faults` if it can't be read;
"assumed": the kinds of records that differ from the recording, because another policy decided;
"now": the policy given now with its `file`; "summary": the numbers of equal decisions and of each kind of difference;
"differences": for each other event the `kind` (approved, held, earlier, later, rule, reason, unknown), the decisions
`then` and `now`, `seconds` (the delay of the approval now; negative: earlier), `held` (the decision of the later policy
at the time of the earlier approval), `assumed` (a delay that assumes that no approval was sent and the event stayed
unchanged), and the approvals really `sent`. Without a policy given now, "now", "summary", and "differences" are null.
"""


def add_arguments(parser: FlagParser) -> None:
    """Declare the flags of `replay`."""
    parser.show_arguments("[OPTIONS] FILE...")
    parser.epilog = EPILOG
    replayed = parser.add_argument_group("input")
    replayed.add_argument(
        "files", metavar="FILE", nargs="+", type=path_argument, help="File or scenario to replay; - for standard input."
    )
    replayed.add_argument(
        "--vm",
        metavar="NAME",
        type=word_argument,
        default="",
        help="Decide as this VM. Overrides the name in the settings and in the recording.",
    )
    decided = parser.add_argument_group("decisions")
    decided.add_argument(
        "--policy",
        metavar="FILE",
        type=path_argument,
        help="Compare the decisions then with those of the [approval] section in this settings file.",
    )
    decided.add_argument(
        "--assume-files",
        metavar="|".join(ASSUMPTIONS),
        choices=tuple(ASSUMPTIONS),
        default="found",
        help="Presence of the policy's require_file and hold_file: found (as recorded; if not recorded, require_file "
        "exists and hold_file does not), absent, or look (check them on this machine). Default: found.",
    )
    add_format(parser.add_argument_group("output"))
    add_flags(parser, sections=SECTIONS)


def replay(args: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
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
        print_error("the input contains no document")
    return DONE if documents and not failed else FAILED


def _replay_plan(
    plan: ReplayPlan, args: argparse.Namespace, settings: Settings, reviewed: Settings | None, out: TextIO
) -> int:
    """Replay one plan, print it, and return its number of documents."""
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
    output = AsJson(out) if args.format == "json" else AsText(out, comparison_only=reviewed is not None)
    output.begin(report)
    for record in engine.run():
        output.record(report, record)
    comparison = None
    if compared:  # replay the plan once more with the policy in force then
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
    """Return the check for the presence of a policy's files, by a key of `ASSUMPTIONS`.

    `policy` is the one given now: only its files are checked on this machine. The paths in a recording belong to
    another machine, or can't be trusted.
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
    """Return the plan with its approvals. Each approval changes the scenario, so it is replayed after each one."""
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
    missing = [] if reviewed.approval_given else [f"{reviewed.config_file}: no [approval] section; using the default"]
    return [*missing, *reviewed.warnings]


def _about_holes(plan: ReplayPlan) -> Iterator[str]:
    """Yield a note for each gap of the recording."""
    for hole in plan.entries:
        if isinstance(hole, Lost):
            lines = counted(hole.lines, "line")
            yield f"{lines} lost before {moment(hole.at)}: the recording is incomplete until then"


def _about_files(policies: Iterable[Policy], assumed: str) -> list[str]:
    asked = any(policy.hold_file or any(rule.require_file for rule in policy.rules) for policy in policies)
    return [f"{ASSUMPTIONS[assumed]} (--assume-files {assumed})"] if asked else []
