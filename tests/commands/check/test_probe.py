"""`check --probe`: each fault of the metadata service and the clock, with its finding and remedy."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from exporter.commands.check.metadata import probe_metadata
from exporter.commands.check.probe import run_probes
from exporter.commands.check.report import ClockReading, FindingVerdict, Report, clock_of, ok, reach
from exporter.config.schema import Settings
from exporter.simulator.metadata import scenario
from exporter.simulator.metadata.protocol import NOISE
from exporter.simulator.metadata.service import MetadataService
from tests.support.factories import service_of
from tests.support.lines import rejoined
from tests.support.ports import reserved_port
from tests.support.probing import (
    ENVIRONMENT,
    HURRIED_ENVIRONMENT,
    SHORT_TIMEOUTS,
    findings_of,
    printed_line,
    run_check,
    sentence_of,
    settings_for,
)
from tests.support.raw_server import Peer, RawServer, answers, response
from tests.support.raw_server import ok as http_ok
from tests.support.systems import LINGER_NOT

OK, WARN, FAIL = FindingVerdict.OK, FindingVerdict.WARN, FindingVerdict.FAIL
IMDS = "http://169.254.169.254"
DOCUMENT = b'{"DocumentIncarnation":1,"Events":[]}'


service = service_of("live-migration", speed=1000)


# --- the metadata service


def test_healthy_service_is_ok_and_gets_no_approval(service: MetadataService) -> None:
    settings = settings_for(service.url)
    findings = findings_of(probe_metadata, settings)
    sentence_of(findings, OK, "metadata", service.url, "answered in")
    sentence_of(findings, OK, "identity", "this VM is WestNO_0 of the scale set WestNO in westeurope")
    assert len(service.requests) == 2
    assert not service.posts


@pytest.mark.parametrize(
    ("fault", "verdict", "words"),
    [
        (
            "403",
            FAIL,
            "returned HTTP 403: if the VM uses the Metadata Security Protocol, add this program and its user",
        ),
        (
            "401",
            FAIL,
            "returned HTTP 401: if the VM uses the Metadata Security Protocol, add this program and its user",
        ),
        ("html", FAIL, "returned an HTML page: exclude the metadata service from the proxy or service mesh"),
        ("redirect", FAIL, "returned a redirect (HTTP 302), which Azure never does: exclude the metadata service from"),
        ("empty", FAIL, "returned an invalid document"),
        ("not-json", FAIL, "returned an invalid document"),
        ("404", FAIL, "it is not Azure's metadata service; correct source.url"),
        ("410", WARN, "up to 70 s: try again"),
        ("429", WARN, "all processes of this VM share 5 requests a second"),
        ("500", WARN, "returned a server error (HTTP 500): try again in a minute"),
        ("gzip", FAIL, "(encoding: "),
        ("reset", FAIL, "(reset: "),
    ],
)
def test_faulty_response_is_reported_with_its_cause(
    service: MetadataService, fault: str, verdict: FindingVerdict, words: str
) -> None:
    service.fault(f"all/{fault}")
    sentence_of(findings_of(probe_metadata, settings_for(service.url)), verdict, "metadata", service.url, words)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
@pytest.mark.parametrize(
    ("body", "quoted"),
    [
        (b"", "the response was empty"),
        (b"Blocked by policy 17\r\nof your company", "Blocked by policy 17 of your company"),
        (b"<html><h1>Zscaler</h1></html>", "(an HTML or XML page)"),
        (b"\x1b[2J\xe2\x80\xaego away", "?[2J?go away"),
        (b"denied: http://user:hunter2@proxy/ password=hunter2", "denied: http://<secret>@proxy/ password=<secret>"),
        (b"hunter2" * 1000, "hunter2" * 14),
    ],
)
def test_rejection_is_quoted_with_both_causes(status: str, body: bytes, quoted: str) -> None:
    """A 403 doesn't always come from the Metadata Security Protocol, so the finding quotes part of the response."""
    date = format_datetime(datetime.now(UTC), usegmt=True)
    with RawServer(answers(response(status, body, f"Date: {date}"))) as server:
        findings = findings_of(probe_metadata, settings_for(server.url))
    (sentence,) = [finding.sentence for finding in findings]
    assert quoted in sentence
    assert "Metadata Security Protocol" in sentence
    assert "allow list" in sentence
    assert "the proxy or firewall" in sentence
    assert "correct source.url" in sentence
    assert sentence.isprintable()
    assert len(sentence) < 700


