"""The gate of a real agent, for a prober and for a real HAProxy, with the examples of docs/gate.md."""

from __future__ import annotations

import csv
import http.client
import http.server
import re
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx
import pytest

from exporter.agent.app import App
from exporter.log.log import Log
from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService
from tests.support.agent_environment import document, event, started
from tests.support.configuration import loaded
from tests.support.documentation import ROOT
from tests.support.peers import need, until
from tests.support.running import Run

PAGE: Final = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
REBOOT: Final = "6a8c1f0e-3b52-4c47-9d10-2f7e5b94c8d3"
LEAD: Final = 30
GATE: Final = "/-/gate"


def quiet() -> MetadataService:
    """A metadata service of `vm-1` without events."""
    return MetadataService(load("user-reboot"), speed=0.001)


def reboot(seconds: float) -> dict[str, object]:
    """Return a document with a reboot of vm-1 by the platform, with `NotBefore` this many seconds from now."""
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    return event(REBOOT, "Reboot", "vm-1", EventSource="Platform", NotBefore=f"{at:%a, %d %b %Y %H:%M:%S} GMT")


# -- HAProxy and its servers


class Application:
    """A web server behind the load balancer, which answers with its name. It can be stopped and started again."""

    def __init__(self, name: str, host: str, port: int = 0) -> None:
        self._name = name.encode()
        self._address = (host, port)

    @property
    def port(self) -> int:
        return self._address[1]

    def start(self) -> None:
        name = self._name

        class Get(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(name)))
                self.end_headers()
                self.wfile.write(name)

            def log_message(self, format: str, *args: object) -> None:
                """Suppress the request log."""

        self._server = http.server.ThreadingHTTPServer(self._address, Get)
        self._address = (self._address[0], self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(30)
        self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def asked(port: int, path: str) -> tuple[int, str]:
    """Return status and text of a GET on a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class Balancer:
    """A running HAProxy. `port` is its frontend's; its statistics page shows the state of its servers."""

    def __init__(self, frontend: socket.socket, statistics: socket.socket) -> None:
        self.port: int = frontend.getsockname()[1]
        self._statistics: int = statistics.getsockname()[1]

    def server(self, name: str) -> dict[str, str]:
        """Return the statistics of a server: `status` is UP or DOWN, `check_status` L7OK after a successful check."""
        _, text = asked(self._statistics, "/;csv")
        return next(row for row in csv.DictReader(text.removeprefix("# ").splitlines()) if row["svname"] == name)

    def is_up(self, name: str) -> bool:
        """Return whether it gets requests because of a check, and not because it was never checked."""
        row = self.server(name)
        return (row["status"], row["check_status"]) == ("UP", "L7OK")

    def is_out(self, name: str) -> bool:
        return self.server(name)["status"] == "DOWN"


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


@contextmanager
def haproxy(folder: Path, first: str, second: str, application: int, agent: int) -> Iterator[Balancer]:
    """Start HAProxy with the configuration of the page, for servers at these addresses with applications and agents on
    these ports. It checks ten times a second, and inherits its listening sockets, so that no port is free in between.
    """
    config = re.search(r"```text\n(defaults\n.*?)```", PAGE, re.DOTALL)
    assert config is not None
    with ExitStack() as stack:
        frontend, statistics = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        text = replaced(config[1], "bind :80\n", f"bind fd@{frontend.fileno()}\n")
        text = replaced(text, "inter 2s", "inter 100ms")
        text = replaced(text, "port 10169", f"port {agent}")
        text = replaced(text, "10.0.0.4:8080", f"{first}:{application}")
        text = replaced(text, "10.0.0.5:8080", f"{second}:{application}")
        text += f"\nfrontend statistics\n    bind fd@{statistics.fileno()}\n    stats enable\n    stats uri /\n"
        (folder / "haproxy.cfg").write_text(text)
        process = subprocess.Popen(
            [need("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")],
            pass_fds=(frontend.fileno(), statistics.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stack.enter_context((folder / "haproxy.log").open("w")),
        )
        try:
            yield Balancer(frontend, statistics)
        finally:
            process.terminate()
            process.wait(30)


class Customers:
    """Requests without a pause, each on a new connection, during the block."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.served: Counter[str] = Counter()
        """Number of responses by application; failures are counted by their error."""

    def _ask(self) -> None:
        while not self._done.wait(0.005):
            try:
                status, text = asked(self._port, "/")
                self.served[text if status == httpx.codes.OK else str(status)] += 1
            except (OSError, http.client.HTTPException) as error:
                self.served[repr(error)] += 1

    def wait_for(self, name: str, more: int = 5) -> None:
        """Wait for this many further responses from one application."""
        target = self.served[name] + more
        until(lambda: self.served[name] >= target, every=0.01)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(60)


class Shop:
    """Two VMs behind HAProxy, each with its agent, application, and metadata service, and their clients."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.azure, self.other_azure = (stack.enter_context(quiet()) for _ in range(2))
        for service in (self.azure, self.other_azure):
            service.set_document(document(1))
        self.agent = self._agent(self.azure, "127.77.0.4:0")
        port = int(self.agent.address.rpartition(":")[2])
        self.other = self._agent(self.other_azure, f"127.77.0.5:{port}")
        self._application = stack.enter_context(Application("web-1", "127.77.0.4"))
        stack.enter_context(Application("web-2", "127.77.0.5", self._application.port))
        for agent in (self.agent, self.other):
            agent.wait_for(lambda agent=agent: agent.get("/-/ready").status_code == httpx.codes.OK)  # type: ignore[misc]  # a default can't be annotated
        self.balancer = stack.enter_context(haproxy(folder, "127.77.0.4", "127.77.0.5", self._application.port, port))
        until(lambda: self.balancer.is_up("web-1") and self.balancer.is_up("web-2"))
        self.customers = stack.enter_context(Customers(self.balancer.port))

    def _agent(self, service: MetadataService, listen: str) -> Run:
        folder = self._folder / listen.partition(":")[0]
        folder.mkdir(exist_ok=True)
        return self._stack.enter_context(Run(service.url, folder, f"--gate.lead={LEAD}s", listen=listen))

    def goes_down(self) -> None:
        """End everything on the first VM."""
        self._address = self.agent.address
        assert self.agent.stop() == 0
        self._application.stop()

    def comes_back(self) -> None:
        """Start the application last, when the agent knows that the event hasn't ended. Earlier responses of the agent
        aren't checked, because its start time depends on the machine."""
        self.agent = self._agent(self.azure, self._address)
        self.agent.wait_for(lambda: self.agent.get(GATE).text.startswith("Closed: Reboot of this VM has started"))
        self._application.start()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    need("haproxy")
    with ExitStack() as stack:
        yield Shop(tmp_path, stack)


@pytest.mark.peer("haproxy")
@pytest.mark.linux("its servers have addresses of 127.0.0.0/8, and the sockets of HAProxy are inherited")
def test_haproxy_takes_a_server_out_before_its_reboot_and_back_after_it(shop: Shop) -> None:
    """No request fails during the reboot of one VM with its agent, nor while the other VM's metadata service doesn't
    respond, which takes no server out."""
    balancer, customers = shop.balancer, shop.customers
    customers.wait_for("web-1")
    customers.wait_for("web-2")
    shop.azure.set_document(document(2, reboot(3600)))
    shop.agent.wait_for(lambda: shop.agent.metric("document_events") == 1)
    customers.wait_for("web-1")  # announced, and not near yet

    coming = reboot(LEAD + 1)
    shop.azure.set_document(document(3, coming))
    shop.agent.wait_for(lambda: balancer.is_out("web-1"))
    assert shop.agent.get(GATE).text.startswith("Closed: Reboot of this VM can start from 2")
    customers.wait_for("web-2")
    served = customers.served["web-1"]

    shop.azure.set_document(document(4, started(coming)))
    shop.goes_down()
    customers.wait_for("web-2", 20)
    shop.comes_back()
    customers.wait_for("web-2", 20)
    assert (customers.served["web-1"], balancer.is_out("web-1")) == (served, True)

    shop.azure.set_document(document(5))
    shop.agent.wait_for(lambda: balancer.is_up("web-1"))
    customers.wait_for("web-1")

    shop.other_azure.close()
    shop.other.wait_for(lambda: shop.other.metric("up") == 0)
    taken_out = balancer.server("web-2")["chkdown"]
    customers.wait_for("web-2", 20)
    assert shop.other.get(GATE).status_code == 200
    assert (balancer.is_out("web-2"), balancer.server("web-2")["chkdown"]) == (False, taken_out)
    assert set(customers.served) == {"web-1", "web-2"}


# -- examples of the page


def shown(number: int) -> str:
    """Return a block of the page with curl's output, without its first line."""
    blocks = re.findall(r"```text\n\$ curl -i http://10\.0\.0\.4:10169/-/gate\n(.*?)```", PAGE, re.DOTALL)
    return str(blocks[number])


def without_times(text: str) -> str:
    """Return the text with each time as @."""
    return re.sub(r"\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT|\d{4}-\d\d-\d\dT[\d:]{8}Z", "@", text)


@pytest.fixture
def announced(tmp_path: Path) -> Iterator[tuple[MetadataService, Run]]:
    """An agent that has read of a reboot in an hour."""
    with quiet() as service:
        service.set_document(document(1, reboot(3600)))
        with Run(service.url, tmp_path) as run:
            run.wait_for(lambda: run.metric("document_events") == 1)
            yield service, run


@pytest.mark.peer("curl")
def test_the_page_shows_what_curl_prints(announced: tuple[MetadataService, Run]) -> None:
    """Open and closed, the whole response matches except for its times."""
    service, run = announced
    for number, status in enumerate((200, 503)):
        run.wait_for(lambda status=status: run.get(GATE).status_code == status)  # type: ignore[misc]  # a default can't be annotated
        curl = [need("curl"), "--silent", "--include", f"http://{run.address}{GATE}"]
        printed = subprocess.run(curl, capture_output=True, text=True, check=True, timeout=30).stdout
        assert without_times(printed.replace("\r\n", "\n")) == without_times(shown(number))
        service.set_document(document(2, reboot(60)))


@pytest.mark.peer("curl")
@pytest.mark.linux("runs a shell block of the page")
def test_health_page_fails_only_when_the_gate_is_closed(
    announced: tuple[MetadataService, Run],
) -> None:
    """The command of the page and of the readiness probe works with an open gate, a closed one, and no agent."""
    service, run = announced
    need("curl")
    shown = re.findall(r'^( *)(test "\$\(curl [^`]*?!= 503)$', PAGE, re.MULTILINE)
    (_, command), (_, probe) = ((margin, re.sub(r"(?: \\)?\n *", " ", text)) for margin, text in shown)
    assert probe == command.replace("${NODE:-127.0.0.1}", "$NODE")
    command = replaced(command, ":10169", ":" + run.address.rpartition(":")[2])

    def says_yes() -> bool:
        return subprocess.run(["/bin/sh", "-c", command], check=False, timeout=30).returncode == 0

    assert says_yes()
    service.set_document(document(2, reboot(60)))
    run.wait_for(lambda: run.get(GATE).status_code == httpx.codes.SERVICE_UNAVAILABLE)
    assert not says_yes()
    assert run.stop() == 0
    assert says_yes()


def test_gate_never_opens_when_the_agent_starts_during_an_event(tmp_path: Path) -> None:
    """The first response waits for the first document, even if no event was known before: a load balancer must not see
    the gate open for a moment, and send traffic to a VM that is about to be interrupted."""
    with quiet() as service:
        service.set_document(document(1, started(reboot(60))))
        settings = loaded(
            *("--web.listen-address=127.0.0.1:0", "--log.level=error", f"--source.url={service.url}"),
            f"--outbox.path={tmp_path / 'outbox.db'}",
        )
        app = App(settings, Log(None), environ={}, gate_patience=60.0)
        app.start()
        answers: list[bytes] = []
        prober = threading.Thread(target=lambda: answers.append(app.respond(GATE, "text").body))
        prober.start()
        loop = threading.Thread(target=app.run)
        loop.start()
        prober.join()
        app.stop()
        loop.join()
    assert answers[0].startswith(b"Closed: Reboot of this VM has started")


def test_the_gate_opens_after_a_second_without_an_answer(tmp_path: Path) -> None:
    """The prober's wait is bounded: if the source doesn't respond, the gate fails open."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Run(url, tmp_path) as run:
            assert run.get(GATE).text.startswith("Open: the name of this VM is not known yet")


def test_a_restart_during_an_event_keeps_the_gate_closed_without_its_source(tmp_path: Path) -> None:
    """Data of the previous process counts by the wall clock while it is fresh; the VM's name is configured."""
    with quiet() as service:
        service.set_document(document(1, started(reboot(60))))
        with Run(service.url, tmp_path) as run:
            run.wait_for(lambda: run.get(GATE).status_code == httpx.codes.SERVICE_UNAVAILABLE)
            assert run.stop() == 0
    with Run(service.url, tmp_path, "--source.vm-name=vm-1") as run:
        assert run.get(GATE).text.startswith("Closed: Reboot of this VM has started")
        run.wait_for(lambda: run.metric("poll_failures_total", reason="connect") not in (None, 0.0))
        assert run.get(GATE).status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert run.get("/-/ready").status_code == httpx.codes.SERVICE_UNAVAILABLE
