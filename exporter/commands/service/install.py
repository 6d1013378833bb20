"""`service install`: checks the settings, creates the folder with its access lists, and creates or updates the service.

It never prompts, can be repeated, and keeps settings, outbox, and log, so the Windows Installer can call it too.
If there is no settings file, it writes one that sets a hold file; everything else in that file is a comment.
"""

from __future__ import annotations

import argparse
import contextlib
import ntpath
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from exporter.commands.check.command import validated
from exporter.commands.check.files import exposed_folders
from exporter.commands.check.report import ProbeEnvironment
from exporter.commands.service.environment import DISPLAY_NAME, Service, ServiceEnvironment, usual_service, working_in
from exporter.config.command_line import FlagParser
from exporter.config.load import ConfigError
from exporter.config.schema import Settings, catalogue
from exporter.config.sources import CONFIG_ENV, CONFIG_FLAG, add_flags, given_flags
from exporter.config.types import Text
from exporter.errors import DONE, FAILED
from exporter.secrets import redact
from exporter.text.terminal import print_error, print_wrapped
from exporter.windows import places
from exporter.windows.access import ADDS, ADMINISTRATORS, MODIFY, READ, SYSTEM, TRUSTED_INSTALLER, Ace, closing_commands
from exporter.windows.service_manager import (
    ServiceDefinition,
    ServiceManagerError,
    ServiceState,
    command_line,
    refuse_another,
)

DESCRIPTION: Final = (
    "Exports Azure Scheduled Events as Prometheus metrics, OpenTelemetry logs, and Event Hubs messages."
)
RESTART_AFTER: Final = (1.0, 5.0, 60.0)
RESET_AFTER: Final = 600
"""Seconds without a failure after which the delays of `RESTART_AFTER` start over."""
PRESHUTDOWN_SECONDS: Final = 10.0
"""The agent ends within 5 s."""
PRIVILEGES: Final = ("SeChangeNotifyPrivilege",)
"""To traverse folders, as every user may. In particular not SeImpersonatePrivilege, which services have by default."""

FOLDERS: Final[Mapping[str, int]] = {
    places.LOG_FOLDER: MODIFY,
    places.EVENTS_FOLDER: MODIFY,
    places.HOLD_FOLDER: READ,
    places.READY_FOLDER: READ,
    places.SECRETS_FOLDER: READ,
}
"""Rights of the service in each folder: it writes its log and event files, and only reads the others."""

_INHERITED: Final = 0x10
_SERVICES: Final = "S-1-5-80-"
"""Prefix of the SIDs of services [Service SIDs]."""
_OTEL_SECRETS: Final = {"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_LOGS_HEADERS"}
MOST_FILES: Final = 1_000
"""Maximum number of files in the folder whose owners are checked; the agent keeps fewer than two hundred."""

NOT_INSTALLED_ID: Final = 4
"""Event id of the entry in the Event Log; those of `service run` are in `program`."""


class NotInstalledError(Exception):
    """The folder can't be used; the text has the reason and what to do."""


def install(service: Service, args: argparse.Namespace, environment: ServiceEnvironment) -> int:
    """Run the action.

    Return the exit code. A failure is also written to the Event Log, since the output is not visible if the Windows
    Installer runs the action. Raises `ConfigError`, `ServiceManagerError`.
    """
    try:
        return _install(service, args, environment)
    except (ConfigError, ServiceManagerError) as error:
        _report(service, str(error), environment)
        raise
    except (NotInstalledError, OSError) as error:
        sentence = f"{service.folder}: not usable: {error}"
        _report(service, sentence, environment)
        print_error(sentence)
        return FAILED


def _report(service: Service, reason: str, environment: ServiceEnvironment) -> None:
    environment.report(service.name, NOT_INSTALLED_ID, f"The service was not installed or updated:\n{redact(reason)}")


