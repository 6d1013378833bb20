"""The chart's probes against a real agent: with TLS, a password, and a client certificate, as in the web-config
file."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import bcrypt
import pytest

from deploy import healthcheck
from deploy.manifests import ROOT
from exporter.config.load import load
from exporter.simulator.metadata.scenario import load as load_scenario
from exporter.simulator.metadata.service import MetadataService
from tests.project.test_deploy import agent
from tests.support.certificates import Authority, write
from tests.support.charts import VALUES, agent_of, environment, render

pytestmark = [pytest.mark.linux("is about containers and Kubernetes"), pytest.mark.peer("helm")]
UNREACHABLE: Final = "http://127.0.0.1:9"
"""An address without a metadata service."""

HASH: Final = bcrypt.hashpw(b"password", bcrypt.gensalt(4)).decode()
TLS: Final = {"cert_file": "web.crt", "key_file": "web.key"}
PASSWORD: Final = {"basic_auth_users": {"scraper": HASH}}
CLIENT: Final = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.crt"}
ASKED: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "tls": {"tls_server_config": TLS},
    "password": PASSWORD,
    "tls and password": {"tls_server_config": TLS, **PASSWORD},
    "client certificate": {"tls_server_config": {**TLS, **CLIENT}},
}
"""The values, and what the web-config file then requires."""


def secrets(folder: Path, asked: Mapping[str, Any]) -> None:
    """Write the Secrets `web` and `scrape` as the kubelet would mount them below /run/secrets."""
    authority = Authority()
    (web := folder / "web").mkdir()
    (shown := folder / "web-credentials").mkdir()
    write(web, "web", *authority.issue("127.0.0.1"))
    (web / "ca.crt").write_text(authority.pem)
    (web / "web.yml").write_text(json.dumps(asked))
    if "basic_auth_users" in asked:
        (shown / "username").write_text("scraper")
        (shown / "password").write_text("password\n")
    if "client_auth_type" in asked.get("tls_server_config", {}):
        write(shown, "tls", *authority.issue("scraper"))


def ask(probe: Mapping[str, Any], folder: Path, environ: Mapping[str, str], port: int) -> bool:
    """Return the kubelet's result: exit code 0, or a status from 200 to 399 with any certificate."""
    if "exec" in probe:
        command = [
            word.replace("/run/secrets", str(folder)).replace("/opt/agent/", f"{ROOT}/deploy/")
            for word in probe["exec"]["command"]
        ]
        assert command[0] == "python3"
        done = subprocess.run(
            [sys.executable, *command[1:]],
            cwd=ROOT,
            env={**os.environ, **environ, "SCHEDULED_EVENTS_WEB_LISTEN_ADDRESS": f"127.0.0.1:{port}"},
            timeout=60,
            check=False,
        )
        return done.returncode == 0
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    scheme, path = probe["httpGet"].get("scheme", "HTTP").lower(), probe["httpGet"]["path"]
    try:
        with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}{path}", timeout=30, context=context):  # noqa: S310  # ours
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False


