"""`check --probe`: each thing that can be wrong, provoked, and said in a sentence with what to do."""

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


def test_a_good_service_is_ok_and_approves_nothing(service: MetadataService) -> None:
    """Azure that answers is ok, and a probe asks without ever approving."""
    settings = settings_for(service.url)
    findings = findings_of(probe_metadata, settings)
    sentence_of(findings, OK, "metadata", service.url, "answered in")
    sentence_of(findings, OK, "identity", "this VM is WestNO_0 of the scale set WestNO in westeurope")
    assert len(service.requests) == 2
    assert not service.posts


@pytest.mark.parametrize(
    ("fault", "verdict", "words"),
    [
        ("403", FAIL, "answers HTTP 403: either the Metadata Security Protocol of this VM refuses this process"),
        ("401", FAIL, "answers HTTP 401: either the Metadata Security Protocol of this VM refuses this process"),
        ("html", FAIL, "answers with an HTML page: a proxy or service mesh stands in between"),
        ("redirect", FAIL, "answers with a redirection (HTTP 302), which Azure never does: a proxy"),
        ("empty", FAIL, "no document of events"),
        ("not-json", FAIL, "no document of events"),
        ("404", FAIL, "it is not Azure's metadata service; correct source.url"),
        ("410", WARN, "up to 70 s: try again"),
        ("429", WARN, "all processes of this VM share 5 requests a second"),
        ("500", WARN, "is in trouble itself (HTTP 500): try again in a minute"),
        ("gzip", FAIL, "(encoding: "),
        ("reset", FAIL, "(reset: "),
    ],
)
def test_a_bad_answer_is_a_sentence_with_its_cause(
    service: MetadataService, fault: str, verdict: FindingVerdict, words: str
) -> None:
    """Each bad answer of the simulated service is one sentence that says what stands behind it."""
    service.fault(f"all/{fault}")
    sentence_of(findings_of(probe_metadata, settings_for(service.url)), verdict, "metadata", service.url, words)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
@pytest.mark.parametrize(
    ("body", "quoted"),
    [
        (b"", "without a text"),
        (b"Blocked by policy 17\r\nof your company", "Blocked by policy 17 of your company"),
        (b"<html><h1>Zscaler</h1></html>", "(an HTML or XML page)"),
        (b"\x1b[2J\xe2\x80\xaego away", "?[2J?go away"),
        (b"denied: http://user:hunter2@proxy/ password=hunter2", "denied: http://<secret>@proxy/ password=<secret>"),
        (b"hunter2" * 1000, "hunter2" * 14),
    ],
)
def test_refusal_is_quoted_with_both_causes(status: str, body: bytes, quoted: str) -> None:
    """A 403 is not always the Metadata Security Protocol's: what was answered is there to be judged, and is bounded."""
    date = format_datetime(datetime.now(UTC), usegmt=True)
    with RawServer(answers(response(status, body, f"Date: {date}"))) as server:
        findings = findings_of(probe_metadata, settings_for(server.url))
    (sentence,) = [finding.sentence for finding in findings]
    assert quoted in sentence
    assert "Metadata Security Protocol" in sentence
    assert "allow list" in sentence
    assert "a proxy, a firewall" in sentence
    assert "correct source.url" in sentence
    assert sentence.isprintable()
    assert len(sentence) < 700


def test_refusal_keeps_its_advice_whatever_is_quoted() -> None:
    """Redaction of the printed line takes nothing but the quotation."""
    with RawServer(answers(response("403 Forbidden", b"password=hunter2"))) as server:
        process = run_check(f"--source.url={server.url}", "--web.listen-address=127.0.0.1:0")
    said = " ".join(process.stdout.split())
    assert "hunter2" not in said
    assert "correct source.url" in said


def test_a_refused_api_version_is_named_with_those_on_offer(service: MetadataService) -> None:
    """A refused api-version is named, with those that the service offers."""
    findings = findings_of(probe_metadata, settings_for(service.url, "--source.api-version=2031-01-01"))
    sentence_of(
        findings, FAIL, "metadata", "does not take api-version 2031-01-01", "set source.api_version", "2020-07-01"
    )


