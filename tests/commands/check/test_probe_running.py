"""`check --probe` with a running agent: the agent's state, and the differences from these settings."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter import __version__
from exporter.agent.app import App
from exporter.commands.check.probe import probe_web
from exporter.commands.check.report import Finding, FindingVerdict
from exporter.commands.check.running import findings
from exporter.config.schema import Settings
from exporter.log.log import Log
from exporter.simulator.metadata.service import MetadataService
from tests.commands.check.test_command import a_pair
from tests.support import statuses
from tests.support.configuration import loaded
from tests.support.factories import service_of
from tests.support.peers import until
from tests.support.probing import ENVIRONMENT, findings_of, sentence_of
from tests.support.raw_server import Peer, RawServer, answers, response
from tests.support.raw_server import ok as http_ok
from tests.support.status_reading import answered

OK, WARN, FAIL = FindingVerdict.OK, FindingVerdict.WARN, FindingVerdict.FAIL
METRICS = b'azure_scheduled_events_build_info{version="1"} 1\n'
SERVED = "is in use by this agent, which is running"


service = service_of("live-migration")


@contextmanager
def agent(*flags: str, listen: str = "127.0.0.1:0") -> Iterator[tuple[App, str]]:
    """Run a real agent until it has polled once; yield it with its address."""
    app = App(loaded(f"--web.listen-address={listen}", "--log.level=error", *flags), Log(None), environ={})
    app.start()
    thread = threading.Thread(target=app.run)
    thread.start()
    try:
        until(lambda: app.status.state.process.source.last_poll is not None)
        yield app, f"{listen.rpartition(':')[0]}:{app.web.address[1]}"
    finally:
        app.stop()
        thread.join()


def probed(address: str, *flags: str) -> list[Finding]:
    return findings_of(probe_web, loaded(f"--web.listen-address={address}", *flags))


def test_running_agent_is_reported_with_mode_name_and_source(tmp_path: Path, service: MetadataService) -> None:
    """The same settings yield no difference."""
    flags = (
        *(f"--source.url={service.url}", "--source.poll-interval=50ms", f"--outbox.path={tmp_path / 'outbox.db'}"),
        *("--approval.mode=enforce", "--approval.takeover-after=90s", f"--approval.hold-file={tmp_path / 'hold'}"),
    )
    with agent(*flags) as (app, address):
        until(lambda: app.status.vm.name)
        found = probed(address, *flags)
    assert len(found) == 2
    sentence_of(found, OK, "web", SERVED)
    recorded = sentence_of(found, OK, "agent", f"version {__version__} is running in mode enforce on WestNO_0")
    assert recorded.endswith("it reads the metadata service")


def test_differing_settings_are_reported_with_both_values(tmp_path: Path, service: MetadataService) -> None:
    hold = tmp_path / "hold"
    with agent(f"--source.url={service.url}", f"--outbox.path={tmp_path / 'outbox.db'}") as (app, address):
        until(lambda: app.status.vm.name)
        only = probed(address, "--approval.mode=enforce")
        found = probed(
            address,
            *("--approval.mode=enforce", "--approval.coordination=any", f"--approval.hold-file={hold}"),
            *("--source.poll-interval=2s", "--source.vm-name=other", "--otlp.endpoint=http://127.0.0.1:1"),
        )
    assert [finding.sentence for finding in only][2:] == [
        "the running agent has approval.mode dry-run (these settings: enforce): restart it to apply these settings"
    ]
    assert [finding.verdict for finding in found] == [OK, OK, WARN]
    assert found[2].sentence == (
        "the running agent has approval.mode dry-run (these settings: enforce); approval.coordination leader (these "
        f"settings: any); approval.hold_file none (these settings: {hold}); source.poll_interval 1s (these settings: "
        "2s); the VM name WestNO_0 (source.vm_name in these settings: other); no destination otlp (configured in these "
        "settings): restart it to apply these settings"
    )


def test_different_rules_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[approval]\nrules = [{ name = "all", event_type = ["Reboot"], settle = "30s" }]\n')
    flags = ("--source.url=http://127.0.0.1:1", f"--outbox.path={tmp_path / 'o.db'}")
    with agent(*flags, f"--config.file={file}") as (_, address):
        same, others = probed(address, *flags, f"--config.file={file}"), probed(address, *flags)
    assert [finding.topic for finding in same] == ["web", "agent"]
    assert others[2].sentence == ("the running agent has different approval.rules: restart it to apply these settings")


def test_file_that_agent_and_command_see_differently_is_a_failure(tmp_path: Path, service: MetadataService) -> None:
    """Only files of these settings are compared."""
    hold, events, ready = tmp_path / "hold", tmp_path / "events", tmp_path / "ready"
    events.mkdir()
    ready.mkdir()
    file = tmp_path / "config.toml"
    rule = f'{{ name = "a", event_type = ["Freeze"], require_file = "{(ready / "{event_id}").as_posix()}" }}'
    file.write_text(f"[approval]\nrules = [{rule}]\n")
    flags = (
        *(f"--source.url={service.url}", f"--outbox.path={tmp_path / 'o.db'}", f"--config.file={file}"),
        *(f"--approval.hold-file={hold}", f"--event-files.path={events}"),
    )
    with agent(*flags) as (app, address):
        until(lambda: app.status.vm.name and (events / "status.json").exists())
        hold.touch()
        until(lambda: app.status.held)
        assert FAIL not in {finding.verdict for finding in probed(address, *flags)}
        with urlopen(f"http://{address}/api/v1/status") as answer:
            status = json.load(answer)
    assert status["approval"]["files"] == {str(hold): "present"}
    status["approval"] = {**status["approval"], "files": {str(hold): "absent", (ready / "x").as_posix(): "present"}}
    asked = loaded(*flags)
    (ready / "other").touch()
    found = [finding.sentence for finding in findings(status, asked) if finding.verdict is FAIL]
    assert [text.partition(" for this command")[0] for text in found] == [
        f"{hold} is absent for the running agent and present",
        f"{(ready / 'x').as_posix()} is present for the running agent and absent",
    ]
    (events / "status.json").unlink()
    status["approval"] = {**status["approval"], "files": {str(tmp_path / "config.toml"): "absent", "x": 1, "": []}}
    (gone,) = [finding.sentence for finding in findings(status, asked) if finding.verdict is FAIL]
    assert gone.startswith(f"{events / 'status.json'} is present for the running agent and absent for this")


def test_agent_that_cannot_read_its_source_is_a_warning(tmp_path: Path) -> None:
    """The warning contains the reason, and that the VM's name is unknown."""
    flags = ("--source.url=http://127.0.0.1:1", f"--outbox.path={tmp_path / 'outbox.db'}")
    with agent(*flags) as (_, address):
        found = probed(address, *flags)
    sentence_of(
        found,
        WARN,
        "agent",
        "is running in mode dry-run on a VM whose name is unknown; it cannot read the metadata service: "
        "the connection failed",
    )