def _install(service: Service, args: argparse.Namespace, environment: ServiceEnvironment) -> int:
    environ = environment.service_environment(service.name)
    config_file = _config_file(service, args, environ)
    flags = _flags(args)
    settings = _checked(service, flags, config_file, environ)
    _refuse_secrets(flags)
    command = (*environment.command, "service", "run", *_which(service, environment), *flags)
    if config_file:
        command = (*command, f"{CONFIG_FLAG}={config_file}")
    try:
        command_line(command)
    except ValueError as error:
        raise ConfigError((f"flags: {error}; write that setting to the settings file",)) from error
    with environment.open_manager(True) as manager:
        refuse_another(manager, service.name)
        _make_folder(service, Path(settings.outbox.path), environment)
        settings = _checked(service, flags, config_file, environ)  # the settings file may be new
        _take_over(service, Path(settings.outbox.path), environment)
        before = manager.status(service.name)
        for unsupported in manager.define(_definition(service, command)):
            print_error(f"warning: {unsupported}")
    try:
        environment.add_event_source(service.name)
    except OSError as error:
        print_error(f"warning: Event Log source {service.name}: cannot be registered: {error.strerror or error}")
    doubts = (*settings.warnings, *exposed_folders(settings), *_elsewhere(service, settings, environment))
    for warning in (*doubts, *_readable_secrets(environ)):
        print_error(f"warning: {warning}")
    done = "installed" if before is None else "updated"
    settings_from = config_file or "from its environment"
    print_wrapped(f"{service.name}: {done}; settings: {settings_from}; log: {service.log_file}")
    if before is not None and before.state != ServiceState.STOPPED:
        print_wrapped(f"{service.name}: still running with the old definition; stop and start it to apply the new one")
    return DONE


def _which(service: Service, environment: ServiceEnvironment) -> Iterator[str]:
    """Yield the flags that select the service for `service run`.

    The folder is always given, since the variable ProgramData can differ between accounts.
    """
    if service.name != usual_service(environment.environ).name:
        yield f"--name={service.name}"
    yield f"--folder={service.folder}"


