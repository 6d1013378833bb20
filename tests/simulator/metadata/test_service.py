"""The simulated metadata service over HTTP: rejections, approvals, and documents."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import pytest

from exporter.simulator.metadata import protocol, scenario
from exporter.simulator.metadata.platform import API_VERSIONS, utc
from exporter.simulator.metadata.protocol import MAX_BODY
from exporter.simulator.metadata.scenario import ScenarioError
from exporter.simulator.metadata.service import MetadataService
from tests.support.factories import Clock
from tests.support.simulator_client import COMPUTE, EVENTS, METADATA, MIGRATION, START, approve, ask, playing

STRICT = {
    "no metadata header": ("GET", EVENTS, {}, 400),
    "metadata header false": ("GET", EVENTS, {"Metadata": "false"}, 400),
    "metadata header in capitals": ("GET", EVENTS, {"METADATA": "True"}, 200),
    "forwarded": ("GET", EVENTS, {**METADATA, "X-Forwarded-For": "10.0.0.1"}, 400),
    "forwarded without an address": ("GET", EVENTS, {**METADATA, "X-Forwarded-For": ""}, 400),
    "no version": ("GET", "/metadata/scheduledevents", METADATA, 400),
    "empty version": ("GET", "/metadata/scheduledevents?api-version=", METADATA, 400),
    "latest": ("GET", "/metadata/scheduledevents?api-version={latest}", METADATA, 400),
    "unknown version": ("GET", "/metadata/scheduledevents?api-version=2021-12-13", METADATA, 400),
    "two versions": ("GET", EVENTS + "&api-version=2020-07-01", METADATA, 400),
    "oldest version": ("GET", "/metadata/scheduledevents?api-version=2017-03-01", METADATA, 200),
    "trailing slash": ("GET", "/metadata/scheduledevents/?api-version=2020-07-01", METADATA, 200),
    "unknown path": ("GET", "/metadata/other?api-version=2020-07-01", METADATA, 404),
    "root": ("GET", "/", METADATA, 404),
    "put": ("PUT", EVENTS, METADATA, 405),
    "delete": ("DELETE", EVENTS, METADATA, 405),
    "unknown method": ("BREW", EVENTS, METADATA, 405),
    "post to the instance": ("POST", COMPUTE, {**METADATA, "Content-Length": "0"}, 405),
    "instance": ("GET", COMPUTE, METADATA, 200),
    "whole instance": ("GET", "/metadata/instance?api-version=2021-12-13", METADATA, 200),
    "instance without version": ("GET", "/metadata/instance/compute", METADATA, 400),
    "instance with the version of events": ("GET", "/metadata/instance/compute?api-version=2020-07-01", METADATA, 400),
    "instance leaf as text": ("GET", COMPUTE.replace("compute", "compute/name") + "&format=text", METADATA, 200),
    "instance leaf as json": ("GET", COMPUTE.replace("compute", "compute/name"), METADATA, 400),
    "instance branch as text": ("GET", COMPUTE + "&format=text", METADATA, 400),
    "unknown instance leaf": ("GET", COMPUTE.replace("compute", "compute/nothing"), METADATA, 404),
    "post without a body": ("POST", EVENTS, {**METADATA, "Content-Length": "0"}, 400),
    "post without a length": ("POST", EVENTS, {**METADATA, "Transfer-Encoding": "chunked"}, 400),
}


@pytest.fixture(scope="module")
def migrating() -> Iterator[MetadataService]:
    """Yield the documented live migration, stopped at its announcement."""
    clock = Clock(START)
    with playing("live-migration", clock) as service:
        clock.now += 60
        yield service


@pytest.mark.parametrize("case", STRICT)
def test_requests_are_checked_as_strictly_as_by_azure(migrating: MetadataService, case: str) -> None:
    """Each request gets the status of the table; a rejection is JSON with the reason."""
    method, path, headers, status = STRICT[case]
    reply = ask(migrating, path, method, headers=headers, body=b"0\r\n\r\n" if "Transfer-Encoding" in headers else None)
    assert reply.status == status
    if status >= 400:
        assert reply.json["error"]
        assert reply.headers["Content-Type"].startswith("application/json")
    if status == 405:
        assert "GET" in reply.headers["Allow"]


def test_every_response_has_its_date(migrating: MetadataService) -> None:
    """Every response has the Date of the platform's clock, with which a client can check its own."""
    for reply in (ask(migrating), ask(migrating, "/"), ask(migrating, headers={}), ask(migrating, COMPUTE)):
        assert parsedate_to_datetime(reply.headers["Date"]).timestamp() == int(Clock(START).now + 60)


