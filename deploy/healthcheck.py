"""Whether the agent beside us turns: exit code 0 when `/-/healthy` says so. The health check of an image without curl.

Asks where the settings say that the agent listens: environment and file, not its flags. With TLS in the web-config file
the certificate is not verified, since nothing but our own loopback is asked and nothing is sent. An agent that wants a
password or a client certificate has answered, and that counts: whether its loop turns is then not known.
"""

from __future__ import annotations

import argparse
import http.client
import os
import ssl
import sys
from collections.abc import Mapping
from typing import Final

from exporter.config.load import ConfigError, load

TIMEOUT_SECONDS: Final = 4.0
ANYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # what the agent may be told, not what we bind


def main(environ: Mapping[str, str] = os.environ) -> int:
    """0 healthy, 1 not, with a sentence on standard output."""
    try:
        web = load(argparse.Namespace(), environ).web
    except ConfigError as error:
        print(f"the settings are wrong: {error.errors[0]}")
        return 1
    host, port = web.address
    if host in ANYWHERE:
        host = "::1" if host == "::" else "127.0.0.1"
    secure = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=_unverified())
    plain = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        return _ask_over_tls(secure, plain) if web.config_file else _ask(plain)
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer at port {port}: {error}")
        return 1


def _ask_over_tls(secure: http.client.HTTPSConnection, plain: http.client.HTTPConnection) -> int:
    """With a web-config file there may be TLS, or only a password. One that wants our certificate is there."""
    try:
        return _ask(secure)
    except ssl.SSLError as error:
        if "CERTIFICATE_REQUIRED" not in str(error).upper().replace(" ", "_"):
            return _ask(plain)
        print("the agent asks for a client certificate")
        return 0


def _ask(connection: http.client.HTTPConnection) -> int:
    try:
        connection.request("GET", "/-/healthy")
        answer = connection.getresponse()
    finally:
        connection.close()
    print(f"{answer.status} {answer.reason}")
    return 0 if answer.status in {http.HTTPStatus.OK, http.HTTPStatus.UNAUTHORIZED} else 1


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


if __name__ == "__main__":
    sys.exit(main())