def test_late_events_are_a_warning_once_the_identity_came_and_else_a_failure(service: MetadataService) -> None:
    """Events that do not come in time may be Azure's two minutes: a warning when it says who we are, else a failure."""
    service.fault("hang")
    findings = findings_of(probe_metadata, settings_for(service.url), HURRIED_ENVIRONMENT)
    sentence_of(findings, WARN, "metadata", "gave no events within 2 s", "takes up to 2 minutes")
    service.fault("all/hang")
    findings = findings_of(probe_metadata, settings_for(service.url), HURRIED_ENVIRONMENT)
    sentence_of(findings, FAIL, "metadata", "gave no answer within 2 s", "may take 2 minutes")
    assert len(findings) == 1


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("Via: 1.1 squid", "through a proxy (its header via: 1.1 squid)"),
        ("Server: envoy", "through a proxy (its header server: envoy)"),
    ],
)
def test_a_transparent_proxy_is_recognised_by_its_headers(header: str, words: str) -> None:
    """A proxy that shows in the headers is a warning where it lets the answer by, and a failure where it does not."""
    with RawServer(answers(http_ok(DOCUMENT, header))) as server:
        sentence_of(findings_of(probe_metadata, settings_for(server.url)), WARN, "metadata", words)
    with RawServer(answers(response("503 Unavailable", b"<html>", header))) as server:
        sentence_of(
            findings_of(probe_metadata, settings_for(server.url)),
            FAIL,
            "metadata",
            words,
            "take the metadata service out of it",
        )


PAGE = b"\r\n <!DOCTYPE html><html><head><title>404</title></head><body><h1>No such thing</h1></body></html>"


@pytest.mark.parametrize("media", ["text/html; charset=utf-8", "text/plain", "application/xml"])
@pytest.mark.parametrize("status", ["404 Not Found", "400 Bad Request", "418 I'm a teapot", "500 Oops"])
@pytest.mark.parametrize("events", [True, False])
def test_no_html_of_a_web_server_is_repeated(status: str, media: str, events: bool) -> None:
    """Where a web server answers in Azure's place, for all or for the identity alone, its HTML is in no sentence."""

    def script(peer: Peer) -> None:
        asked = peer.request()
        page = events or b"/instance" in asked.split(b"\r\n", 1)[0]
        peer.send(response(status, PAGE, f"Content-Type: {media}") if page else http_ok(DOCUMENT))

    with RawServer(script) as server:
        findings = findings_of(probe_metadata, settings_for(server.url))
    said = " ".join(finding.sentence for finding in findings)
    assert "<" not in said
    assert "No such thing" not in said
    assert "page" in said or "HTTP" in said


def test_a_refused_port_and_an_unknown_name_are_told_apart() -> None:
    """A refused port and an unknown name of a configured address are told apart."""
    with reserved_port() as port:
        findings = findings_of(probe_metadata, settings_for(f"http://127.0.0.1:{port}"))
    sentence_of(findings, FAIL, "metadata", "refuses connections: nothing listens there; correct source.url")
    findings = findings_of(probe_metadata, settings_for("http://no-such-host.invalid"))
    sentence_of(findings, FAIL, "metadata", "the name in source.url", "is not known")


