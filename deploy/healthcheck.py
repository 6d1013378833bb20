"""Check the agent in this container: exit code 0 if `/-/healthy` returns 200. The image has no curl.

The listen address comes from the environment and the settings file, not from the agent's flags. Only the section `web`
is read. An unreadable file is ignored: Kubernetes can change it while the agent runs with its previous content, and an
error in it must not restart a healthy agent. TLS certificates aren't verified, because only this machine is contacted.
`--ready` requests `/-/ready` instead. `--credentials FOLDER` names the client's credentials, in the files of a
Kubernetes Secret: `username` and `password`, `tls.crt` and `tls.key`, or all four. The web-config file contains only
the hash of the password.

If the agent requires a password or client certificate that is missing or rejected, it counts as healthy, because it
responds; whether it polls is unknown. With `--ready` and rejected credentials, it is not ready: a wrong password stops
a rollout but restarts nothing. With `--ready` and no `--credentials`, an agent that requires some counts as ready.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from exporter.config.schema import WebSettings, settings_of
from exporter.config.sources import CONFIG_ENV, Sources, read_toml
from exporter.files import read_capped
from exporter.text.values import InvalidValue

TIMEOUT_SECONDS: Final = 4.0
ANYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # the agent's setting; nothing is bound here


@dataclass(frozen=True, slots=True)
class Question:
    """The path to request, and the headers to send."""

    path: str
    headers: Mapping[str, str] = field(repr=False)
    shown: bool
    """Whether credentials are sent: if they are rejected, the agent is not ready."""

    @property
    def refused(self) -> int:
        """The exit code if the agent rejects the credentials or requires some."""
        return 1 if self.shown and self.path == "/-/ready" else 0


def main(environ: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> int:
    """Return 0 if the agent is healthy, otherwise 1. Print the result to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ready", action="store_true", help="check whether the agent is ready instead of healthy")
    parser.add_argument("--credentials", type=Path, metavar="FOLDER", help="folder with the client's credentials")
    args = parser.parse_args(arguments)
    try:
        web = _web(environ)
        question = Question(
            "/-/ready" if args.ready else "/-/healthy", _headers(args.credentials), args.credentials is not None
        )
        context = _unverified(args.credentials)
    except InvalidValue as error:
        print(f"the settings are invalid: {error}")
        return 1
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        print(f"the credentials in {args.credentials} cannot be used: {error}")
        return 1
    host, port = web.address
    if host in ANYWHERE:
        host = "::1" if host == "::" else "127.0.0.1"
    secure = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=context)
    plain = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        return _ask_over_tls(secure, plain, question) if web.config_file else _ask(plain, question)
    except (OSError, http.client.HTTPException) as error:
        print(f"no response on port {port}: {error}")
        return 1


def _web(environ: Mapping[str, str]) -> WebSettings:
    """Return the section `web` of the agent's settings. Raises InvalidValue."""
    path = environ.get(CONFIG_ENV, "")
    document: Mapping[str, Any] = {}
    if path:
        with contextlib.suppress(InvalidValue):
            document = read_toml(path, read_capped)
    sources = Sources({}, environ, document, path)
    web = WebSettings(**{key: sources.pick(setting).value for key, setting in settings_of("web").items()})
    if sources.errors:
        raise InvalidValue(sources.errors[0])
    return web


def _ask_over_tls(secure: http.client.HTTPSConnection, plain: http.client.HTTPConnection, question: Question) -> int:
    """Request over TLS, or without it if the web-config file only sets a password. A certificate request counts."""
    try:
        return _ask(secure, question)
    except ssl.SSLError as error:
        reason = str(error).upper().replace(" ", "_")
        if "CERTIFICATE_REQUIRED" in reason:
            print("the agent requires a client certificate")
        elif question.shown and "ALERT" in reason:
            print(f"the agent rejects the client certificate: {error}")
        else:
            return _ask(plain, question)
        return question.refused


def _ask(connection: http.client.HTTPConnection, question: Question) -> int:
    try:
        connection.request("GET", question.path, headers=dict(question.headers))
        answer = connection.getresponse()
    finally:
        connection.close()
    print(f"{answer.status} {answer.reason}")
    if answer.status == http.HTTPStatus.UNAUTHORIZED:
        return question.refused
    return 0 if answer.status == http.HTTPStatus.OK else 1


def _headers(folder: Path | None) -> dict[str, str]:
    """Return the Authorization header for the folder's user and password [RFC 7617]; empty without `username`.

    Trailing line ends, which editors add to files, are ignored. Raises OSError if a file can't be read.
    """
    if folder is None or not (folder / "username").exists():
        return {}
    user, password = ((folder / name).read_bytes().rstrip(b"\r\n") for name in ("username", "password"))
    return {"Authorization": "Basic " + base64.b64encode(user + b":" + password).decode()}


def _unverified(folder: Path | None) -> ssl.SSLContext:
    """Return a TLS context without verification. Raises OSError if the folder's certificate or key can't be used."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if folder is not None and (folder / "tls.crt").exists():
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


if __name__ == "__main__":
    sys.exit(main(arguments=sys.argv[1:]))