def test_rejection_keeps_its_remedy_despite_redaction() -> None:
    """Redaction of the printed line removes only the quotation."""
    with RawServer(answers(response("403 Forbidden", b"password=hunter2"))) as server:
        process = run_check(f"--source.url={server.url}", "--web.listen-address=127.0.0.1:0")
    printed = " ".join(process.stdout.split())
    assert "hunter2" not in printed
    assert "correct source.url" in printed


def test_rejected_api_version_is_reported_with_supported_versions(service: MetadataService) -> None:
    findings = findings_of(probe_metadata, settings_for(service.url, "--source.api-version=2031-01-01"))
    sentence_of(findings, FAIL, "metadata", "rejects api-version 2031-01-01", "set source.api_version", "2020-07-01")


def test_late_events_are_a_warning_with_identity_and_a_failure_without(service: MetadataService) -> None:
    """Azure's first response can take two minutes; the identity shows that the service itself responds."""
    service.fault("hang")
    findings = findings_of(probe_metadata, settings_for(service.url), HURRIED_ENVIRONMENT)
    sentence_of(findings, WARN, "metadata", "returned no events within 2 s", "try again after 2 minutes")
    service.fault("all/hang")
    findings = findings_of(probe_metadata, settings_for(service.url), HURRIED_ENVIRONMENT)
    sentence_of(findings, FAIL, "metadata", "did not respond within 2 s", "can take 2 minutes")
    assert len(findings) == 1


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("Via: 1.1 squid", "through a proxy (its header via: 1.1 squid)"),
        ("Server: envoy", "through a proxy (its header server: envoy)"),
    ],
)
def test_transparent_proxy_is_recognized_by_its_headers(header: str, words: str) -> None:
    """A warning if the proxy passes the response on, a failure if it doesn't."""
    with RawServer(answers(http_ok(DOCUMENT, header))) as server:
        sentence_of(findings_of(probe_metadata, settings_for(server.url)), WARN, "metadata", words)
    with RawServer(answers(response("503 Unavailable", b"<html>", header))) as server:
        sentence_of(
            findings_of(probe_metadata, settings_for(server.url)),
            FAIL,
            "metadata",
            words,
            "exclude the metadata service from the proxy",
        )


PAGE = b"\r\n <!DOCTYPE html><html><head><title>404</title></head><body><h1>No such thing</h1></body></html>"


@pytest.mark.parametrize("media", ["text/html; charset=utf-8", "text/plain", "application/xml"])
@pytest.mark.parametrize("status", ["404 Not Found", "400 Bad Request", "418 I'm a teapot", "500 Oops"])
@pytest.mark.parametrize("events", [True, False])
def test_findings_contain_no_html_of_a_web_server(status: str, media: str, events: bool) -> None:
    """A web server answers in Azure's place: every request, or only those for the identity."""

    def script(peer: Peer) -> None:
        asked = peer.request()
        page = events or b"/instance" in asked.split(b"\r\n", 1)[0]
        peer.send(response(status, PAGE, f"Content-Type: {media}") if page else http_ok(DOCUMENT))

    with RawServer(script) as server:
        findings = findings_of(probe_metadata, settings_for(server.url))
    sentences = " ".join(finding.sentence for finding in findings)
    assert "<" not in sentences
    assert "No such thing" not in sentences
    assert "page" in sentences or "HTTP" in sentences


def test_refused_port_and_unknown_name_have_different_findings() -> None:
    with reserved_port() as port:
        findings = findings_of(probe_metadata, settings_for(f"http://127.0.0.1:{port}"))
    sentence_of(findings, FAIL, "metadata", "refuses connections: correct source.url")
    findings = findings_of(probe_metadata, settings_for("http://no-such-host.invalid"))
    sentence_of(findings, FAIL, "metadata", "the host name in source.url", "does not resolve")