def _config_file(service: Service, args: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return the absolute path of the service's settings file; "" if its environment names one.

    The order is: the flag, the environment, the file in its folder.
    """
    given: str | None = vars(args).get("config.file")
    if given:
        return os.path.abspath(given)
    if given is None and environ.get(CONFIG_ENV):
        return ""
    return service.config_file


def _flags(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the given setting flags as words; paths are absolute, since the service has another working directory."""
    words = []
    for setting in catalogue():
        value = given_flags(args).get(setting.name)
        if value and isinstance(setting.kind, Text) and setting.kind.path:
            value = os.path.abspath(value)
        words += [f"{setting.flag}={value}"] if value is not None else []
    return tuple(words)


def _refuse_secrets(flags: Sequence[str]) -> None:
    """Raise `ConfigError` if a flag contains a secret, for example a password in a URL."""
    if secret_flags := [flag.partition("=")[0] for flag in flags if redact(flag) != flag]:
        raise ConfigError(
            tuple(
                f"{name}: contains a secret, and every user of the machine can read the command line of a service; "
                "write it to the settings file"
                for name in secret_flags
            )
        )


def _checked(service: Service, flags: Sequence[str], config_file: str, environ: Mapping[str, str]) -> Settings:
    """Return the settings as the service will read them, validated with the files they name. Raises `ConfigError`."""
    exists = config_file != service.config_file or os.path.exists(config_file)
    words = [*flags, f"{CONFIG_FLAG}={config_file}"] if config_file and exists else list(flags)
    with working_in(service.folder):
        return validated(parsed(words), ProbeEnvironment(environ))


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Parse words as the flags of `run`."""
    parser = FlagParser(prog="service")
    add_flags(parser, environment=False)
    return parser.parse_args(list(words))


# -- the folder


def _make_folder(service: Service, outbox: Path, environment: ServiceEnvironment) -> None:
    """Create what is missing, and set the access lists. Raises OSError, `NotInstalledError`.

    SYSTEM and Administrators have full access; no other user has access. The service may write its data, which is in
    the folder itself, but not its inputs (settings, hold and ready files): their lists inherit nothing.
    """
    trusted = _trusted(environment)
    if os.path.lexists(service.folder):
        _refuse_strangers(service.folder, environment, trusted)
        _refuse_another_use(service, outbox, environment)
    _secure_folder(service.folder, service.sid, MODIFY, environment, trusted)
    for name, rights in FOLDERS.items():
        makers = trusted | {service.sid} if rights == MODIFY else trusted  # it recreates a removed folder
        _secure_folder(os.path.join(service.folder, name), service.sid, rights, environment, makers)
    config = Path(service.config_file)
    if os.path.lexists(config):
        _refuse_strangers(service.config_file, environment, trusted)
    else:
        usual = service.folder == usual_service(environment.environ).folder
        config.write_text(config_template(service.folder, usual=usual), encoding="utf-8")


def _trusted(environment: ServiceEnvironment) -> set[str]:
    return {SYSTEM, ADMINISTRATORS, TRUSTED_INSTALLER, environment.lists.user()}


def _take_over(service: Service, outbox: Path, environment: ServiceEnvironment) -> None:
    """Reject files of other accounts, whose owners could change their access lists; then give the service its files.

    Checks everything in the folder, once its list stops other accounts from creating files there. Accounts to which an
    administrator gave access to a subfolder may own files in it, for example ready files. Raises OSError,
    `NotInstalledError`.
    """
    seen, trusted = 0, _trusted(environment)
    for folder, folders, files in os.walk(service.folder, onerror=_raised):
        entries = environment.lists.read(folder).entries or ()
        makers = trusted | {entry.sid for entry in entries if entry.mask & ADDS and not entry.type}
        for name in (*folders, *files):
            seen += 1
            if seen > MOST_FILES:
                raise NotInstalledError(
                    f"it contains more than {MOST_FILES} files; remove those that are not the agent's"
                )
            _refuse_strangers(os.path.join(folder, name), environment, makers)
    environment.lists.protect_file(service.config_file, [(service.sid, READ)])
    if outbox.parent == Path(service.folder):
        for file in outbox.parent.glob(f"{outbox.name}*"):  # of an agent that an administrator ran
            environment.lists.protect_file(str(file), [(service.sid, MODIFY)])


def _raised(error: OSError) -> NoReturn:
    raise error


def _secure_folder(path: str, sid: str, rights: int, environment: ServiceEnvironment, trusted: set[str]) -> None:
    """Create the folder, or protect it unless it has an entry for the service: then an administrator's changes stay."""
    lists = environment.lists
    try:
        lists.make_folder(path)
    except FileExistsError:
        _refuse_strangers(path, environment, trusted)
        if any(entry.sid == sid and not entry.flags & _INHERITED for entry in lists.read(path).entries or ()):
            return
    lists.protect_folder(path, [(sid, rights)])


def _refuse_strangers(path: str, environment: ServiceEnvironment, trusted: set[str]) -> None:
    """Raise `NotInstalledError` for a link, and for an owner that isn't trusted: any user can write to ProgramData."""
    if places.is_link(path):  # changes would apply to its target, in the worst case to a folder of Windows
        raise NotInstalledError(f"{path} is a link; remove it, or set --folder to its target")
    owner = environment.lists.read(path).owner
    if owner not in trusted:
        raise NotInstalledError(
            f"{path} belongs to {owner}, which is not an administrator; inspect it, then remove it, or take ownership "
            f'with `takeown /A /F "{path}"`, then `icacls "{path}" /reset`'
        )


def _refuse_another_use(service: Service, outbox: Path, environment: ServiceEnvironment) -> None:
    """Raise `NotInstalledError` for a folder that is used for something else: its new list would remove that access."""
    own = [entry for entry in environment.lists.read(service.folder).entries or () if not entry.flags & _INHERITED]
    if any(entry.sid == service.sid for entry in own):
        return
    if _of_another_service(own, service):
        raise NotInstalledError("it is the folder of another service; set --folder to a separate folder")
    if service.folder == usual_service(environment.environ).folder:
        return
    known = {os.path.basename(service.config_file), *FOLDERS}
    for name in sorted(os.listdir(service.folder)):
        if name not in known and not name.startswith(outbox.name):
            raise NotInstalledError(
                f"it contains {name}; set --folder to a folder that is new, empty, or already used by this service"
            )


def _of_another_service(entries: Iterable[Ace], service: Service) -> bool:
    sids = {entry.sid for entry in entries} - {service.sid, TRUSTED_INSTALLER}
    return any(sid.startswith(_SERVICES) for sid in sids)


# -- the service


def _definition(service: Service, command: tuple[str, ...]) -> ServiceDefinition:
    """Return the definition: started with the machine, without delay.

    The event that caused a restart is still `Started` then, and the next one can be announced at once.
    """
    return ServiceDefinition(
        name=service.name,
        display_name=DISPLAY_NAME if service.name == usual_service({}).name else f"{DISPLAY_NAME} ({service.name})",
        description=DESCRIPTION,
        account=service.account,
        command=command,
        restart_after=RESTART_AFTER,
        reset_after=RESET_AFTER,
        preshutdown=PRESHUTDOWN_SECONDS,
        privileges=PRIVILEGES,
    )


def _elsewhere(service: Service, settings: Settings, environment: ServiceEnvironment) -> Iterator[str]:
    """Yield a warning for each path outside the folder that the service writes to, but has no right to yet."""
    for name, path, folder in (
        ("outbox.path", settings.outbox.path, os.path.dirname(settings.outbox.path)),
        ("recording.path", settings.recording.path, os.path.dirname(settings.recording.path)),
        ("event_files.path", settings.event_files.path, settings.event_files.path),
    ):
        if not path or Path(path).is_relative_to(service.folder):
            continue
        entries: Sequence[Ace] = ()
        with contextlib.suppress(OSError):  # it may be missing
            entries = environment.lists.read(folder).entries or ()
        usual = usual_service(environment.environ).folder
        if _of_another_service(entries, service) or Path(path).is_relative_to(usual):
            yield f"{name}: in the folder of another service; set it to a path in {service.folder}"
        elif not any(entry.sid == service.sid and entry.mask & MODIFY == MODIFY for entry in entries):
            commands = closing_commands(folder, MODIFY, folder=True, accounts=[service.sid])
            yield (
                f"{name}: outside {service.folder}; set it to a path there, or give only the service write access to "
                f"{folder} with {commands}"
            )


def _readable_secrets(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each secret in a variable, which every user can read."""
    secrets = {setting.env for setting in catalogue() if setting.secret} | _OTEL_SECRETS
    for name in sorted(name for name in secrets if environ.get(name)):
        yield f"{name}: every user of this machine can read this variable; write the secret to the settings file"


_TEMPLATE: Final = """\
# Settings of azure-scheduled-events-exporter. After a change, run `service stop` and `service start`.
# Settings that are not set here have their defaults. To find errors, run `check --config.file` with this file's path.
# Write paths in 'single quotes': in "double quotes", TOML reads \\ as an escape. Relative paths start at this folder.

[approval]
# mode = "dry-run"                 # off | dry-run | enforce: only enforce sends approvals
hold_file = '{hold}'  # while this file exists, nothing is approved

# [otlp]
# endpoint = "http://collector.example:4318"

# [event_hubs]                     # only administrators and the service can read a file in this folder
# connection_string_file = '{secret}'
# event_hub = "scheduled-events"

# [web]
# listen_address = "0.0.0.0:10169"

{outbox}
# [log]
# level = "info"                   # debug | info | warn | error

# [event_files]                    # a file for each event of this VM; give local software access to the folder
# path = '{events}'

# A rule that waits until local software creates a ready file in {ready}:
# [[approval.rules]]
# name = "prepared"
# event_source = ["Platform"]
# event_type = ["Reboot", "Redeploy"]
# require_file = '{require}'
"""


def config_template(folder: str, *, usual: bool) -> str:
    """Return the settings file of a service with this folder. If it isn't the `usual` folder, it sets `outbox.path`."""
    path = ntpath.join(folder, places.OUTBOX_FILE)
    mark = "# " if usual else ""
    ready = ntpath.join(folder, places.READY_FOLDER)
    return _TEMPLATE.format(
        hold=ntpath.join(folder, places.HOLD_FOLDER, "hold"),
        secret=ntpath.join(folder, places.SECRETS_FOLDER, "event-hubs"),
        outbox=f"{mark}[outbox]\n{mark}path = '{path}'\n",
        events=ntpath.join(folder, places.EVENTS_FOLDER),
        ready=ready,
        require=ntpath.join(ready, "{event_id}"),
    )
