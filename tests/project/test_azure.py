"""What an operator uses in Azure: user data for cloud-init, and the commands of the page about Azure."""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import re
import shlex
import shutil
import socketserver
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from exporter.config.load import load
from exporter.config.schema import catalogue
from tests.support.documentation import PAGES, ROOT, blocks

pytestmark = pytest.mark.linux("runs a shell script of user data, and judges pages of the checkout")

NAME: Final = "azure-scheduled-events-exporter"
USER_DATA: Final = (ROOT / "deploy" / "azure" / "cloud-init.yaml").read_text(encoding="utf-8")
CLOUD_CONFIG: Final[dict[str, Any]] = yaml.safe_load(USER_DATA)
FILES: Final = {Path(entry["path"]).name: entry for entry in CLOUD_CONFIG["write_files"]}
SCRIPT: Final[str] = FILES[f"install-{NAME}"]["content"]
PLACES: Final = {
    "@NAMESPACE@": "example.servicebus.windows.net",
    "@EVENT_HUB@": "scheduled-events",
    "@VERSION@": "0.1.0",
    "@DEB_SHA256@": "0" * 64,
    "@RPM_SHA256@": "0" * 64,
}
CLIENT_ID: Final = "11111111-2222-3333-4444-555555555555"

SCHEMA: Final = {
    "type": "object",
    "properties": {
        "write_files": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "pattern": "^/"},
                    "owner": {"const": "root:root"},
                    "permissions": {"type": "string", "pattern": "^0[0-7]{3}$"},
                    "content": {"type": "string"},
                },
                "required": ["path", "owner", "permissions", "content"],
                "additionalProperties": False,
            },
        },
        "runcmd": {"type": "array", "items": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
    },
    "required": ["write_files", "runcmd"],
    "additionalProperties": False,
}
"""The part of cloud-init's schema that the file uses, valid from Ubuntu 20.04's and RHEL 8's versions on. `make -C
tests cloud-init` checks against cloud-init's whole schema."""


def filled_in(text: str, **others: str) -> str:
    for place, value in (PLACES | {f"@{name.upper()}@": value for name, value in others.items()}).items():
        text = text.replace(place, value)
    return text


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Run the script as cloud-init does, without any host name that resolves."""
    command = ["sh", "-c", script]
    return subprocess.run(command, text=True, capture_output=True, timeout=120, check=False)


# -- cloud-init


def test_the_user_data_is_cloud_config() -> None:
    """It begins with cloud-init's marker, and uses two modules in their plain form."""
    assert USER_DATA.startswith("#cloud-config\n")
    jsonschema.Draft202012Validator(SCHEMA).validate(CLOUD_CONFIG)
    assert len(USER_DATA.encode()) < 65536 * 3 // 4  # Azure's limit applies to the text in base64


def test_the_user_data_runs_only_what_it_writes() -> None:
    """The last stage runs the script, which only root can change."""
    script = FILES[f"install-{NAME}"]
    assert CLOUD_CONFIG["runcmd"] == [["sh", script["path"]]]
    assert script["permissions"] == "0755"


def test_the_settings_of_the_user_data_are_valid(tmp_path: Path) -> None:
    """The settings are read without an error, sign in with an identity, and approve nothing."""
    (tmp_path / "fleet.toml").write_text(filled_in(FILES["fleet.toml"]["content"]), encoding="utf-8")
    loaded = load(argparse.Namespace(**{"config.file": str(tmp_path / "fleet.toml")}), {})
    assert loaded.event_hubs.fully_qualified_namespace == PLACES["@NAMESPACE@"]
    assert loaded.approval.mode == "dry-run"
    assert loaded.warnings == ()


def test_the_user_data_has_the_hold_file_of_the_package() -> None:
    """The hold file of the package's settings, which the pages name, also holds here: the packaged settings are not
    read."""
    package = tomllib.loads((ROOT / "deploy" / "systemd" / "config.toml").read_text(encoding="utf-8"))
    fleet = tomllib.loads(FILES["fleet.toml"]["content"])
    assert package["approval"]["hold_file"]
    assert fleet["approval"]["hold_file"] == package["approval"]["hold_file"]


def test_the_user_data_names_settings_that_exist() -> None:
    """Every variable in `environment` is a setting or azure-identity's, and points to the file that is written."""
    lines = FILES["environment"]["content"].splitlines()
    named = dict(line.removeprefix("# ").split("=", 1) for line in lines if re.match(r"(# )?[A-Z_]+=", line))
    known = {setting.env for setting in catalogue()} | {"SCHEDULED_EVENTS_CONFIG_FILE", "AZURE_CLIENT_ID"}
    assert set(named) <= known
    assert named["SCHEDULED_EVENTS_CONFIG_FILE"] == FILES["fleet.toml"]["path"]


def test_the_user_data_holds_no_secret() -> None:
    """Every user of the VM can read it: it names no secret setting, neither as a variable nor as a key."""
    secret = [setting for setting in catalogue() if setting.secret]
    assert secret
    for setting in secret:
        assert setting.env not in USER_DATA
        assert not re.search(rf"^\s*{setting.name.partition('.')[2]}\b", USER_DATA, re.MULTILINE)