def test_missing_route_is_explained_for_machines_and_for_pods(tmp_path: Path) -> None:
    """No route to 169.254.169.254: not an Azure VM, or a pod without host network."""
    flags = (f"--outbox.path={tmp_path}/outbox.db",)
    bare = run_check(*flags, isolated="-rn")
    assert bare.returncode == 1
    sentence = printed_line(bare, "metadata")
    assert sentence.startswith(f"fail metadata {IMDS} is not reachable from this machine: run this on an Azure VM")
    pod = run_check(*flags, isolated="-rn", environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert "Azure answers only the node's own network" in printed_line(pod, "metadata")
    assert "set hostNetwork: true" in printed_line(pod, "metadata")


def test_missing_or_conflicting_name_is_reported_with_its_effect(service: MetadataService) -> None:
    settings = settings_for(service.url, "--source.vm-name=host00000A")
    sentence_of(
        findings_of(probe_metadata, settings),
        FAIL,
        "identity",
        "source.vm_name is host00000A",
        "this VM's name in Azure is WestNO_0",
    )
    sentence_of(findings_of(probe_metadata, settings_for(service.url, "--source.vm-name=westno_0")), OK, "identity")
    service.fault("instance/500")
    sentence_of(
        findings_of(probe_metadata, settings_for(service.url)),
        FAIL,
        "identity",
        "(server-error",
        "nothing is approved while",
    )
    sentence_of(findings_of(probe_metadata, settings), WARN, "identity", "the configured name host00000A is used")
    nameless = http_ok(b'{"name":"","vmScaleSetName":"web","vmId":"x"}')
    with RawServer(answers(nameless)) as server:
        findings = findings_of(probe_metadata, settings_for(server.url))
        sentence_of(findings, FAIL, "identity", "compute.name is empty", "(scale set web: web_NUMBER)")
        findings = findings_of(probe_metadata, settings_for(server.url, "--source.vm-name=web_1"))
        sentence_of(findings, WARN, "identity", "the configured name web_1 is used")


def test_missing_tag_is_a_warning_that_lists_the_found_tags() -> None:
    """Tags that aren't configured don't appear."""
    loaded = scenario.parse(
        "tagged", {"description": "Tags.", "vms": [{"name": "vm-1", "tags": {"Owner": "web"}}], "steps": []}
    )
    with MetadataService(loaded, speed=1000) as service:
        findings = findings_of(probe_metadata, settings_for(service.url, "--source.tags=owner,enviroment"))
        sentence_of(findings, WARN, "tags", "this VM's tag enviroment is missing or empty", "found owner (web)")
        assert NOISE not in str(findings)
        findings = findings_of(probe_metadata, settings_for(service.url, "--source.tags=owner"))
        assert not [finding for finding in findings if finding.topic == "tags"]


def test_events_that_name_only_other_vms_are_a_warning(service: MetadataService) -> None:
    """The warning lists the names."""
    service.set_document(
        {"DocumentIncarnation": 7, "Events": [{"EventId": "a", "EventType": "Freeze", "Resources": ["x", "y"]}]}
    )
    findings = findings_of(probe_metadata, settings_for(service.url))
    sentence_of(findings, OK, "metadata", "document 7, 1 event")
    sentence_of(findings, WARN, "events", "no event names this VM (WestNO_0); the events name x, y")
    service.set_document(
        {"DocumentIncarnation": 8, "Events": [{"EventId": "a", "EventType": "Freeze", "Resources": ["westno_0"]}]}
    )
    assert "events" not in {finding.topic for finding in findings_of(probe_metadata, settings_for(service.url))}


@pytest.mark.parametrize(
    ("ahead", "verdict", "words"),
    [
        (0, OK, "agrees with that of the metadata service"),
        (20, WARN, "s behind that of the metadata service: enable time synchronization"),
        (-20, WARN, "s ahead of that of the metadata service"),
        (-4000, FAIL, "s ahead of that of the metadata service"),
    ],
)
def test_wrong_clock_is_a_warning_beyond_2_s_and_a_failure_beyond_30_s(
    ahead: float, verdict: FindingVerdict, words: str
) -> None:
    date = format_datetime(datetime.fromtimestamp(time.time() + ahead, UTC), usegmt=True)
    with RawServer(answers(http_ok(DOCUMENT, f"Date: {date}"))) as server:
        sentence_of(findings_of(probe_metadata, settings_for(server.url)), verdict, "clock", words)


@pytest.mark.parametrize(
    "answer",
    [
        response("403 Forbidden", b"", "Date: {date}"),
        response("503 Unavailable", b"<html>", "Date: {date}"),
        response("302 Found", b"", "Date: {date}", "Location: http://example.com/"),
        response("200 OK", b"<html>log in</html>", "Date: {date}"),
        http_ok(DOCUMENT, "Via: 1.1 squid", "Date: {date}"),
        http_ok(DOCUMENT),
    ],
)
def test_clock_is_compared_only_with_a_date_of_the_service(answer: bytes) -> None:
    """The Date of a rejection, a redirect, or a proxy isn't the service's."""
    date = format_datetime(datetime.now(UTC), usegmt=True)
    with RawServer(answers(answer.replace(b"{date}", date.encode()))) as server:
        findings = findings_of(probe_metadata, settings_for(server.url))
    assert not [finding for finding in findings if finding.topic == "clock"]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("ahead", "error", "verdict"),
    [(2.4, 0.5, OK), (2.6, 0.5, WARN), (7.0, 5.1, OK), (30.4, 0.5, WARN), (30.6, 0.5, FAIL), (1.0, 9.0, OK)],
)
def test_clock_difference_within_the_reading_error_is_ok(
    ahead: float, error: float, verdict: FindingVerdict, sign: int
) -> None:
    """A Date has whole seconds, and a response takes time: only the difference beyond this error counts."""
    report = Report(clocks=(ClockReading("the peer", sign * ahead, error),))
    (finding,) = run_probes(Settings(), ENVIRONMENT, {"peer": lambda *_: report})
    assert (finding.verdict, finding.topic) == (verdict, "clock")