@pytest.mark.parametrize(
    ("listen", "asked"),
    [
        ("0.0.0.0:0", "0.0.0.0:{}"),
        ("127.0.0.1:0", "localhost:{}"),
        ("127.0.0.1:0", "0.0.0.0:{}"),
        ("[::]:0", ":{}"),
        ("[::]:0", "[::]:{}"),
        ("[::1]:0", "[::1]:{}"),
        (":0", "127.0.0.1:{}"),
    ],
)
def test_agent_is_found_at_every_kind_of_listen_address(tmp_path: Path, listen: str, asked: str) -> None:
    """If the address means all interfaces, the probe uses loopback."""
    if "::" in listen and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with agent("--source.url=http://127.0.0.1:1", f"--outbox.path={tmp_path / 'o.db'}", listen=listen) as (_, address):
        found = probed(asked.format(address.rpartition(":")[2]))
    sentence_of(found, OK, "web", SERVED)
    sentence_of(found, WARN, "agent", "is running in mode dry-run")


# --- passwords and TLS


HASH = "$2b$04$abcdefghijklmnopqrstuuTQ0Zz0c8ZqXh4bqkKf1iJ1oYv1G6T2e"


@pytest.mark.parametrize("with_config", [True, False])
def test_agent_with_a_password_is_reported_without_its_status(tmp_path: Path, with_config: bool) -> None:
    """The settings contain only password hashes, whether or not they name the web-config file."""
    web = tmp_path / "web.yml"
    web.write_text(f"basic_auth_users:\n  bob: {HASH}\n")
    flags = ("--source.url=http://127.0.0.1:1", f"--outbox.path={tmp_path / 'o.db'}", f"--web.config.file={web}")
    with agent(*flags) as (_, address):
        found = probed(address, *(flags if with_config else ()))
    assert len(found) == 1
    sentence_of(found, OK, "web", SERVED, "it requires a password, of which the settings contain only the hash")


