"""The identity of this VM: requested until it is known, then at intervals; the last valid response is kept."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable

import pytest

from exporter.agent.identity import REFRESH_SECONDS, RETRY_SECONDS, Identity, identity_of
from exporter.core.records import Vm
from exporter.log.log import Log
from exporter.metadata.client import MetadataClient
from exporter.simulator.metadata.protocol import NOISE
from exporter.simulator.metadata.scenario import Scenario, load, parse
from exporter.simulator.metadata.service import MetadataService
from tests.support.log_reading import logged

KNOWN = Vm(name="web-1", id="id-1", resource_id="/subscriptions/s/web-1", vmss_name="web", location="north")


def asking(url: str, *tags: str, **more: str) -> tuple[Identity, MetadataClient, Callable[[], str]]:
    """Return an identity, its client, and a function that returns all log lines so far."""
    text, client = io.StringIO(), MetadataClient(url, "2020-07-01", deadline=20, tags=tags)
    log = Log(text)
    return Identity(client, log, tags=tags, **more), client, lambda: logged(log, text)


@pytest.mark.parametrize(
    ("configured", "azure", "name", "conflict"),
    [
        ("", None, "", False),
        ("", KNOWN, "web-1", False),
        ("web-1", None, "web-1", False),
        ("WEB-1", KNOWN, "WEB-1", False),
        ("web-2", KNOWN, "web-2", True),
        ("web-2", Vm(id="id-1"), "web-2", False),
        ("kelvin-k", Vm(name="kelvin-\u212a"), "kelvin-k", True),
    ],
)
def test_configured_name_takes_precedence_and_can_conflict(
    configured: str, azure: Vm | None, name: str, conflict: bool
) -> None:
    """Two names that differ only in letter case are no conflict."""
    known = identity_of(configured, "", azure)
    assert (known.vm.name, known.conflict) == (name, conflict)


@pytest.mark.parametrize(
    ("fault", "confirmed"), [("instance/404", True), ("instance/500", False), ("instance/hang:1", False)]
)
def test_configured_name_is_confirmed_by_azure_or_a_404(fault: str, confirmed: bool) -> None:
    """No response and errors confirm nothing: the configuration may be another VM's. Simulators return 404."""
    with MetadataService(load("user-reboot"), speed=0.001) as service:
        identity, client, _ = asking(service.url, vm_name="vm-1")
        assert not identity.current().confirmed
        service.fault(fault)
        identity.refresh()
        assert (identity.current().vm.name, identity.current().confirmed) == ("vm-1", confirmed)
        service.fault(None)
        identity.refresh()
        assert (identity.current().confirmed, identity.current().conflict) == (True, False)
        service.fault(fault)
        identity.refresh()
        assert identity.current().confirmed
        client.close()


def test_different_name_after_a_404_is_a_conflict() -> None:
    with MetadataService(load("user-reboot"), speed=0.001) as service:
        identity, client, _ = asking(service.url, vm_name="vm-9")
        service.fault("instance/404")
        identity.refresh()
        assert (identity.current().confirmed, identity.current().conflict) == (True, False)
        service.fault(None)
        identity.refresh()
        assert identity.current().conflict
        client.close()


def test_identity_is_requested_until_known() -> None:
    """After 1, 2, 5, 10, and 30 s, then every five minutes; failures are logged once."""
    with MetadataService(load("user-reboot"), speed=0.001) as service:
        identity, client, lines = asking(service.url)
        service.fault("instance/500")
        assert [identity.refresh() for _ in range(6)] == [*RETRY_SECONDS, 30]
        assert identity.current().vm.name == ""
        service.fault(None)
        assert identity.refresh() == REFRESH_SECONDS
        assert identity.current().vm.name == "vm-1"
        assert lines().count("identity.failed") == 1
        assert lines().count("identity.recovered") == 1
        client.close()


def test_last_response_is_kept_during_failures() -> None:
    """It isn't logged again."""
    with MetadataService(load("user-reboot"), speed=0.001) as service:
        identity, client, lines = asking(service.url)
        identity.refresh()
        known = identity.current()
        for fault in ("500", "html", "empty", "not-json", "reset", "403"):
            service.fault(f"instance/{fault}")
            assert identity.refresh() < REFRESH_SECONDS
            assert identity.current() == known
        service.fault(None)
        identity.refresh()
        assert lines().count("identity.known") == 1
        client.close()


def with_tags(**tags: str) -> Scenario:
    """Return a scenario of one VM with these tags, and with another tag whose value is a secret."""
    return parse("tagged", {"description": "Tags.", "vms": [{"name": "vm-1", "tags": tags}], "steps": []})


def test_only_requested_fields_are_kept() -> None:
    """User data, keys, and other tags of the instance document are neither in the result nor in the log."""
    with MetadataService(with_tags(owner="web"), speed=0.001) as service:
        identity, client, lines = asking(service.url, "owner", vm_name="other", node="node-1")
        identity.refresh()
        known = identity.current()
        assert known.vm.tags == (("owner", "web"),)
        assert NOISE not in f"{known} {lines()}"
        assert (known.conflict, known.vm.node) == (True, "node-1")
        assert "event=identity.conflict" in lines()
        client.close()


class Restarted:
    """A metadata service that is replaced while an agent runs: to tests, the VM's tags have changed."""

    def __init__(self, client: MetadataClient) -> None:
        self.client = client

    def instance(self) -> Vm:
        return self.client.instance()

    def abort(self) -> None:
        self.client.abort()


def test_changed_tag_arrives_with_the_next_regular_request() -> None:
    """The tag's name is known from the start, and its value is kept during failures; no log line contains it."""
    text, names = io.StringIO(), ("OWNER", "environment")
    log = Log(text)
    with (
        MetadataService(with_tags(owner="web", Environment="test"), speed=0.001) as before,
        MetadataService(with_tags(owner="shop"), speed=0.001) as after,
        contextlib.closing(MetadataClient(before.url, "2020-07-01", deadline=20, tags=names)) as first,
        contextlib.closing(MetadataClient(after.url, "2020-07-01", deadline=20, tags=names)) as second,
    ):
        source = Restarted(first)
        identity = Identity(source, log, tags=names)
        assert identity.current().vm.tags == (("OWNER", ""), ("environment", ""))
        identity.refresh()
        assert identity.current().vm.tags == (("OWNER", "web"), ("environment", "test"))
        assert len(before.requests) == 1
        before.fault("instance/500")
        identity.refresh()
        assert identity.current().vm.tags == (("OWNER", "web"), ("environment", "test"))
        source.client = second
        assert identity.refresh() == REFRESH_SECONDS
        assert identity.current().vm.tags == (("OWNER", "shop"), ("environment", ""))
    lines = logged(log, text)
    assert lines.count("identity.known") == 1
    assert not any(value in lines for value in ("web", "shop", "test"))


def test_hanging_service_blocks_neither_wait_nor_stop() -> None:
    with MetadataService(load("user-reboot"), speed=0.001, faults=["instance/hang:60"]) as service:
        client = MetadataClient(service.url, "2020-07-01")
        identity = Identity(client, Log(None))
        identity.start()
        identity.wait(0.2)
        assert identity.current().vm.name == ""
        began = time.monotonic()
        identity.stop()
        identity.wait(60)
        assert time.monotonic() - began < 20  # the request would hang for a minute
        client.close()