@contextlib.contextmanager
def started(folder: Path, source: str, environ: Mapping[str, str]) -> Iterator[tuple[int, socket.socket]]:
    """Yield an agent, its port, and the socket on which it notifies its service manager of each poll."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(30)
        with agent(source, folder, NOTIFY_SOCKET=str(folder / "notify"), **environ):
            yield int(manager.recv(4096).decode().rpartition(" ")[2]), manager


@pytest.mark.parametrize(
    ("name", "seeing"), [*((name, True) for name in ASKED), ("tls", False), ("tls and password", False)]
)
def test_the_probes_match_the_agents_state(tmp_path: Path, name: str, seeing: bool) -> None:
    """With any web-config file, an agent is alive, and ready if it reaches the metadata service."""
    container = agent_of(render(VALUES[name]))
    secrets(tmp_path, ASKED[name])
    environ = {key: value.replace("/run/secrets", str(tmp_path)) for key, value in environment(container).items()}
    environ = {key: value for key, value in environ.items() if key == "SCHEDULED_EVENTS_WEB_CONFIG_FILE"}
    assert bool(environ) is bool(ASKED[name])
    with (
        MetadataService(load_scenario("quiet")) as service,
        started(tmp_path, service.url if seeing else UNREACHABLE, environ) as (port, manager),
    ):
        for _ in range(2):  # polls
            manager.recv(4096)
        assert ask(container["livenessProbe"], tmp_path, environ, port)
        assert ask(container["readinessProbe"], tmp_path, environ, port) is seeing


@pytest.mark.parametrize("name", ["password", "tls and password", "client certificate"])
def test_rejected_credentials_stop_a_rollout_and_restart_nothing(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With another password or certificate than the agent's it is alive and not ready; with none, the state is
    unknown."""
    secrets(tmp_path, ASKED[name])
    (other := tmp_path / "other").mkdir()
    if name == "client certificate":
        write(other, "tls", *Authority("another").issue("scraper"))
    else:
        (other / "username").write_text("scraper")
        (other / "password").write_text("another")
    environ = {"SCHEDULED_EVENTS_WEB_CONFIG_FILE": str(tmp_path / "web" / "web.yml")}
    with started(tmp_path, UNREACHABLE, environ) as (port, _):
        environ["SCHEDULED_EVENTS_WEB_LISTEN_ADDRESS"] = f"127.0.0.1:{port}"
        assert healthcheck.main(environ, ["--credentials", str(other)]) == 0
        assert healthcheck.main(environ, ["--credentials", str(other), "--ready"]) == 1
        assert healthcheck.main(environ, ["--ready"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3
    assert all("401" in line or "certificate" in line for line in said), said
    assert "another" not in "".join(said)


@pytest.mark.parametrize("file", ["[log]\nlevel = 'loud'\n[of.a.newer]\nversion = 1\n", "no TOML", None])
def test_changed_settings_do_not_end_a_running_agent(tmp_path: Path, file: str | None) -> None:
    """The kubelet changes the file of pods that the rollout hasn't reached: an error in it restarts none."""
    secrets(tmp_path, PASSWORD)
    environ = {"SCHEDULED_EVENTS_WEB_CONFIG_FILE": str(tmp_path / "web" / "web.yml")}
    with started(tmp_path, UNREACHABLE, environ) as (port, _):
        environ["SCHEDULED_EVENTS_WEB_LISTEN_ADDRESS"] = f"127.0.0.1:{port}"
        environ["SCHEDULED_EVENTS_CONFIG_FILE"] = str(tmp_path / "config.toml")
        environ["SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING_FILE"] = str(tmp_path / "gone")
        if file is not None:
            (tmp_path / "config.toml").write_text(file)
        assert healthcheck.main(environ, ["--credentials", str(tmp_path / "web-credentials")]) == 0


def test_an_invalid_address_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """If the address to probe is unknown, the probe fails with the agent's error message."""
    assert healthcheck.main({"SCHEDULED_EVENTS_WEB_LISTEN_ADDRESS": "nowhere"}) == 1
    assert "the settings are invalid: SCHEDULED_EVENTS_WEB_LISTEN_ADDRESS" in capsys.readouterr().out


def test_credentials_that_cannot_be_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory with a user and no password fails the probe with a message, not a traceback."""
    (tmp_path / "username").write_text("scraper")
    assert healthcheck.main({}, ["--credentials", str(tmp_path)]) == 1
    assert f"the credentials in {tmp_path} cannot be used" in capsys.readouterr().out


def test_the_probes_use_the_settings_of_the_agent() -> None:
    """The health check finds the address in the container's own variables."""
    environ = environment(agent_of(render(VALUES["one address"])))
    assert load(argparse.Namespace(), environ).web.address == ("127.0.0.1", 9000)