def test_the_response_to_head_has_no_body(migrating: MetadataService) -> None:
    """HEAD is rejected with headers only, so that the connection can be used for the next request."""
    connection = http.client.HTTPConnection(urlsplit(migrating.url).netloc, timeout=5)
    connection.request("HEAD", EVENTS, headers=METADATA)
    assert connection.getresponse().read() == b""
    connection.request("GET", EVENTS, headers=METADATA)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["DocumentIncarnation"]) == (200, 2)
    connection.close()


@pytest.mark.parametrize("version", ["2017-08-01", "2019-03-11", "2020-06-01", "2021-02-01"])
def test_older_versions_of_the_instance_are_answered(migrating: MetadataService, version: str) -> None:
    """Each of Azure's older api-versions gets the instance."""
    assert ask(migrating, f"/metadata/instance?api-version={version}").json["compute"]["name"] == "WestNO_0"


def test_a_missing_version_returns_the_supported_ones(migrating: MetadataService) -> None:
    """The rejection of a request without api-version lists the supported ones, the newest first."""
    reply = ask(migrating, "/metadata/scheduledevents")
    assert reply.json["newest-versions"] == list(reversed(API_VERSIONS))


BODIES = {
    "not json": b"{",
    "empty": b"",
    "a list": b"[]",
    "no requests": b"{}",
    "empty requests": b'{"StartRequests": []}',
    "requests as object": b'{"StartRequests": {"EventId": "%s"}}' % MIGRATION.encode(),
    "id alone": b'{"StartRequests": ["%s"]}' % MIGRATION.encode(),
    "number as id": b'{"StartRequests": [{"EventId": 1}]}',
    "no id": b'{"StartRequests": [{}]}',
    "other case of key": b'{"startRequests": [{"eventId": "%s"}]}' % MIGRATION.encode(),
    "one of two malformed": b'{"StartRequests": [{"EventId": "%s"}, {}]}' % MIGRATION.encode(),
    "unknown id": b'{"StartRequests": [{"EventId": "00000000-0000-0000-0000-000000000000"}]}',
    "one of two unknown": b'{"StartRequests": [{"EventId": "%s"}, {"EventId": "x"}]}' % MIGRATION.encode(),
    "too deep": b"[" * 30_000,
}


@pytest.mark.parametrize("case", BODIES)
def test_a_malformed_body_approves_nothing(migrating: MetadataService, case: str) -> None:
    """A body that isn't a list of known ids gets a 400, and none of its ids is approved."""
    assert ask(migrating, method="POST", body=BODIES[case]).status == 400
    assert migrating.platform.approvals == ()


def test_a_large_body_is_refused(migrating: MetadataService) -> None:
    """A body over the limit gets a 413 and isn't parsed."""
    assert ask(migrating, method="POST", body=b" " * (MAX_BODY + 1)).status == 413


