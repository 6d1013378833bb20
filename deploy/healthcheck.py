"""Whether the agent beside us turns: exit code 0 when `/-/healthy` says so. The health check of an image without curl.

Asks where the settings say that the agent listens: environment and file, not its flags. Of these nothing but `web` is
looked at, and a file that can't be read is none: Kubernetes changes it below an agent that runs with what was there
when it started, and what is wrong in it is no reason to end one that turns. With TLS in the web-config file the
certificate is not verified, since nothing but this machine is asked. `--ready` asks `/-/ready` instead, and
`--credentials FOLDER` shows what a scraper shows: `username` and `password`, `tls.crt` and `tls.key`, of these files
those that are there, as a Secret of Kubernetes has them. The web-config file holds a password's hash alone.

An agent that wants a password or a client certificate which is not shown, or not taken, has answered, and that counts:
whether its loop turns is then not known. Ready it is called only where nothing was shown: a password that is not taken
shall end a roll-out, and restart nothing.
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
ANYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # what the agent may be told, not what we bind


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and what is shown with it."""

    path: str
    headers: Mapping[str, str] = field(repr=False)
    shown: bool
    """Whether there are credentials: one that is refused makes the agent not ready."""

    @property
    def refused(self) -> int:
        """The exit code where the agent answers that it wants other credentials."""
        return 1 if self.shown and self.path == "/-/ready" else 0


def main(environ: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> int:
    """0 healthy, 1 not, with a sentence on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ready", action="store_true", help="ask whether it is ready, not whether it is healthy")
    parser.add_argument("--credentials", type=Path, metavar="FOLDER", help="what to show, in files")
    told = parser.parse_args(arguments)
    try:
        web = _web(environ)
        question = Question(
            "/-/ready" if told.ready else "/-/healthy", _headers(told.credentials), told.credentials is not None
        )
        context = _unverified(told.credentials)
    except InvalidValue as error:
        print(f"the settings are wrong: {error}")
        return 1
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        print(f"the credentials in {told.credentials} cannot be used: {error}")
        return 1
    host, port = web.address
    if host in ANYWHERE:
        host = "::1" if host == "::" else "127.0.0.1"
    secure = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=context)
    plain = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        return _ask_over_tls(secure, plain, question) if web.config_file else _ask(plain, question)
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer at port {port}: {error}")
        return 1


def _web(environ: Mapping[str, str]) -> WebSettings:
    """Where the agent listens, and by which web-config file. Raises InvalidValue."""
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
    """With a web-config file there may be TLS, or only a password. One that wants our certificate is there."""
    try:
        return _ask(secure, question)
    except ssl.SSLError as error:
        reason = str(error).upper().replace(" ", "_")
        if "CERTIFICATE_REQUIRED" in reason:
            print("the agent asks for a client certificate")
        elif question.shown and "ALERT" in reason:
            print(f"the agent refuses the client certificate: {error}")
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
    """The Authorization of the folder's user and password [RFC 7617]; raises OSError where one of them is missing.

    A line's end is none of theirs: `--from-file` takes over the one that an editor wrote.
    """
    if folder is None or not (folder / "username").exists():
        return {}
    user, password = ((folder / name).read_bytes().rstrip(b"\r\n") for name in ("username", "password"))
    return {"Authorization": "Basic " + base64.b64encode(user + b":" + password).decode()}


def _unverified(folder: Path | None) -> ssl.SSLContext:
    """Raises OSError where certificate and key of the folder can't be used."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if folder is not None and (folder / "tls.crt").exists():
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


if __name__ == "__main__":
    sys.exit(main(arguments=sys.argv[1:]))
