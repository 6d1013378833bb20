"""`service`: installs, removes, starts and stops the agent as a Windows service, and runs it for Windows."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from exporter.commands.service.world import Service, World, named_service, usual_service
from exporter.config.command_line import FlagParser
from exporter.config.sources import add_flags
from exporter.errors import BAD_USAGE, FAILED
from exporter.text.terminal import complain
from exporter.windows.places import is_on_a_drive, is_own_name
from exporter.windows.service_manager import ServiceManagerError

NOT_WINDOWS: Final = (
    "`service` is for Windows: on Linux the agent is a systemd unit, see deploy/systemd, or started with `run`"
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_GIVEN_FOLDER: Final = re.compile(r' (?:"--folder=([^"]*)"|--folder=(\S+))')
"""In the command line of an installed service."""
_UNQUOTED: Final = re.compile(r"[^'%\x00-\x1f\x7f]{1,200}")
"""A folder's path as it can be written between single quotes and in the command line of a service. Windows' own bound
for a folder is 247 characters, and there are names to follow."""
_EXPECTED_FOLDER: Final = (
    "expected a folder on a drive, such as C:\\ProgramData\\azse-2, of at most 200 characters: no device such as NUL, "
    "no dot or space at the end of a name, no 8.3 name, none of : * ? \" < > | ' %"
)


_ACTIONS: Final[Mapping[str, str]] = {
    "install": "make the service and its folder, or update them; the flags are those of run, and are kept",
    "remove": "stop and remove the service; its settings, outbox and log stay",
    "start": "start the service and wait until it runs, or say why it does not",
    "stop": "stop the service and wait until it has stopped",
    "run": "what the service manager starts; in a terminal use the command run",
}


def _act(action: str, service: Service, args: argparse.Namespace, world: World) -> int:
    """Run the action, with the imports that it needs: the service manager waits only so long for `run` to answer."""
    if action == "run":
        from exporter.commands.service.program import run_service  # noqa: PLC0415  # see above

        return run_service(service, args, world)
    from exporter.commands.service import control, install  # noqa: PLC0415  # see above

    actions = {"install": install.install, "remove": control.remove, "start": control.start, "stop": control.stop}
    return actions[action](service, args, world)


def add_arguments(parser: FlagParser) -> None:
    """Add the actions of `service`, with their flags."""
    parser.takes("ACTION [OPTIONS]")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, prog=parser.prog)
    for name, summary in _ACTIONS.items():
        subparser = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        subparser.set_defaults(action=name)
        group = subparser.add_argument_group("which service")
        group.add_argument(
            "--name", metavar="NAME", type=_name, help="Name of the service, for a second one beside the usual."
        )
        group.add_argument(
            "--folder",
            metavar="FOLDER",
            type=_folder,
            help="Folder of its settings, outbox and log; by default that of the installed service, or the one of its "
            "name below %%ProgramData%%.",
        )
        if name in ("install", "run"):
            add_flags(subparser, environment=False)


def service(args: argparse.Namespace, world: World | None = None) -> int:
    """Run the command. Returns the exit code; raises `ConfigError` where settings are wrong."""
    world = world or World()
    if world.platform != "win32":
        complain(NOT_WINDOWS)
        return BAD_USAGE
    _open_streams()
    chosen = named_service(args.name, world.environ) if args.name else usual_service(world.environ)
    try:
        folder = args.folder or (_installed_folder(chosen.name, world) if args.action != "run" else "")
        chosen = replace(chosen, folder=folder or chosen.folder)
        if not is_own_name(chosen.folder) or not _UNQUOTED.fullmatch(chosen.folder):
            complain(f"{chosen.folder}: {_EXPECTED_FOLDER}; give another by --folder")
            return BAD_USAGE
        return _act(args.action, chosen, args, world)
    except ServiceManagerError as error:
        complain(str(error))
        return FAILED


def _installed_folder(name: str, world: World) -> str:
    """The folder that the service was installed with; "" for none. Raises `ServiceManagerError`."""
    with world.open_manager(False) as manager:
        found = _GIVEN_FOLDER.search(manager.command(name)) if manager.status(name) is not None else None
    return (found[1] or found[2]) if found else ""


def _open_streams() -> None:
    """A service, a program without a console and the Windows Installer have no standard streams: what is printed then
    goes nowhere instead of failing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # until the process ends


def _name(text: str) -> str:
    """A service's name that needs no quoting anywhere."""
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError("expected letters, digits, dots, dashes and underscores, at most 80 of them")
    return text


def _folder(text: str, platform: str = sys.platform) -> str:
    """A folder on a drive, since the outbox can't be on a share; elsewhere, where tests run, any absolute path."""
    if not (is_on_a_drive(text) if platform == "win32" else os.path.isabs(text)):
        raise argparse.ArgumentTypeError(_EXPECTED_FOLDER)
    return os.path.normpath(text)