def test_an_approval_is_answered_200_each_time_and_starts_the_event_early() -> None:
    """A valid id in any letter case gets a 200, also again and once Started; after removal, a 400."""
    clock = Clock(START)
    with playing("live-migration", clock) as service:
        assert approve(service, MIGRATION) == 400
        clock.now += 60
        assert approve(service, MIGRATION.lower()) == 200
        assert service.posts[-1].status == 200
        assert approve(service, MIGRATION) == 200
        assert ask(service).json["Events"][0]["EventStatus"] == "Scheduled"
        clock.now += 5
        started = ask(service).json
        assert (started["DocumentIncarnation"], started["Events"][0]["EventStatus"]) == (3, "Started")
        assert started["Events"][0]["NotBefore"] == ""
        assert approve(service, MIGRATION) == 200
        clock.now += 17
        assert ask(service).json == {"DocumentIncarnation": 4, "Events": []}
        assert approve(service, MIGRATION) == 400
        assert service.finished()
    assert [post.status for post in service.posts] == [400, 200, 200, 200, 400]
    assert service.posts[1].event_ids == (MIGRATION.lower(),)
    assert service.posts[1].time == START + 60


def test_requests_are_recorded_with_time_path_and_headers() -> None:
    """A test can inspect the requests of a client."""
    with playing("quiet", Clock(START)) as service:
        ask(service, headers={**METADATA, "User-Agent": "me"})
    (request,) = service.requests
    assert (request.time, request.method, request.path) == (START, "GET", EVENTS)
    assert (request.headers["metadata"], request.headers["user-agent"]) == ("true", "me")


def test_one_connection_serves_many_requests(migrating: MetadataService) -> None:
    """Connections are kept open, even after a rejection with a body."""
    connection = http.client.HTTPConnection(urlsplit(migrating.url).netloc, timeout=5)
    connection.connect()
    before = connection.sock
    for method, body, status in (("GET", None, 200), ("POST", b"{", 400), ("PUT", b"abc", 405), ("GET", None, 200)):
        connection.request(method, EVENTS, body=body, headers=METADATA)
        response = connection.getresponse()
        response.read()
        assert (response.status, connection.sock) == (status, before)
    connection.close()


def test_the_instance_describes_the_chosen_vm_in_strings() -> None:
    """`compute` is that of the service's VM, every leaf is a text, and confidential fields are present and marked."""
    with playing("live-migration", Clock(START), vm="westno_1") as service:
        compute = ask(service, COMPUTE).json
    assert (compute["name"], compute["vmScaleSetName"]) == ("WestNO_1", "WestNO")
    assert compute["osProfile"]["computerName"] == "WestNO000001"
    assert compute["resourceId"].endswith("/virtualMachineScaleSets/WestNO/virtualMachines/1")
    wanted = {"vmId", "subscriptionId", "resourceGroupName", "location", "zone", "vmSize", "priority", "physicalZone"}
    assert wanted <= compute.keys()
    assert all(isinstance(value, str | dict | list) for value in compute.values())
    assert protocol.NOISE in json.dumps(compute["publicKeys"])
    assert compute["userData"]
    assert compute["licenseType"] == ""
    assert compute["tagsList"] == [{"name": protocol.NOISE_TAG, "value": protocol.NOISE}]
    with pytest.raises(ScenarioError, match=r'unknown VM "stranger"'):
        MetadataService(scenario.load("quiet"), vm="stranger")


def test_tags_of_a_scenario_are_returned_in_addition_to_the_confidential_one() -> None:
    """Tags are returned as a list and as one text, as in Azure."""
    tagged = {"name": "a", "tags": {"owner": "web", "env": "x"}}
    loaded = scenario.parse("tagged", {"description": "Tags.", "vms": [tagged, "b"], "steps": []})
    noise = {"name": protocol.NOISE_TAG, "value": protocol.NOISE}
    shown = protocol.compute(loaded.vms[0])
    assert shown["tagsList"] == [{"name": "owner", "value": "web"}, {"name": "env", "value": "x"}, noise]
    assert shown["tags"] == f"owner:web;env:x;{protocol.NOISE_TAG}:{protocol.NOISE}"
    assert protocol.compute(loaded.vms[1])["tagsList"] == [noise]
    for tags in ("owner", {"owner": 7}):
        with pytest.raises(ScenarioError, match=r"\$\.vms\[0\]\.tags"):
            scenario.parse("tagged", {"description": "Tags.", "vms": [{"name": "a", "tags": tags}], "steps": []})