def test_without_a_route_it_is_not_an_azure_vm_or_a_pod_without_host_network(tmp_path: Path) -> None:
    """Without a way to 169.254.169.254 it says "not an Azure VM", or in a pod that it lacks the host network."""
    flags = (f"--outbox.path={tmp_path}/outbox.db",)
    bare = run_check(*flags, isolated="-rn")
    assert bare.returncode == 1
    sentence = printed_line(bare, "metadata")
    assert sentence.startswith(f"fail metadata {IMDS} has no route from here: this is")
    pod = run_check(*flags, isolated="-rn", environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert "this pod has no host network" in printed_line(pod, "metadata")
    assert "set hostNetwork: true" in printed_line(pod, "metadata")


def test_a_missing_or_contradicted_identity_says_what_follows(service: MetadataService) -> None:
    """A name that is missing, that contradicts the configured one, or cannot be asked: what follows from it is said."""
    settings = settings_for(service.url, "--source.vm-name=host00000A")
    sentence_of(
        findings_of(probe_metadata, settings),
        FAIL,
        "identity",
        "source.vm_name is host00000A",
        "calls this VM WestNO_0",
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
    sentence_of(findings_of(probe_metadata, settings), WARN, "identity", "the configured name host00000A stands")
    nameless = http_ok(b'{"name":"","vmScaleSetName":"web","vmId":"x"}')
    with RawServer(answers(nameless)) as server:
        findings = findings_of(probe_metadata, settings_for(server.url))
        sentence_of(findings, FAIL, "identity", "compute.name is empty", "in the scale set web it is web_NUMBER")
        findings = findings_of(probe_metadata, settings_for(server.url, "--source.vm-name=web_1"))
        sentence_of(findings, WARN, "identity", "the configured name web_1 stands")


def test_the_tags_that_this_vm_has_are_told_and_a_name_that_it_does_not_have_is_a_warning() -> None:
    """A misspelled name shows, and no other tag does."""
    loaded = scenario.parse(
        "tagged", {"description": "Tags.", "vms": [{"name": "vm-1", "tags": {"Owner": "web"}}], "steps": []}
    )
    with MetadataService(loaded, speed=1000) as service:
        findings = findings_of(probe_metadata, settings_for(service.url, "--source.tags=owner,enviroment"))
        sentence_of(findings, WARN, "tags", "this VM has no tag enviroment", "it has owner (web)")
        assert NOISE not in str(findings)
        findings = findings_of(probe_metadata, settings_for(service.url, "--source.tags=owner"))
        assert not [finding for finding in findings if finding.topic == "tags"]


def test_events_that_name_only_other_vms_are_a_warning(service: MetadataService) -> None:
    """Events that all name other VMs are a warning that shows the names."""
    service.set_document(
        {"DocumentIncarnation": 7, "Events": [{"EventId": "a", "EventType": "Freeze", "Resources": ["x", "y"]}]}
    )
    findings = findings_of(probe_metadata, settings_for(service.url))
    sentence_of(findings, OK, "metadata", "document 7, 1 event")
    sentence_of(findings, WARN, "events", "no event names this VM (WestNO_0): they name x, y")
    service.set_document(
        {"DocumentIncarnation": 8, "Events": [{"EventId": "a", "EventType": "Freeze", "Resources": ["westno_0"]}]}
    )
    assert "events" not in {finding.topic for finding in findings_of(probe_metadata, settings_for(service.url))}


@pytest.mark.parametrize(
    ("ahead", "verdict", "words"),
    [
        (0, OK, "agrees with that of the metadata service"),
        (20, WARN, "s behind that of the metadata service: switch time synchronisation on"),
        (-20, WARN, "s ahead of that of the metadata service"),
        (-4000, FAIL, "s ahead of that of the metadata service"),
    ],
)
def test_a_clock_that_is_off_is_a_warning_beyond_2_s_and_a_failure_beyond_30_s(
    ahead: float, verdict: FindingVerdict, words: str
) -> None:
    """The service's Date against ours: a warning beyond 2 s, a failure beyond 30."""
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
def test_no_clock_is_compared_without_a_date_of_the_service(answer: bytes) -> None:
    """What refuses, redirects, or answers in its place has a clock of its own; a service that sends no Date, none."""
    date = format_datetime(datetime.now(UTC), usegmt=True)
    with RawServer(answers(answer.replace(b"{date}", date.encode()))) as server:
        findings = findings_of(probe_metadata, settings_for(server.url))
    assert not [finding for finding in findings if finding.topic == "clock"]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("ahead", "error", "verdict"),
    [(2.4, 0.5, OK), (2.6, 0.5, WARN), (7.0, 5.1, OK), (30.4, 0.5, WARN), (30.6, 0.5, FAIL), (1.0, 9.0, OK)],
)
def test_only_what_lies_beyond_the_error_of_a_reading_counts(
    ahead: float, error: float, verdict: FindingVerdict, sign: int
) -> None:
    """A Date has whole seconds, and an answer takes time: so much may be off without saying anything."""
    report = Report(clocks=(ClockReading("the peer", sign * ahead, error),))
    (finding,) = run_probes(Settings(), ENVIRONMENT, {"peer": lambda *_: report})
    assert (finding.verdict, finding.topic) == (verdict, "clock")


def test_the_reading_with_the_least_error_is_taken() -> None:
    """Of a slow and a quick answer the quick one."""
    report = Report(clocks=(ClockReading("slow", 0.0, 3.0), ClockReading("quick", 60.0, 0.5)))
    (finding,) = run_probes(Settings(), ENVIRONMENT, {"peer": lambda *_: report})
    assert (finding.verdict, "quick" in finding.sentence) == (FAIL, True)


def test_an_answer_that_took_long_has_a_larger_error() -> None:
    """Half of the time it took, and half a second of the Date itself, which is cut to whole seconds."""
    (reading,) = clock_of("peer", "Thu, 01 Jan 1970 00:16:40 GMT", ours=1003.0, took=4.0)
    assert (reading.ahead, reading.error) == (-0.5, 2.5)


# --- the whole


def test_a_probe_that_never_ends_or_that_breaks_is_a_finding() -> None:
    """The command ends in time and names the probe that was late; a mistake of its own is a finding, no traceback."""
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


def test_a_peer_that_resets_at_once_is_reached() -> None:
    """A reset while we still connect is an answer, however fast it comes: not a missing route."""
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


def test_a_healthy_machine_is_ok_in_every_line_with_exit_code_0(tmp_path: Path, service: MetadataService) -> None:
    """With all in order every line is ok, in a fixed order, and the command ends with 0."""
    with reserved_port() as port:
        process = run_check(
            f"--source.url={service.url}",
            f"--outbox.path={tmp_path}/outbox.db",
            f"--web.listen-address=127.0.0.1:{port}",
        )
    assert (process.returncode, process.stderr) == (0, "")
    lines = process.stdout.partition("\nprobing")[2].splitlines()[1:]
    assert [text.split()[:2] for text in lines] == [
        ["ok", "metadata"],
        ["ok", "identity"],
        ["ok", "outbox"],
        ["ok", "web"],
        ["ok", "clock"],
    ]
    assert not service.posts
