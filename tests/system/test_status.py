"""`/api/v1/status` of a real agent over HTTP: the page's data, with the same password, compressed, and never cached."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import bcrypt
import httpx
import pytest

from exporter.simulator.metadata.service import MetadataService
from tests.support.factories import service_of
from tests.support.lines import rejoined
from tests.support.peers import need
from tests.support.running import Run
from tests.support.status_reading import read_status

PATH = "/api/v1/status"
CREDENTIALS = ("bob", "right")


service = service_of("user-reboot", speed=20)


def test_the_status_of_a_running_agent_matches_its_page(tmp_path: Path, service: MetadataService) -> None:
    """GET, HEAD, gzip, the headers, and the same verdict as on the page; other methods are rejected."""
    with Run(service.url, tmp_path, "--approval.mode=off", "--gate.lead=5m") as run:
        run.wait_for(lambda: run.get(PATH).status_code == 200 and bool(read_status(run.get(PATH).content)["events"]))
        got = run.get(PATH)
        value = read_status(got.content)
        assert got.headers["Content-Type"] == "application/json"
        assert got.headers["Cache-Control"] == "no-store"
        assert got.headers["X-Content-Type-Options"] == "nosniff"
        assert got.headers["Content-Encoding"] == "gzip"
        url = f"http://{run.address}{PATH}"
        with httpx.Client(trust_env=False, timeout=30) as client:
            head = client.head(url)
            plain = client.get(url, headers={"Accept-Encoding": "identity"})
            with client.stream("GET", url) as raw:
                assert read_status(gzip.decompress(b"".join(raw.iter_raw())))["vm"] == value["vm"]
            assert client.post(url).status_code == 405
        assert (head.status_code, head.content) == (200, b"")
        assert "Content-Encoding" not in plain.headers
        assert read_status(plain.content)["vm"]["name"] == service.vm.name
        title = re.search(r"<strong>(.*?)</strong>", run.get("/").text)
        assert title is not None
        assert title[1].split(" in ")[0] == value["verdict"]["title"].split(" in ")[0]
        assert value["approval"]["mode"] == "off"
        assert value["events"][0]["decision"]["reason"] == "off"
        assert value["gate"]["open"] is (run.get("/-/gate").status_code == 200)
        assert value["event_files"] is None
        assert run.stop() == 0


def test_the_status_requires_the_password_of_the_page(tmp_path: Path, service: MetadataService) -> None:
    """Without the password the response has no data; with it, all."""
    web = tmp_path / "web.yml"
    web.write_text(f"basic_auth_users:\n  bob: {bcrypt.hashpw(b'right', bcrypt.gensalt(4)).decode()}\n")
    with Run(service.url, tmp_path, f"--web.config.file={web}") as run:
        for path in ("/", PATH):
            refused = run.get(path)
            assert (refused.status_code, refused.text) == (401, "Unauthorized\n")
        url = f"http://{run.address}{PATH}"
        assert httpx.get(url, auth=("bob", "wrong"), trust_env=False).status_code == 401
        answer = httpx.get(url, auth=CREDENTIALS, trust_env=False, timeout=30)
        assert read_status(answer.content)["approval"]["mode"] == "dry-run"


def test_check_reports_the_mode_of_the_running_agent(tmp_path: Path, service: MetadataService) -> None:
    """The command with settings that are not in force yet prints a warning and ends with exit code 0."""
    with Run(service.url, tmp_path) as run:
        run.wait_for(lambda: run.metric("up") == 1)
        command = [sys.executable, "-m", "exporter", "check", "--probe", f"--source.url={service.url}"]
        command += [f"--outbox.path={tmp_path / 'outbox.db'}", f"--web.listen-address={run.address}"]
        command += ["--source.poll-interval=250ms", "--approval.mode=enforce"]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False)
    lines = [line for line in rejoined(done.stdout).splitlines() if line.split()[1:2] == ["agent"]]
    assert len(lines) == 2, done.stdout
    assert lines[0].endswith(f"is running in mode dry-run on {service.vm.name}; it reads the metadata service")
    assert lines[1].startswith("warn  agent")
    assert "approval.mode dry-run (these settings: enforce): restart it to apply these settings" in lines[1]
    assert done.returncode == 0


@pytest.mark.peer("jq")
@pytest.mark.linux("jq is asked of apt")
def test_the_documented_jq_filters_read_the_status(tmp_path: Path, service: MetadataService) -> None:
    """The filters of docs/status.md work on a real response."""
    page = (Path(__file__).parents[2] / "docs" / "status.md").read_text(encoding="utf-8")
    filters = re.findall(r"\| jq (?:-\w+ )*'([^']+)'", page)
    assert len(filters) >= 3
    with Run(service.url, tmp_path) as run:
        run.wait_for(lambda: run.metric("document_events") == 1)
        body = run.get(PATH).content
    for each in filters:
        done = subprocess.run([need("jq"), "-r", each], input=body, capture_output=True, timeout=30, check=True)
        assert done.stdout.strip(), each