def test_two_vms_of_one_scenario_see_the_same_approval() -> None:
    """Services that share a platform show and approve the same events, each for its own VM."""
    clock = Clock(START)
    with (
        playing("live-migration", clock) as first,
        playing("live-migration", clock, platform=first.platform, vm="WestNO_1") as other,
    ):
        clock.now += 60
        assert approve(first, MIGRATION) == 200
        clock.now += 6
        assert ask(other).json["Events"][0]["EventStatus"] == "Started"
        assert ask(other, COMPUTE).json["name"] == "WestNO_1"


def test_a_set_document_is_returned_unchanged() -> None:
    """`set_document` returns exactly these bytes and accepts approvals of its ids, until the scenario is restored."""
    with playing("quiet", Clock(START)) as service:
        document = b'{"Events": [{"EventId": "AbC"}], "DocumentIncarnation": 9 }'
        service.set_document(document)
        assert ask(service).body == document
        assert (approve(service, "aBc"), approve(service, "other")) == (200, 400)
        service.set_document({"DocumentIncarnation": 10, "Events": []})
        assert ask(service).json["DocumentIncarnation"] == 10
        assert approve(service, "abc") == 400
        service.set_document(b"\xff not json")
        assert approve(service, "abc") == 400
        service.set_document(None)
        assert ask(service).json == {"DocumentIncarnation": 1, "Events": []}


def test_switching_off_stops_responses_and_restarts_the_incarnation() -> None:
    """Without service, connections are reset for 24 hours; the document afterwards has DocumentIncarnation 1."""
    clock = Clock(START)
    with playing("switched-off", clock) as service:
        clock.now += 30
        assert ask(service).json["DocumentIncarnation"] == 8
        clock.now += 300
        with pytest.raises(ConnectionResetError):
            ask(service)
        clock.now += 86_380
        assert ask(service).json == {"DocumentIncarnation": 1, "Events": []}


def test_a_repeated_play_has_new_ids_and_continues_the_incarnation() -> None:
    """With `repeat` the scenario restarts; no EventId is reused and DocumentIncarnation never decreases."""
    clock = Clock(START)
    with playing("host-failure", clock, repeat=True) as service:
        seen = []
        for _ in range(3):
            clock.now += 30
            document = ask(service).json
            seen.append((document["DocumentIncarnation"], document["Events"][0]["EventId"]))
            clock.now += 470
        assert not service.finished()
    assert [number for number, _ in seen] == [2, 4, 6]
    assert len({event_id for _, event_id in seen}) == 3


def test_times_in_documents_follow_the_wall_clock() -> None:
    """At any speed, NotBefore is a whole second at which the event starts, and not before."""
    clock = Clock(START)
    with playing("user-reboot", clock, speed=100) as service:
        clock.now += 0.5
        due = ask(service).json["Events"][0]["NotBefore"]
        assert due == "Mon, 21 Sep 2026 14:13:30 GMT"
        assert utc(clock.now).isoformat() == "2026-09-21T14:13:20.750000+00:00"
        clock.now = START - 0.25 + 9.999
        assert ask(service).json["Events"][0]["EventStatus"] == "Scheduled"
        clock.now += 0.001
        assert ask(service).json["Events"][0]["EventStatus"] == "Started"


def test_a_test_can_wait_for_a_request() -> None:
    """`wait_until` ends with the expected request, and returns False without it."""
    with playing("quiet", Clock(START)) as service:
        asking = threading.Thread(target=ask, args=(service,))
        asking.start()
        assert service.wait_until(lambda: len(service.requests) == 1, 5)
        asking.join()
        assert not service.wait_until(lambda: len(service.requests) == 2, 0.01)
