"""The landing page and hostile text: it doesn't run, hide, or break the page, also in a real browser."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from exporter.core.state import Instant
from exporter.page.status import status_value
from exporter.page.view import PAGE_CONTENT_TYPE, PAGE_HEADERS, quoted, render_page
from exporter.web.responses import Accept, WebResponse
from exporter.web.server import WebServer
from tests.support import statuses
from tests.support.page_reading import shown, terms
from tests.support.peers import need
from tests.support.statuses import FREEZE, EventScenario

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"></dd></article>"


def hostile_scenario() -> EventScenario:
    scenario = EventScenario()
    scenario.read()
    event = {
        **FREEZE,
        "EventType": "<b>Levitate</b>",
        "EventId": '"><svg onload="document.title=\'owned\'">',
        "Description": HOSTILE + " \u202egnp.exe\u2066 " + "W" * 900,
        "EventSource": "</style><script>document.title='owned'</script>",
        "Resources": ["shop-web_3", *(f"<i>{place}" + "n" * 100 for place in range(20))],
    }
    scenario.read(event)
    return scenario


def test_page_loads_no_external_resources() -> None:
    """No script, only the agent's own addresses, and the headers allow only the page's style."""
    page = shown(hostile_scenario().status())
    assert not list(page.all("script"))
    assert not list(page.one("body").all("img"))
    meta = {item.attributes.get("name") or item.attributes.get("http-equiv"): item for item in page.all("meta")}
    assert meta["viewport"].attributes["content"] == "width=device-width, initial-scale=1"
    assert meta["refresh"].attributes["content"] == "10"
    assert page.one("link").attributes["href"].startswith("data:image/svg+xml,")
    style = page.one("style").text
    assert "h1, h3, p, dd, th, td { overflow-y: clip; }" in style  # marks pile up in their own cell only
    assert "url(" not in style
    assert "@import" not in style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    headers = dict(PAGE_HEADERS)
    assert f"style-src 'sha256-{digest}'" in headers["Content-Security-Policy"]
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
    assert "unsafe" not in headers["Content-Security-Policy"]


def test_external_text_stays_text() -> None:
    """Markup in any field is shown literally, and characters that hide or reorder text are escaped."""
    page = shown(hostile_scenario().status(vm=replace(statuses.VM, node="<u>", resource_group='" onclick="x')))
    for name in ("script", "b", "i", "u", "svg", "img"):
        assert not list(page.all(name))
    article = page.one("article")
    assert article.one("h3").text == "<b>Levitate</b>"
    description = terms(article)["Description"]
    assert description.startswith(HOSTILE)
    assert "\\u202egnp.exe\\u2066" in description
    assert "more characters, see the records" in description
    assert terms(article)["Resources"].endswith(", 15 more")
    assert not [name for item in page.all("bdi") for name in item.attributes if name.startswith("on")]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain – ünïcode 日本 🚀", "plain – ünïcode 日本 🚀"),
        ("a\x00b\x1b[31m", "a\\u0000b\\u001b[31m"),
        ("a\u200bb\u2028c\ufeff", "a\\u200bb\\u2028c\\ufeff"),
        ("\u3164", "\\u3164"),
        ("\ud800", "\\ud800"),
    ],
)
def test_invisible_characters_are_escaped(text: str, seen: str) -> None:
    """Visible characters stay unchanged."""
    assert quoted(text).text == seen


@dataclass
class Served:
    """An application that serves one page, with or without its headers."""

    body: bytes
    headers: tuple[tuple[str, str], ...] = PAGE_HEADERS

    def respond(self, path: str, accept: Accept) -> WebResponse:
        return WebResponse(200, PAGE_CONTENT_TYPE, self.body if path == "/" and accept else b"", self.headers)


def browse(application: Served, folder: Path) -> tuple[str, str]:
    """Return the document after Chromium has loaded it, and Chromium's console output."""
    server = WebServer("127.0.0.1:0", application)
    server.start()
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--dump-dom"]
    arguments += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    arguments += ["--disable-dev-shm-usage", "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}"]
    try:
        done = subprocess.run(
            [need("chromium"), *arguments, "http://{}:{}/".format(*server.address)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    finally:
        server.stop()
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.peer("chromium")
def test_real_browser_runs_no_hostile_text(tmp_path: Path) -> None:
    """Chromium shows a hostile description as text and accepts the style under the page's policy."""
    scenario = hostile_scenario()
    page = render_page(status_value(scenario.status(), Instant(scenario.now), "1.2.3"))
    document, console = browse(Served(page), tmp_path)
    assert "<title>Event of unknown type" in document
    assert "&lt;script&gt;document.title='owned'&lt;/script&gt;&lt;img src=x onerror=" in document
    assert "<svg" not in document.split("<body>")[1]
    assert "<script" not in document
    assert console == ""


@pytest.mark.peer("chromium")
def test_content_security_policy_blocks_unescaped_scripts(tmp_path: Path) -> None:
    """The same script, unescaped, runs without the page's headers and is blocked with them."""
    page = b"<!doctype html><title>unchanged</title><body><script>document.title='owned'</script>"
    bare, _ = browse(Served(page, ()), tmp_path / "bare")
    assert "<title>owned</title>" in bare
    held, console = browse(Served(page), tmp_path / "held")
    assert "<title>unchanged</title>" in held
    assert "Content Security Policy" in console
