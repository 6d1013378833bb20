"""The command `simulate`: the simulated metadata service alone, for any client."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from exporter.commands.stops import interrupted_on_stop
from exporter.config.types import path_argument, word_argument
from exporter.exit_codes import BAD_USAGE, DONE, FAILED
from exporter.simulator.metadata import faults, scenario
from exporter.simulator.metadata.platform import Change, utc
from exporter.simulator.metadata.play import FASTEST, SLOWEST
from exporter.simulator.metadata.service import MetadataService, Post
from exporter.simulator.metadata.story import Scenario, ScenarioError
from exporter.text.terminal import complain, say
from exporter.text.values import InvalidValue, describe, split_address

_LOOPBACK = "127.0.0.1"
_PORT = 8169
_LAST_PORT = 65535
_LONGEST_WAIT = 0.5  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `simulate`."""
    parser.add_argument(
        "--scenario",
        metavar="NAME",
        type=path_argument,
        default="demo",
        help="a shipped scenario (see --list) or a file (demo)",
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        type=listen_argument,
        default=(_LOOPBACK, _PORT),
        help=f"where to answer, port 0 for any free one (127.0.0.1:{_PORT})",
    )
    parser.add_argument("--speed", metavar="N", type=speed, default=1.0, help="play the story N times as fast (1)")
    parser.add_argument(
        "--vm",
        metavar="NAME",
        type=word_argument,
        action="append",
        help="answer as this VM of the scenario (its first); may be repeated: each further VM answers on the next port "
        "(any free one for port 0), and all see and approve the same events",
    )
    parser.add_argument(
        "--fault",
        metavar="FAULT",
        type=word_argument,
        action="append",
        default=[],
        help="fail in this way: [events/|instance/|all/]NAME[:ARG][*COUNT][@START-END], times in seconds; "
        "may be repeated, --list names them",
    )
    ending = parser.add_mutually_exclusive_group()
    ending.add_argument("--repeat", action="store_true", help="begin the story again when it is over")
    ending.add_argument("--end", action="store_true", help="exit when the story is over (else the last document stays)")
    parser.add_argument("--list", action="store_true", help="list the scenarios and the faults, and exit")


def simulate(args: argparse.Namespace) -> int:
    """Run the command until interrupted (or, with --end, until the play is over); its exit code."""
    if args.list:
        _list()
        return DONE
    with interrupted_on_stop(), ExitStack() as stack:
        try:
            chosen = scenario.load(args.scenario)
            running = services(args, chosen, stack)
        except (ScenarioError, faults.FaultError) as error:
            complain(str(error))
            return BAD_USAGE
        except NotListeningError as error:
            complain(str(error))
            return FAILED
        try:
            for service in running:
                service.start()
            _print_play(running, chosen, args)
        except KeyboardInterrupt:
            say("stopped")
    return DONE


class NotListeningError(Exception):
    """An address can't be listened on; the text is a sentence with it."""


def services(args: argparse.Namespace, played: Scenario, stack: ExitStack) -> list[MetadataService]:
    """A service for each VM, on ports in a row, all with one platform; not started, `stack` closes them.

    Raises NotListeningError, and what `MetadataService` raises for an unknown VM or fault.
    """
    made: list[MetadataService] = []
    host, first = args.listen[0] or _LOOPBACK, args.listen[1]
    for index, vm in enumerate(args.vm or [None]):
        port = first + index if first else 0
        platform = made[0].platform if made else None
        try:
            if port > _LAST_PORT:
                raise OSError("there is no such port")
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
            raise NotListeningError(f"--listen {host}:{port}: {error.strerror or error}") from error
        stack.callback(service.close)
        made.append(service)
    return made


def _print_play(running: Sequence[MetadataService], played: Scenario, args: argparse.Namespace) -> None:
    """Print what happens: a line for each change of the document and for each POST."""
    first, several = running[0], len(running) > 1
    for service in running:
        say(f"listening on {service.url}" + (f" as {service.vm.name}" if several else ""))
    names = ", ".join(service.vm.name for service in running)
    say(f"scenario {played.name} as {names}, speed {args.speed:g}: {played.description}")
    printed_until, printed_posts = datetime.min.replace(tzinfo=UTC), dict.fromkeys(running, 0)
    last: Change | None = None
    while True:
        now = utc(time.time())
        for service in running:
            for post in list(service.posts)[printed_posts[service] :]:
                printed_posts[service] += 1
                _print_post(post, service.vm.name if several else "")
        for change in first.platform.changes(printed_until, now):
            _print_line(change.at, _described(change, last))
            last = change
        printed_until = now
        if args.end and first.finished():
            return
        due = first.platform.next_change(now) or now + timedelta(seconds=_LONGEST_WAIT)
        timeout = min(_LONGEST_WAIT, max(0.0, (due - utc(time.time())).total_seconds()))
        first.wait_until(partial(_has_new_posts, printed_posts), timeout)


def _has_new_posts(printed: Mapping[MetadataService, int]) -> bool:
    return any(len(service.posts) > count for service, count in printed.items())


def _print_post(post: Post, vm: str) -> None:
    ids = ", ".join(post.event_ids) or "a malformed body"
    by = f" by {vm}" if vm else ""
    _print_line(utc(post.time), f"POST{by} for {ids}: {post.status or 'no answer'}")


def _described(change: Change, last: Change | None) -> str:
    """What is new in the change, in a line."""
    if change.silent:
        return "switched off: nothing is answered"
    before = last.events if last else ()
    parts = [_event(event) for event in change.events if event not in before]
    parts += [f"{event['EventId']} {event['EventType']} gone" for event in before if not change.knows(event["EventId"])]
    return f"incarnation {change.incarnation}: {'; '.join(parts) or 'no events'}"


def _event(event: Mapping[str, Any]) -> str:
    due = f", not before {event['NotBefore']}" if event["NotBefore"] else ""
    what = f"{event['EventType']} {event['EventStatus']} for {_names(event['Resources'])} by {event['EventSource']}"
    return f"{event['EventId']} {what}, {event['DurationInSeconds']} s{due}"


def _names(resources: object) -> str:
    return ",".join(map(str, resources)) if isinstance(resources, list) else repr(resources)


def _print_line(at: datetime, text: str) -> None:
    say(f"{at:%H:%M:%S}.{at.microsecond // 100_000} {text}")


def _list() -> None:
    say("scenarios (--scenario NAME, or a file of your own):")
    for name in scenario.names():
        say(f"  {name:<32} {scenario.load(name).description}")
    say("")
    say("faults (--fault [events/|instance/|all/]NAME[:ARG][*COUNT][@START-END]):")
    for name, kind in faults.KINDS.items():
        shown = name if kind.argument is None else f"{name}:{kind.argument:g}"
        say(f"  {shown:<32} {kind.does}")


def listen_argument(text: str) -> tuple[str, int]:
    """Host ("" for every address) and port to listen on, from the command line."""
    try:
        return split_address(word_argument(text))
    except InvalidValue as error:
        raise argparse.ArgumentTypeError(f"expected {error}, not {describe(text)}") from error


def speed(text: str) -> float:
    """How many times as fast a scenario is played, from the command line."""
    try:
        times = float(text)
    except ValueError:
        times = 0.0
    if not SLOWEST <= times <= FASTEST:
        raise argparse.ArgumentTypeError(f"expected a number from {SLOWEST} to {FASTEST:.0f}, not {describe(text)}")
    return times
