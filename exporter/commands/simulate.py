"""The command `simulate`: runs the simulated metadata service for any client."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from exporter.commands.stops import interrupted_on_stop
from exporter.config.command_line import add_format, listen_argument
from exporter.config.types import path_argument, word_argument
from exporter.core.records import timestamp
from exporter.errors import BAD_USAGE, DONE, FAILED
from exporter.simulator.faults import FaultError
from exporter.simulator.metadata import faults, scenario
from exporter.simulator.metadata.platform import FASTEST, SLOWEST, Change, utc
from exporter.simulator.metadata.scenario import Scenario, ScenarioError
from exporter.simulator.metadata.service import MetadataService, ReceivedPost
from exporter.text.terminal import print_error, print_line, print_wrapped
from exporter.text.values import describe

_LOOPBACK = "127.0.0.1"
_PORT = 8169
_LAST_PORT = 65535
_LONGEST_WAIT = 0.5  # seconds
_FAULT = "[events/|instance/|all/]NAME[:ARG][*COUNT]"
_NAME_WIDTH = 32
_LIST_HANG = _NAME_WIDTH + 3
_HANG = 12
"""Indent of continuation lines: the column after the time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `simulate`."""
    played = parser.add_argument_group("scenario")
    add_play(played)
    played.add_argument(
        "--vm",
        metavar="NAME",
        type=word_argument,
        action="append",
        help="VM of the scenario to serve. Repeat for more VMs: each is served on the next port (with port 0, on any "
        "free port), and all see and approve the same events. Default: the scenario's first VM.",
    )
    played.add_argument(
        "--fault",
        metavar="FAULT",
        type=word_argument,
        action="append",
        default=[],
        help=f"Fault to inject: {_FAULT}. ARG is a number or a time, for example 500ms (without a unit: seconds). "
        "COUNT limits how often the fault occurs. May be repeated. --list shows all faults.",
    )
    ending = played.add_mutually_exclusive_group()
    ending.add_argument("--repeat", action="store_true", help="Restart the scenario when it ends.")
    ending.add_argument("--end", action="store_true", help="Exit when the scenario ends. Default: keep serving.")
    parser.add_argument_group("network").add_argument(
        "--listen",
        metavar="ADDRESS",
        type=listen_argument,
        default=(_LOOPBACK, _PORT),
        help=f"Address to listen on; port 0 means any free port. Default: {_LOOPBACK}:{_PORT}.",
    )
    output = parser.add_argument_group("output")
    add_format(output)
    output.add_argument("--list", action="store_true", help="List the scenarios and faults, then exit.")


def add_play(played: argparse._ArgumentGroup) -> None:
    """Declare the flags that select the scenario; `demo` has them too."""
    played.add_argument(
        "--scenario",
        metavar="NAME",
        type=path_argument,
        default="demo",
        help="Built-in scenario (see `simulate --list`) or a file. Default: demo.",
    )
    played.add_argument("--speed", metavar="N", type=speed, default=1.0, help="Speed factor. Default: 1.")


def simulate(args: argparse.Namespace) -> int:
    """Run the command until it's interrupted or, with --end, until the scenario ends.

    Return the exit code.
    """
    shown = Output(args.format == "json")
    if args.list:
        shown.list()
        return DONE
    with interrupted_on_stop(), ExitStack() as stack:
        try:
            chosen = scenario.load(args.scenario)
            running = services(args, chosen, stack)
        except (ScenarioError, FaultError) as error:
            print_error(str(error))
            return BAD_USAGE
        except OSError as error:
            print_error(str(error))
            return FAILED
        try:
            for service in running:
                service.start()
            _print_play(running, chosen, args, shown)
        except KeyboardInterrupt:
            shown.line("stopped", "stopped")
    return DONE


def services(args: argparse.Namespace, played: Scenario, stack: ExitStack) -> list[MetadataService]:
    """Return one service per VM, on consecutive ports and with one shared platform.

    The services aren't started; `stack` closes them. Raises OSError with the address, and the errors of
    `MetadataService` for an unknown VM or fault.
    """
    made: list[MetadataService] = []
    host, first = args.listen[0] or _LOOPBACK, args.listen[1]
    for index, vm in enumerate(args.vm or [None]):
        port = first + index if first else 0
        platform = made[0].platform if made else None
        try:
            if port > _LAST_PORT:
                raise OSError(f"the highest port is {_LAST_PORT}")
            service = MetadataService(
                played,
                host=host,
                port=port,
                speed=args.speed,
                vm=vm,
                faults=args.fault,
                repeat=args.repeat,
                platform=platform,
            )
        except OSError as error:
            raise OSError(f"--listen {host}:{port}: {error.strerror or error}") from error
        stack.callback(service.close)
        made.append(service)
    return made


def _print_play(running: Sequence[MetadataService], played: Scenario, args: argparse.Namespace, shown: Output) -> None:
    """Print a line for each change of the document and for each POST, until the scenario ends (with --end)."""
    first = running[0]
    shown.began(running, played, args.speed)
    printed_until, printed_posts = datetime.min.replace(tzinfo=UTC), dict.fromkeys(running, 0)
    last: Change | None = None
    while True:
        now = utc(time.time())
        for service in running:
            for post in list(service.posts)[printed_posts[service] :]:
                printed_posts[service] += 1
                shown.post(post, service.vm.name, named=len(running) > 1)
        for change in first.platform.changes(printed_until, now):
            shown.change(change, last)
            last = change
        printed_until = now
        if args.end and first.finished():
            return
        due = first.platform.next_change(now) or now + timedelta(seconds=_LONGEST_WAIT)
        timeout = min(_LONGEST_WAIT, max(0.0, (due - utc(time.time())).total_seconds()))
        first.wait_until(lambda: any(len(service.posts) > printed_posts[service] for service in running), timeout)


class Output(Struct, frozen=True):
    """The output, as human-readable lines or as JSON: one object per line, whose `kind` is the type of the line."""

    as_json: bool

    def line(self, kind: str, text: str, hang: int = _HANG, **fields: object) -> None:
        """Print the text, or with JSON the fields. A heading has an empty `kind` and is left out of JSON."""
        if not self.as_json:
            print_wrapped(text, hang=hang)
        elif kind:
            print_line(json.dumps({"kind": kind, **fields}, ensure_ascii=False, separators=(",", ":")))

    def began(self, running: Sequence[MetadataService], played: Scenario, speed: float) -> None:
        """Print the address of each VM's service, and the scenario."""
        names = [service.vm.name for service in running]
        for service, name in zip(running, names, strict=True):
            shown_as = f" as {name}" if len(running) > 1 else ""
            self.line("listening", f"listening on {service.url}{shown_as}", url=service.url, vm=name)
        text = f"scenario {played.name} as {', '.join(names)}, speed {speed:g}: {played.description}"
        self.line("scenario", text, name=played.name, vms=names, speed=speed, description=played.description)

    def post(self, post: ReceivedPost, vm: str, *, named: bool) -> None:
        """Print a POST to the service of `vm`. With `named` the human-readable line has the VM's name."""
        at, by = utc(post.time), f" by {vm}" if named else ""
        ids = ", ".join(post.event_ids) or "a malformed body"
        text = f"{_clock(at)} POST{by} for {ids}: {post.status or 'no response'}"
        self.line("post", text, time=timestamp(at), vm=vm, event_ids=list(post.event_ids), status=post.status or None)

    def change(self, change: Change, last: Change | None) -> None:
        """Print how the document differs from the last one (None: no earlier document)."""
        document = None if change.silent else change.document()
        text = f"{_clock(change.at)} {_described(change, last)}"
        self.line("document", text, time=timestamp(change.at), document=document)

    def list(self) -> None:
        """Print all scenarios and faults."""
        self.line("", "scenarios (--scenario NAME; you can also give a file):")
        for name in scenario.names():
            does = scenario.load(name).description
            self.line("scenario", f"  {name:<{_NAME_WIDTH}} {does}", _LIST_HANG, name=name, description=does)
        self.line("", "")
        self.line("", f"faults (--fault {_FAULT}):")
        for name, kind in faults.KINDS.items():
            shown = name if kind.argument is None else f"{name}:{kind.argument:g}"
            text = f"  {shown:<{_NAME_WIDTH}} {kind.does}"
            self.line("fault", text, _LIST_HANG, name=name, argument=kind.argument, description=kind.does)


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}.{at.microsecond // 100_000}Z"


def _described(change: Change, last: Change | None) -> str:
    """Return the differences between two changes on one line."""
    if change.silent:
        return "switched off: no responses"
    before = last.events if last else ()
    parts = [_event(event) for event in change.events if event not in before]
    parts += [f"{gone['EventId']} {gone['EventType']} removed" for gone in before if not change.knows(gone["EventId"])]
    return f"incarnation {change.incarnation}: {'; '.join(parts) or 'no events'}"


def _event(event: Mapping[str, Any]) -> str:
    due = f", not before {event['NotBefore']}" if event["NotBefore"] else ""
    resources = event["Resources"]
    names = ", ".join(map(str, resources)) if isinstance(resources, list) else repr(resources)
    what = f"{event['EventType']} {event['EventStatus']} for {names} by {event['EventSource']}"
    return f"{event['EventId']} {what}, {event['DurationInSeconds']} s{due}"


def speed(text: str) -> float:
    """Return the speed factor of a scenario. Raises `argparse.ArgumentTypeError`."""
    try:
        times = float(text)
    except ValueError:
        times = 0.0
    if not SLOWEST <= times <= FASTEST:
        raise argparse.ArgumentTypeError(f"expected a number from {SLOWEST} to {FASTEST:.0f}, found {describe(text)}")
    return times