def test_every_placeholder_is_documented() -> None:
    """The placeholders in the file are those that its page names."""
    page = (ROOT / "docs" / "azure.md").read_text(encoding="utf-8")
    places = set(re.findall(r"@[A-Z_0-9]+@", USER_DATA.partition("write_files:")[2]))
    assert places == set(PLACES)
    for place in places:
        assert place in page


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "@VERSION@ is not a version"),
        ({"version": "0.1.0"}, "@DEB_SHA256@ is not a SHA-256"),
        ({"version": "0.1.0", "deb_sha256": ""}, "the SHA-256 of .* is missing"),
        ({"version": "0.1.0", "deb_sha256": "0" * 63}, "the SHA-256 of .* is missing"),
        ({"version": "../0", "deb_sha256": "0" * 64}, "../0 is not a version"),
    ],
)
def test_a_missing_value_stops_the_installation(changed: dict[str, str], said: str) -> None:
    """Without version and SHA-256 the script ends before it downloads anything, and reports what is missing."""
    if shutil.which("apt-get") is None:
        pytest.skip("the script takes another package on a host without apt-get")
    script = SCRIPT
    for name, value in changed.items():
        script = script.replace(f"@{name.upper()}@", value)
    done = run_script(script)
    assert done.returncode == 1
    assert re.fullmatch(f"{NAME}: not installed: {said}.*\n", done.stderr)


def test_the_page_fills_in_every_placeholder(tmp_path: Path) -> None:
    """The page's block makes user data without placeholders from a release's SHA256SUMS."""
    (block,) = [block for block in blocks(ROOT / "docs" / "azure.md") if "SHA256SUMS" in block.text]
    files = {f"{NAME}_0.1.0_amd64.deb": "d" * 64, f"{NAME}-0.1.0-1.x86_64.rpm": "e" * 64, f"{NAME}-0.1.0.tgz": "f" * 64}
    (tmp_path / "SHA256SUMS").write_text("".join(f"{sha256}  {name}\n" for name, sha256 in files.items()))
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    script = f"set -eu; namespace=example hub=scheduled-events client={CLIENT_ID}\n{block.text}"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True, timeout=60)
    made = yaml.safe_load((tmp_path / "user-data.yaml").read_text(encoding="utf-8"))
    files_made = {Path(entry["path"]).name: entry["content"] for entry in made["write_files"]}
    assert not re.search(r"@[A-Z_0-9]+@", "".join(files_made.values()))
    assert f"\nAZURE_CLIENT_ID={CLIENT_ID}\n" in files_made["environment"]
    assert f"deb_sha256='{'d' * 64}'" in files_made[f"install-{NAME}"]
    assert f"rpm_sha256='{'e' * 64}'" in files_made[f"install-{NAME}"]


def test_the_user_data_downloads_the_files_of_a_release() -> None:
    """The script downloads the files under the names that the build writes."""
    assert "file=${name}_${version}_amd64.deb" in SCRIPT
    assert "file=$name-$version-1.x86_64.rpm" in SCRIPT


# -- identity


@contextlib.contextmanager
def metadata_service() -> Iterator[tuple[str, list[str]]]:
    """A server that issues tokens as a VM's metadata service does: its URL, and the requested paths."""
    asked: list[str] = []
    token = {
        "access_token": "a",
        "expires_in": "3600",
        "expires_on": "9999999999",
        "resource": "r",
        "token_type": "Bearer",
    }

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps(token).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Suppress the request log."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()


@contextlib.contextmanager
def hangs_up() -> Iterator[int]:
    """Yield a port that accepts and closes every connection: the agent gets a token first."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(30)


@pytest.mark.parametrize("client_id", ["", CLIENT_ID], ids=["system-assigned", "user-assigned"])
def test_the_agent_signs_in_with_the_configured_identity(client_id: str, tmp_path: Path) -> None:
    """The agent requests a token for Event Hubs from the VM: for the identity in AZURE_CLIENT_ID if set, else for its
    own."""
    with metadata_service() as (url, asked), hangs_up() as port:
        environ = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(tmp_path),
            "AZURE_POD_IDENTITY_AUTHORITY_HOST": url,
            "SCHEDULED_EVENTS_SOURCE_URL": url,
            "SCHEDULED_EVENTS_OUTBOX_PATH": str(tmp_path / "outbox.db"),
            "SCHEDULED_EVENTS_EVENT_HUBS_FULLY_QUALIFIED_NAMESPACE": PLACES["@NAMESPACE@"],
            "SCHEDULED_EVENTS_EVENT_HUBS_EVENT_HUB": PLACES["@EVENT_HUB@"],
            "SCHEDULED_EVENTS_EVENT_HUBS_CUSTOM_ENDPOINT": f"sb://127.0.0.1:{port}",
        } | ({"AZURE_CLIENT_ID": client_id} if client_id else {})
        command = [sys.executable, "-m", "exporter", "check", "--probe"]
        subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, timeout=120, check=False)
    tokens = [path for path in asked if path.startswith("/metadata/identity/oauth2/token?")]
    assert tokens
    for path in tokens:
        assert "resource=https://eventhubs.azure.net" in path
        assert (f"client_id={CLIENT_ID}" in path) == bool(client_id)


# -- the page's commands


def az_commands() -> list[str]:
    """Yield each command of the Azure CLI in the pages, on one line."""
    shells = [block for page in PAGES for block in blocks(page) if block.language == "sh"]
    lines = [line for block in shells for line in block.text.replace("\\\n", " ").splitlines()]
    return [line for line in lines if re.search(r"\baz [a-z]", line)]


def test_every_azure_command_is_marked_as_not_run() -> None:
    """The tests have no Azure: each block that calls it is marked as not run."""
    calls = [
        block for page in PAGES for block in blocks(page) if re.search(r"(^|\()\s*az [a-z]", block.text, re.MULTILINE)
    ]
    assert len(calls) >= 6
    assert [str(block) for block in calls if not block.mark.startswith("not run: ")] == []


def test_the_azure_commands_are_complete() -> None:
    """Each command can be split as a shell does, and has each flag once."""
    assert az_commands()
    for line in az_commands():
        words = shlex.split(line.replace("$(", " ").replace(")", " "), comments=True)
        flags = [word for word in words if word.startswith("--")]
        assert len(set(flags)) == len(flags), line
