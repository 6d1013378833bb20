"""Proxies of the environment: the rules of curl and requests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import pytest

from exporter.http.transport import Proxy, environment_proxy

HTTP = "http://collector.example:4318/v1/logs"
HTTPS = "https://collector.example/v1/logs"
SMALL, LARGE = "http://small:1", "http://large:1"


@pytest.mark.parametrize(
    ("url", "environ", "variable"),
    [
        (HTTP, {}, ""),
        (HTTP, {"http_proxy": SMALL}, "http_proxy"),
        (HTTPS, {"http_proxy": SMALL}, ""),
        (HTTPS, {"https_proxy": SMALL}, "https_proxy"),
        (HTTPS, {"HTTPS_PROXY": LARGE, "ALL_PROXY": SMALL}, "HTTPS_PROXY"),
        (HTTP, {"http_proxy": SMALL, "HTTP_PROXY": LARGE}, "http_proxy"),
        (HTTP, {"http_proxy": "", "HTTP_PROXY": LARGE}, ""),
        (HTTP, {"http_proxy": "", "all_proxy": SMALL}, "all_proxy"),
        (HTTP, {"ALL_PROXY": LARGE}, "ALL_PROXY"),
        (HTTP, {"HTTP_PROXY": LARGE, "REQUEST_METHOD": "GET"}, ""),
        (HTTP, {"http_proxy": SMALL, "REQUEST_METHOD": "GET"}, "http_proxy"),
    ],
)
def test_the_variable_of_the_scheme_sets_the_proxy(url: str, environ: Mapping[str, str], variable: str) -> None:
    """The scheme's variable comes before `all_proxy`, lower case before upper case, and a CGI header is ignored."""
    proxy = environment_proxy(url, environ)
    assert (proxy.variable if proxy else "") == variable
    assert proxy is None or proxy.url == environ[variable]


@pytest.mark.parametrize(
    ("url", "exempt", "direct"),
    [
        (HTTP, "*", True),
        (HTTP, "collector.example", True),
        (HTTP, "COLLECTOR.example", True),
        (HTTP, "other, .example", True),
        (HTTP, "example:4318", True),
        (HTTP, "collector.example:4317", False),
        (HTTP, "ample", False),
        (HTTP, "or.example", False),
        (HTTP, "x.collector.example", False),
        ("http://10.1.2.3:4318/", "10.0.0.0/8", True),
        ("http://10.1.2.3:4318/", "10.1.2.3", True),
        ("http://10.1.2.3:4318/", "11.0.0.0/8", False),
        ("http://[fd00::1]:4318/", "fd00::/8", True),
        (HTTP, "10.0.0.0/8,nonsense/x", False),
        (HTTP, "", False),
    ],
)
def test_no_proxy_exempts_hosts(url: str, exempt: str, direct: bool) -> None:
    """By name, domain, port, address, and network; never by the middle of a name."""
    for variable in ("no_proxy", "NO_PROXY"):
        assert (environment_proxy(url, {"http_proxy": SMALL, variable: exempt}) is None) is direct


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A proxy's address, and the requests it received."""
    targets: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            targets.append(self.path)
            self.send_error(503)

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", targets
    server.shutdown()
    thread.join()
    server.server_close()


WITH_SYSTEM_SETTINGS: Final = """\
import asyncio, sys, types
settings = types.ModuleType("_scproxy")  # of macOS: Python's library reads the system's settings from it
settings._get_proxies = lambda: {"http": sys.argv[1], "https": sys.argv[1]}
settings._get_proxy_settings = lambda: {"exclude_simple": False}
sys.modules["_scproxy"] = settings
own, sys.platform = sys.platform, "darwin"
import urllib.request
if sys.argv[2] == "otlp":
    from exporter.http.transport import environment_proxy
    assert environment_proxy("http://collector.example:4318/v1/logs", {}) is None
    assert environment_proxy("https://collector.example/v1/logs", {}) is None
    sys.exit()
sys.platform = own
from exporter.sinks.event_hubs.address import default_credential

async def ask():
    credential = default_credential()()
    try:
        await asyncio.wait_for(credential.get_token("https://eventhubs.azure.net/.default"), 30)
    except Exception:
        pass
    await credential.close()

asyncio.run(ask())
"""


@pytest.mark.parametrize(("part", "in_environment"), [("otlp", False), ("identity", False), ("identity", True)])
def test_proxies_of_the_system_settings_are_not_used(
    asked: tuple[str, list[str]], part: str, in_environment: bool
) -> None:
    """They belong to the signed-in user. OTLP and the sign-in to Event Hubs use only the environment's proxies."""
    proxy, targets = asked
    environ = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environ |= {"IDENTITY_ENDPOINT": "http://identity.invalid/token", "IDENTITY_HEADER": "x"}
    environ |= {"http_proxy": proxy} if in_environment else {}
    subprocess.run([sys.executable, "-c", WITH_SYSTEM_SETTINGS, proxy, part], env=environ, check=True, timeout=120)
    assert bool(targets) is in_environment
    assert all(target.startswith("http://identity.invalid/") for target in targets)


def test_a_proxy_address_with_credentials_is_parsed() -> None:
    """The scheme is optional; user and password go to the proxy and aren't shown."""
    proxy = Proxy.parse("http://us%40er:s3cr3t@proxy.example:3128")
    assert (proxy.host, proxy.port) == ("proxy.example", 3128)
    assert proxy.authorization == b"Basic dXNAZXI6czNjcjN0"
    assert "czNj" not in repr(proxy)
    assert (Proxy.parse("proxy.example:3128").host, Proxy.parse("http://proxy.example").port) == ("proxy.example", 80)


@pytest.mark.parametrize(
    "url",
    ["socks5://user:s3cr3t@proxy:1080", "https://user:s3cr3t@proxy", "http://:3128", "http://proxy:s3cr3t"],
)
def test_an_invalid_proxy_address_is_refused(url: str) -> None:
    """The ValueError contains no password."""
    with pytest.raises(ValueError, match="proxy address") as caught:
        Proxy.parse(url)
    assert "s3cr3t" not in str(caught.value)