def test_clock_reading_with_the_smallest_error_wins() -> None:
    report = Report(clocks=(ClockReading("slow", 0.0, 3.0), ClockReading("quick", 60.0, 0.5)))
    (finding,) = run_probes(Settings(), ENVIRONMENT, {"peer": lambda *_: report})
    assert (finding.verdict, "quick" in finding.sentence) == (FAIL, True)


def test_slow_response_has_a_larger_reading_error() -> None:
    """The error is half of the duration, plus half a second for the Date's whole seconds."""
    (reading,) = clock_of("peer", "Thu, 01 Jan 1970 00:16:40 GMT", ours=1003.0, took=4.0)
    assert (reading.ahead, reading.error) == (-0.5, 2.5)


# --- all probes together


def test_late_and_broken_probes_become_findings() -> None:
    """The command ends in time and reports the late probe; a bug in a probe is a finding, not a traceback."""
    released, ended = threading.Event(), threading.Event()

    def late(*_: object) -> Report:
        released.wait(60)
        ended.set()
        return Report()

    def broken(*_: object) -> Report:
        raise RuntimeError("oh")

    environment = dataclasses.replace(ENVIRONMENT, timeouts=replace(SHORT_TIMEOUTS, total=1.0))
    probes = {"late": late, "broken": broken, "good": lambda *_: Report((ok("good", "fine"),))}
    findings = run_probes(Settings(), environment, probes)
    assert not ended.is_set(), "the late probe was waited for"
    released.set()
    assert [(finding.verdict, finding.topic) for finding in findings] == [
        (FAIL, "late"),
        (FAIL, "broken"),
        (OK, "good"),
    ]
    assert "no result within 1 s" in findings[0].sentence
    assert "RuntimeError: oh" in findings[1].sentence


def test_peer_that_resets_at_once_counts_as_reachable() -> None:
    """An immediate reset comes from a peer, so it isn't a missing route."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        ended = threading.Event()

        def hang_up() -> None:
            while not ended.is_set():
                taken, _ = listener.accept()
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
                taken.close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        assert {reach("127.0.0.1", port, 30) for _ in range(200)} == {""}
        ended.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()


def test_healthy_machine_passes_every_probe_with_exit_code_0(tmp_path: Path, service: MetadataService) -> None:
    """The lines have a fixed order."""
    with reserved_port() as port:
        process = run_check(
            f"--source.url={service.url}",
            f"--outbox.path={tmp_path}/outbox.db",
            f"--web.listen-address=127.0.0.1:{port}",
        )
    assert (process.returncode, process.stderr) == (0, "")
    lines = rejoined(process.stdout).partition("\ntesting")[2].splitlines()[1:]
    assert [text.split()[:2] for text in lines] == [
        ["ok", "metadata"],
        ["ok", "identity"],
        ["ok", "outbox"],
        ["ok", "web"],
        ["ok", "clock"],
    ]
    assert not service.posts