@pytest.mark.parametrize("with_config", [True, False])
def test_agent_behind_tls_is_compared_whatever_its_certificate_is(tmp_path: Path, with_config: bool) -> None:
    """A self-signed certificate, with and without TLS in these settings: the request contains no secret."""
    certificate, key = a_pair(tmp_path, "elsewhere")
    web = tmp_path / "web.yml"
    web.write_text(f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n")
    flags = ("--source.url=http://127.0.0.1:1", f"--outbox.path={tmp_path / 'o.db'}", f"--web.config.file={web}")
    with agent(*flags) as (_, address):
        found = probed(address, *(flags if with_config else ()))
    sentence_of(found, OK, "web", SERVED)
    sentence_of(found, WARN, "agent", "is running in mode dry-run")


# --- other responses, and other programs


def by_path(**bodies: bytes) -> Any:
    """Return a script that serves these paths, and 404 for any other."""

    def script(peer: Peer) -> None:
        path = peer.request().partition(b" ")[2].partition(b" ")[0].decode()
        body = bodies.get(path.strip("/").replace("/", "_"))
        peer.send(response("404 Not Found") if body is None else http_ok(body))

    return script


def findings_at(script: Any) -> list[Finding]:
    with RawServer(script) as server:
        return findings_of(probe_web, loaded(f"--web.listen-address=127.0.0.1:{server.port}"), ENVIRONMENT)


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"",
        b"Starting\n",
        b"[1]",
        b"[" * 100_000,
        b'{"type": "azure_scheduled_events.status.v9"}',
        b'{"type": "azure_scheduled_events.status.v1"',
        b"\xff",
    ],
)
def test_an_agent_without_a_status_is_running(body: bytes | None) -> None:
    """An agent that is starting, or whose status can't be read, is recognized without further findings."""
    bodies = {"metrics": METRICS} | ({} if body is None else {"api_v1_status": body})
    found = findings_at(by_path(**bodies))
    assert [(finding.verdict, finding.topic) for finding in found] == [(OK, "web")]
    assert found[0].sentence.endswith(SERVED)


def test_another_program_is_not_mistaken_for_the_agent() -> None:
    """It responds with JSON, with text, or without end."""
    for script in (by_path(api_v1_status=b'{"type": "other"}'), answers(http_ok(b"hello")), endless):
        sentence_of(findings_at(script), FAIL, "web", "is in use by another program")


def endless(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        peer.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")


BASE = answered(statuses.scheduled_scenario().status(), statuses.scheduled_scenario().instant)


def test_missing_or_mistyped_members_are_ignored() -> None:
    """An empty status of the right type, and one with control characters."""
    found = findings({"type": BASE["type"]}, Settings())
    assert [finding.verdict for finding in found] == [WARN]
    assert found[0].sentence.startswith("version unknown is running in mode unknown on a VM whose name is unknown")
    evil = {**BASE, "approval": {"mode": "\x1b[2J" + "x" * 5000, "hold_file": "\u202e"}, "agent": {"version": "1\n2"}}
    for finding in findings(evil, Settings()):
        assert finding.sentence.isprintable()
        assert len(finding.sentence) < 1000


INNER = [(name, key) for name, value in BASE.items() if isinstance(value, dict) for key in value]
PATHS = [*((name,) for name in BASE), *INNER]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), ANYTHING), max_size=8))
def test_any_status_yields_printable_findings(changes: list[tuple[tuple[str, ...], Any]]) -> None:
    """Members of any type in any place raise no error."""
    value = json.loads(json.dumps(BASE))
    for (first, *rest), anything in changes:
        if rest and isinstance(value[first], dict):
            value[first][rest[0]] = anything
        else:
            value[first] = anything
    for finding in findings(value, Settings()):
        assert finding.sentence.isprintable()
