"""Validates the files that the settings name: they exist, are readable, have valid content, and protect secrets."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import ssl
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from exporter.commands.check.report import ProbeEnvironment
from exporter.config.event_hubs import read_event_hubs
from exporter.config.load import config_path
from exporter.config.otlp import read_otlp, variables
from exporter.config.places import events_place, hold_place, ready_place
from exporter.config.schema import Settings, settings_of
from exporter.config.sources import Picked, Sources, given_flags, read_toml
from exporter.config.types import Text
from exporter.event_files.content import STATUS_NAME
from exporter.files import TooLarge, WrongEncoding, decoded, not_ascii, read_capped, read_trusted
from exporter.text.values import InvalidValue
from exporter.web.config import WebConfig, WebConfigError
from exporter.web.config_file import MAX_BYTES, read_web_file
from exporter.windows import access
from exporter.windows.places import program_data

NO_IDENTITY: Final = (
    "signing in with an Azure identity needs the extra `identity`, which is not installed: run pip install "
    "'azure-scheduled-events-exporter[identity]'"
)
_LONGEST_MARK: Final = 4
"""Bytes at the beginning of a text file that show its encoding."""
_SECRET_KEYS: Final = (("event_hubs", "connection_string"), ("otlp", "headers"))


def is_installed(package: str) -> bool:
    """Return whether the package can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent package isn't installed
        return False


def file_errors(args: argparse.Namespace, environ: Mapping[str, str]) -> list[str]:
    """Return one sentence for each error in a file that the settings name, even if other settings are invalid."""
    sources = _sources(args, environ)
    errors: list[str] = []
    errors += _web_errors(sources)
    errors += _outbox_errors(sources)
    if read_event_hubs(_without_errors(sources), read_trusted).configured:
        errors += _ca_errors(sources.pick(settings_of("event_hubs")["certificate"]))
    if read_otlp(_without_errors(sources)).configured:
        errors += _certificate_errors(sources)
    return errors


def missing_packages(settings: Settings, installed: Callable[[str], bool] = is_installed) -> list[str]:
    """Return one sentence for each missing package. Not an error: the agent may run on another machine."""
    if not settings.event_hubs.fully_qualified_namespace or installed("azure.identity"):
        return []
    return [f"event_hubs.fully_qualified_namespace: {NO_IDENTITY}"]


def _sources(args: argparse.Namespace, environ: Mapping[str, str]) -> Sources:
    """Return the sources of settings. An unreadable settings file counts as empty: `load` reports the error."""
    path, document = "", {}
    with contextlib.suppress(InvalidValue):
        path = config_path(args, environ)
        document = read_toml(path, read_trusted) if path else {}
    return Sources(given_flags(args), environ, document, path)


def _without_errors(sources: Sources) -> Sources:
    """Return the same sources with separate error lists: `load` reports the errors of the settings."""
    return Sources(sources.flags, sources.environ, sources.document, sources.path)


def _web_errors(sources: Sources) -> list[str]:
    path = sources.pick(settings_of("web")["config_file"]).value
    if not path:
        return []
    try:
        WebConfig(Path(path))
    except WebConfigError as error:
        return error.errors
    return []


def _outbox_errors(sources: Sources) -> list[str]:
    """Validate only the path: whether it is writable depends on the machine that runs the agent."""
    picked = sources.pick(settings_of("outbox")["path"])
    if picked.value.endswith(("/", "\\")) or os.path.isdir(picked.value):
        return [f"{picked.origin}: expected the path of a file, found the directory {picked.value}"]
    return []


def _certificate_errors(sources: Sources) -> Iterator[str]:
    """Yield the errors of certificates that would otherwise appear when the first record is sent."""
    settings = settings_of("otlp")
    ca, certificate, key = (
        sources.pick(settings[name], variables(name), Text(optional=True, path=True))
        for name in ("certificate", "client_certificate", "client_key")
    )
    yield from _ca_errors(ca)
    unusable = [(each, reason) for each in (certificate, key) if each.value and (reason := _unusable(each.value))]
    for each, reason in unusable:
        yield f"{each.origin}: {each.value}: {reason}"
    if certificate.value and not unusable:
        yield from _pair_errors(certificate, key.value)


def _ca_errors(picked: Picked) -> Iterator[str]:
    """Yield the error of a destination's CA certificates, if there is one."""
    path = picked.value
    if path and (reason := _unusable(path)):
        yield f"{picked.origin}: {path}: {reason}"
    elif path:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except (ssl.SSLError, OSError):
            yield f"{picked.origin}: {path}: expected CA certificates in PEM, found none"


