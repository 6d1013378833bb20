"""`rate_limit` of the web-config file: it counts unauthenticated clients, not the scraper or the probes."""

from __future__ import annotations

import ssl
from pathlib import Path

import bcrypt
import httpx
import pytest

from exporter.web.responses import HEALTH
from tests.support.certificates import Authority, write
from tests.support.web_target import config, serving

AUTH = ("prometheus", "right")
USERS = f"basic_auth_users:\n  prometheus: {bcrypt.hashpw(b'right', bcrypt.gensalt(4)).decode()}\n"
TWO_AN_HOUR = "rate_limit: {interval: 1h, burst: 2}\n"


def test_health_paths_are_exempt_from_the_rate_limit(tmp_path: Path) -> None:
    """Probes are neither counted nor refused, before and after other clients have used up the limit."""
    with serving(web_config=config(tmp_path, TWO_AN_HOUR)) as (host, port), httpx.Client() as client:

        def status(path: str) -> int:
            return client.get(f"http://{host}:{port}{path}").status_code

        assert [status(path) for path in sorted(HEALTH) * 3] == [200] * 3 * len(HEALTH)
        assert [status(path) for path in ("/metrics", "/", "/metrics", "/nope")] == [200, 200, 429, 429]
        assert [status(path) for path in sorted(HEALTH)] == [200] * len(HEALTH)


def test_health_paths_include_the_probes_and_exclude_the_pages() -> None:
    """Every path under `/-/` is exempt."""
    assert {"/-/healthy", "/-/ready"} <= HEALTH
    assert not {"/", "/metrics"} & HEALTH


@pytest.mark.parametrize("strangers_first", [False, True])
def test_a_known_password_is_exempt_from_the_rate_limit(tmp_path: Path, strangers_first: bool) -> None:
    """A client with the right password is never refused, even if others have used up the limit before."""
    with serving(web_config=config(tmp_path, USERS + TWO_AN_HOUR)) as (host, port), httpx.Client() as client:

        def status(auth: tuple[str, str] | None) -> int:
            return client.get(f"http://{host}:{port}/metrics", auth=auth).status_code

        if not strangers_first:
            assert [status(AUTH) for _ in range(5)] == [200] * 5
        assert [status(None), status(("prometheus", "wrong")), status(None)] == [401, 401, 429]
        assert [status(("prometheus", "wrong")), status(("eve", "wrong"))] == [429, 429]
        assert [status(AUTH) for _ in range(5)] == [200] * 5


def test_a_verified_client_certificate_is_exempt_from_the_rate_limit(tmp_path: Path) -> None:
    """If client certificates are requested without a password, only clients without one are counted."""
    authority = Authority()
    for name in ("localhost", "prometheus"):
        write(tmp_path, name, *authority.issue(name, "127.0.0.1"))
    (tmp_path / "ca.crt").write_text(authority.pem)
    text = "tls_server_config:\n  cert_file: localhost.crt\n  key_file: localhost.key\n  client_ca_file: ca.crt\n"
    text += "  client_auth_type: VerifyClientCertIfGiven\n" + TWO_AN_HOUR
    with serving(web_config=config(tmp_path, text)) as (host, port):
        statuses = []
        for name in ("", "prometheus"):
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
            if name:
                context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
            with httpx.Client(verify=context, trust_env=False) as client:
                statuses.append([client.get(f"https://{host}:{port}/metrics").status_code for _ in range(4)])
    assert statuses == [[200, 200, 429, 429], [200] * 4]