def _pair_errors(certificate: Picked, key: str) -> Iterator[str]:
    """Yield the error of a client certificate with its key (a path or ""), if there is one."""
    where = f"{certificate.origin}: {certificate.value}"
    try:
        # With a password given, OpenSSL doesn't prompt on the terminal: an encrypted key is an error.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate.value, key or None, password="")
    except ssl.SSLError as error:
        if "MISMATCH" in str(error):
            yield f"{where}: does not match the key in {key or certificate.value}"
        else:
            with_key = f", with its key in {key}" if key else " with its key (or set otlp.client_key)"
            yield f"{where}: expected a certificate in PEM{with_key}, without a password"
    except OSError as error:
        yield f"{where}: cannot be used: {error.strerror}"


def _unusable(path: str) -> str:
    """Return why OpenSSL can't read the PEM file: it's unreadable or not ASCII; "" if it can."""
    try:
        with open(path, "rb") as file:
            return not_ascii(file.read(_LONGEST_MARK))
    except OSError as error:
        return f"cannot be read: {error.strerror or 'not a usable path'}"
    except ValueError:
        return "cannot be read: not a usable path"


def readable_secrets(settings: Settings, environment: ProbeEnvironment) -> list[str]:
    """Return warnings about files with secrets that every user of the machine can read.

    Empty in Kubernetes: its secret mounts have these permissions, and a pod has no other users.
    """
    if environment.in_kubernetes:
        return []
    return [
        f"{path}: contains {what} and {exposure}"
        for path, what in dict(_secret_files(settings, environment)).items()
        if (exposure := _exposure(path))
    ]


def exposed_folders(settings: Settings) -> Iterator[str]:
    """Yield warnings about directories in which an account without administrator rights can change files.

    Only on Windows. There the agent treats such a file as untrusted and approves nothing that depends on it.
    """
    approval, events = settings.approval, settings.event_files.path
    needed = [("approval.hold_file", approval.hold_file, "so every event is held", hold_place())]
    for rule in approval.rules:
        effect = "so the rule approves nothing"
        needed.append((f'rule "{rule.name}": require_file', rule.require_file, effect, ready_place()))
    effect = "so event files can be forged"
    needed.append(("event_files.path", os.path.join(events, STATUS_NAME) if events else "", effect, events_place()))
    needed.append(("config.file", settings.config_file, "so the policy can be changed", program_data(os.environ)))
    for name, path, effect, instead in needed:
        if not path:
            continue
        try:
            exposure = access.exposure(path.partition("{event_id}")[0] + "_")
        except FileNotFoundError:
            continue
        except OSError as error:
            exposure = f"the access list of a parent directory of {path} cannot be read ({error.strerror})"
        if exposure:
            yield f"{name}: {exposure}, {effect}; use a path that only administrators can change, such as {instead}"


def _exposure(path: str) -> str:
    """Return who else may read the file, with the remedy, as a clause that follows "and"; "" if no other user may."""
    if sys.platform == "win32":
        try:
            if not access.keeps_lists(path):
                return f"{access.NO_LISTS}, so every user of this machine can read it: move it to another drive"
            if readers := access.others_with_access(path):
                return (
                    f"can be read by {', '.join(readers)}: {access.closing_commands(path, access.READ, folder=False)}"
                )
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"its access list cannot be read ({error.strerror}): check its permissions"
        return ""
    return "can be read by every user of this machine: run chmod o-r on it" if _open_to_all(path) else ""


def _secret_files(settings: Settings, environment: ProbeEnvironment) -> Iterator[tuple[str, str]]:
    """Yield the path and a description of the content of each file that contains a secret."""
    if settings.config_file:
        sources = _sources(argparse.Namespace(**{"config.file": settings.config_file}), environment.environ)
        tables = {name: table for name, table in sources.document.items() if isinstance(table, dict)}
        if any(tables.get(name, {}).get(key) for name, key in _SECRET_KEYS):
            yield settings.config_file, "a secret"
    if settings.event_hubs.connection_string_file:
        yield settings.event_hubs.connection_string_file, "the connection string"
    if settings.otlp.client_key:
        yield settings.otlp.client_key, "a private key"
    if settings.web.config_file:
        yield from _web_secrets(Path(settings.web.config_file))


def _web_secrets(path: Path) -> Iterator[tuple[str, str]]:
    web, _, files = read_web_file(path)
    if web is not None and web.users:
        yield str(path), "password hashes"
    for file in files:
        with contextlib.suppress(OSError, ValueError, TooLarge, WrongEncoding):
            if "PRIVATE KEY-----" in decoded(read_capped(file, MAX_BYTES)):
                yield str(file), "a private key"


def _open_to_all(path: str) -> bool:
    """Return whether other users may read the file and search all its parent directories."""
    real = Path(os.path.realpath(path))
    try:
        passable = all(folder.stat().st_mode & stat.S_IXOTH for folder in real.parents)
        return passable and bool(real.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False
