"""Reading and reloading a web-config file."""

from __future__ import annotations

import io
import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from exporter.log.log import Log
from exporter.web.config import WebConfig, WebConfigError
from exporter.web.config_file import RateLimit, WebConfigFile
from tests.support.certificates import Authority, encrypted, ends, write
from tests.support.factories import Clock
from tests.support.log_reading import logged

HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
TLS_LINES = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def path(tmp_path: Path, authority: Authority) -> Path:
    """Return the path of the file to write; its directory has a certificate and a CA."""
    write(tmp_path, "server", *authority.issue("localhost"))
    (tmp_path / "ca.crt").write_text(authority.pem)
    (tmp_path / "named.crt").write_text(f"# Főtanúsítvány\n{authority.pem}# Türktrust\n", encoding="utf-8")
    return tmp_path / "web.yml"


def errors_of(path: Path, text: str) -> list[str]:
    path.write_text(text)
    with pytest.raises(WebConfigError) as caught:
        WebConfig(path)
    return caught.value.errors


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "tls_server_config:\nbasic_auth_users:\nrate_limit:\nhttp_server_config:\n",
        TLS_LINES,
        TLS_LINES + "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.crt\n",
        TLS_LINES + "  min_version: TLS12\n  max_version: TLS13\n",
        f"basic_auth_users:\n  alice: {HASH}\n  123: {HASH}\n",
        "rate_limit: {interval: 0, burst: 0}\n",
        "rate_limit: {interval: 1m30s, burst: 5}\n",
        "rate_limit: {interval: 2562047h, burst: 9223372036854775807}\n",
        TLS_LINES + "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: named.crt\n",
    ],
)
def test_valid_files_are_read(path: Path, text: str) -> None:
    """Files that the toolkit's documentation allows are read without an error."""
    path.write_text(text)
    assert WebConfig(path).reload_failures == 0


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("foo: 1", "entry 1", "unknown key"),
        ("[1, 2]", "", "expected a mapping"),
        ("a: {b: [}", "line 1", "expected YAML"),
        ("? [a]\n: 1", "line 1", "expected YAML"),
        ("rate_limit: {burst: 1}\nrate_limit: {burst: 2}", "line 2", "duplicate key"),
        (TLS_LINES + "  cert_filse: server.crt\n", "tls_server_config.cert_filse", "unknown key"),
        ("tls_server_config: 5", "tls_server_config", "expected a mapping"),
        ("tls_server_config: {cert_file: server.crt}", "tls_server_config.key_file", "missing"),
        ("tls_server_config: {key_file: server.key}", "tls_server_config.cert_file", "missing"),
        (TLS_LINES + "  cert: x\n", "tls_server_config.cert", "either"),
        (
            "tls_server_config: {cert_file: no.crt, key_file: server.key}",
            "tls_server_config.cert_file",
            "cannot be read",
        ),
        (
            "tls_server_config: {cert_file: server.crt, key_file: ca.crt}",
            "tls_server_config",
            "cannot use certificate, key, and client CA together",
        ),
        (TLS_LINES + "  client_ca_file: ca.crt\n", "client_auth_type", "missing; required with"),
        (TLS_LINES + "  client_allowed_sans: [a]\n", "client_auth_type", "missing; required with"),
        (TLS_LINES + "  client_auth_type: RequireAndVerifyClientCert\n", "client_ca_file", "requires client_ca or"),
        (TLS_LINES + "  client_auth_type: RequestClientCert\n", "client_auth_type", "without verifying"),
        (TLS_LINES + "  client_auth_type: RequireAnyClientCert\n", "client_auth_type", "without verifying"),
        (TLS_LINES + "  client_auth_type: Nonsense\n", "client_auth_type", "expected one of"),
        (TLS_LINES + "  min_version: TLS14\n", "min_version", "expected one of"),
        (TLS_LINES + "  max_version: TLS11\n", "max_version", "RFC 8996"),
        (TLS_LINES + "  min_version: TLS13\n  max_version: TLS12\n", "min_version", "at most max_version"),
        (TLS_LINES + "  cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]\n", "cipher_suites", "expected only values of"),
        (TLS_LINES + "  curve_preferences: [CurveP256, X25519]\n", "curve_preferences", "one curve or all four"),
        (TLS_LINES + "  prefer_server_cipher_suites: maybe\n", "prefer_server", "true or false"),
        ("basic_auth_users: {alice: secret}", "basic_auth_users: entry 1", "bcrypt"),
        (f"basic_auth_users: {{'': '{HASH}'}}", "basic_auth_users: entry 1", "expected a user name"),
        (
            f"basic_auth_users:\n  a: {HASH}\n  b: {HASH.replace('$10$', '$18$')}",
            "entry 2",
            "a bcrypt cost of at most 17",
        ),
        ("http_server_config: {headers: {Server: x}}", "http_server_config.headers: entry 1", "cannot be set"),
        ("http_server_config: {headers: {X-Frame-Options: allow}}", "headers.X-Frame-Options", "deny, sameorigin"),
        ('http_server_config: {headers: {X-XSS-Protection: "a\\r\\nb"}}', "headers.X-XSS-Protection", "one line"),
        ("rate_limit: {interval: soon, burst: 1}", "rate_limit.interval", "expected a duration"),
        ("rate_limit: {interval: 1s, burst: 0}", "rate_limit.burst", "at least 1"),
        (f"rate_limit: {{interval: 1{'0' * 400}, burst: 1}}", "rate_limit.interval", "expected a duration"),
        (f"rate_limit: {{interval: 1{'0' * 400}h, burst: 1}}", "rate_limit.interval", "expected a duration"),
        ("rate_limit: {interval: 9223372037s, burst: 1}", "rate_limit.interval", "expected a duration"),
        (f"rate_limit: {{interval: 1s, burst: 1{'0' * 400}}}", "rate_limit.burst", "expected a whole number"),
        ("rate_limit: {interval: 1s, burst: 9223372036854775808}", "rate_limit.burst", "expected a whole number"),
        (f'basic_auth_users: {{"al\\ud800ice": "{HASH}"}}', "line 1", "lone surrogate"),
        ('tls_server_config: {cert_file: "\\udfffx", key_file: k}', "line 1", "lone surrogate"),
        ('http_server_config: {headers: {X-XSS-Protection: "\\ud83d\\ude00"}}', "line 1", "lone surrogate"),
        ("rate_limit: {interval: !!int '', burst: 1}", "", "expected YAML"),
        ("rate_limit: {interval: !!bool x, burst: 1}", "", "expected YAML"),
        ("rate_limit: {interval: !!timestamp x, burst: 1}", "", "expected YAML"),
        ('basic_auth_users: {"\\UFFFFFFFF": x}', "", "expected YAML"),
    ],
)
def test_invalid_files_are_refused_with_file_key_and_expected_value(
    path: Path, text: str, key: str, expected: str
) -> None:
    """Each error has the file, the key, and the expected value."""
    errors = errors_of(path, text)
    assert len(errors) == 1, errors
    assert errors[0].startswith(f"{path}: ")
    assert key in errors[0]
    assert expected in errors[0]


def test_all_errors_are_reported_at_once_and_none_shows_a_secret(path: Path) -> None:
    """A file with many errors reports them all, without a password or key."""
    text = "tls_server_config: {cert_file: no.crt, key: [hunter2], min_version: TLS9}\n"
    text += "basic_auth_users: {alice: hunter2}\nrate_limit: {burst: hunter2}\nfoo: 1\n"
    errors = errors_of(path, text)
    assert len(errors) >= 6
    assert "hunter2" not in str(errors)
    assert "hunter2" not in str(errors_of(path, "key: 'hunter2\nfoo: ]"))


def test_a_missing_file_is_a_readable_error(tmp_path: Path) -> None:
    """It shows the path and the reason, without a traceback."""
    with pytest.raises(WebConfigError, match="cannot be read: No such file"):
        WebConfig(tmp_path / "none.yml")


def test_an_encrypted_key_is_refused_without_a_prompt(path: Path, authority: Authority) -> None:
    """A key with a passphrase is an error, and there is no prompt."""
    certificate, key = authority.issue("localhost")
    write(path.parent, "server", certificate, encrypted(key))
    assert "cannot use certificate" in errors_of(path, TLS_LINES)[0]


def test_inline_certificates_are_read(path: Path, authority: Authority) -> None:
    """`cert`, `key`, and `client_ca` may be PEM texts instead of files; on Windows only `client_ca`."""

    def block(key: str, pem: str) -> str:
        return f"  {key}: |\n" + "".join(f"    {line}\n" for line in pem.splitlines())

    certificate, key = authority.issue("localhost")
    text = "tls_server_config:\n  client_auth_type: RequireAndVerifyClientCert\n"
    path.write_text(text + block("cert", certificate) + block("key", key) + block("client_ca", authority.pem))
    if sys.platform == "win32":
        with pytest.raises(WebConfigError, match="expected key_file"):
            WebConfig(path)
        return
    assert WebConfig(path).certificate_not_after == ends(certificate)
    assert "PRIVATE" not in repr(WebConfig(path))


@pytest.mark.parametrize("days", [1, 365 * 24, 365 * 60], ids=["soon", "2050", "after-2050"])
def test_the_expiry_time_of_the_certificate_is_read(path: Path, authority: Authority, days: int) -> None:
    """Both DER formats of times (before and from 2050 on) are read as the cryptography package reads them."""
    certificate, key = authority.issue("localhost", lasting=timedelta(days=days))
    write(path.parent, "server", certificate, key)
    path.write_text(TLS_LINES)
    assert WebConfig(path).certificate_not_after == ends(certificate)


def test_a_file_without_tls_has_no_expiry_time(path: Path) -> None:
    """A file without TLS has no certificate."""
    path.write_text("")
    assert WebConfig(path).certificate_not_after is None


def test_an_invalid_new_certificate_leaves_the_old_one_in_use(path: Path, authority: Authority) -> None:
    """The failure is counted, logged once, retried later, and ends when the certificate is valid."""
    path.write_text(TLS_LINES)
    clock, text = Clock(), io.StringIO()
    log = Log(text)
    web_config = WebConfig(path, log=log, clock=clock)
    old = web_config.current
    (path.parent / "server.crt").write_text("broken")
    for _ in range(5):
        web_config.refresh()
    assert (web_config.current, web_config.reload_failures) == (old, 1)
    clock.now += 31
    web_config.refresh()
    assert web_config.reload_failures == 2
    assert logged(log, text).count("event=web.config_broken") == text.getvalue().count("\n") == 1
    certificate, key = authority.issue("localhost", lasting=timedelta(days=7))
    write(path.parent, "server", certificate, key)
    web_config.refresh()
    assert web_config.current is not old
    assert web_config.certificate_not_after == ends(certificate)
    assert "event=web.config_recovered" in logged(log, text)


def test_a_change_of_users_is_used_after_a_refresh(path: Path) -> None:
    """After the next refresh, a new user is admitted; TLS and the other users don't change."""
    path.write_text(f"basic_auth_users: {{alice: '{HASH}'}}")
    web_config = WebConfig(path)
    path.write_text(f"basic_auth_users: {{alice: '{HASH}', bob: '{HASH}'}}")
    web_config.refresh()
    assert set(web_config.current.users) == {b"alice", b"bob"}


MUTUAL = TLS_LINES + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
GIVEN = TLS_LINES + "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.crt\n"
GCM = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
CBC = "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"
USERS = f"basic_auth_users: {{alice: '{HASH}'}}\n"
HEADERS = "http_server_config: {{headers: {{{}}}}}\n".format


def reloaded(path: Path, before: str, after: str) -> tuple[WebConfig, WebConfigFile, str]:
    """Reload a changed file; return the configuration, the previous settings, and the log."""
    text = io.StringIO()
    log = Log(text)
    path.write_text(before)
    web_config = WebConfig(path, log=log)
    old = web_config.current
    path.write_text(after)
    os.utime(path, ns=(0, 0))  # the file system's clock may be too coarse
    web_config.refresh()
    return web_config, old, logged(log, text)


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        ("tls_server_config", TLS_LINES, ""),
        ("tls_server_config", MUTUAL + USERS, USERS),
        ("client_auth_type", MUTUAL, TLS_LINES),
        ("client_auth_type", MUTUAL, GIVEN),
        ("client_auth_type", GIVEN, TLS_LINES),
        ("client_auth_type", MUTUAL, TLS_LINES + "  client_auth_type: NoClientCert\n"),
        ("client_allowed_sans", MUTUAL + "  client_allowed_sans: [a, b]\n", MUTUAL),
        ("client_allowed_sans", MUTUAL + "  client_allowed_sans: [a, b]\n", MUTUAL + "  client_allowed_sans: []\n"),
        ("client_allowed_sans", MUTUAL + "  client_allowed_sans: [a]\n", MUTUAL + "  client_allowed_sans: [a, b]\n"),
        ("client_allowed_sans", MUTUAL + "  client_allowed_sans: [a]\n", MUTUAL + "  client_allowed_sans: [b]\n"),
        ("min_version", TLS_LINES + "  min_version: TLS13\n", TLS_LINES),
        ("min_version", TLS_LINES + "  min_version: TLS13\n", TLS_LINES + "  min_version: TLS10\n"),
        ("min_version", TLS_LINES + "  cipher_suites: [TLS_AES_128_GCM_SHA256]\n", TLS_LINES),
        ("max_version", TLS_LINES, TLS_LINES + "  max_version: TLS12\n"),
        ("cipher_suites", TLS_LINES + f"  cipher_suites: [{GCM}]\n", TLS_LINES),
        ("cipher_suites", TLS_LINES + f"  cipher_suites: [{GCM}]\n", TLS_LINES + f"  cipher_suites: [{GCM}, {CBC}]\n"),
        ("curve_preferences", TLS_LINES + "  curve_preferences: [CurveP384]\n", TLS_LINES),
        (
            "curve_preferences",
            TLS_LINES + "  curve_preferences: [CurveP384]\n",
            TLS_LINES + "  curve_preferences: [CurveP256]\n",
        ),
        ("prefer_server_cipher_suites", TLS_LINES, TLS_LINES + "  prefer_server_cipher_suites: false\n"),
        ("basic_auth_users", USERS, ""),
        ("basic_auth_users", USERS, "basic_auth_users:\n"),
        ("basic_auth_users", TLS_LINES + USERS, TLS_LINES),
        ("rate_limit", "rate_limit: {interval: 1s, burst: 5}", ""),
        ("rate_limit", "rate_limit: {interval: 1s, burst: 5}", "rate_limit: {interval: 0, burst: 5}"),
        ("rate_limit", "rate_limit: {interval: 1s, burst: 5}", "rate_limit: {interval: 999ms, burst: 5}"),
        ("rate_limit", "rate_limit: {interval: 1s, burst: 5}", "rate_limit: {interval: 1s, burst: 6}"),
        ("rate_limit", "rate_limit: {interval: 1s, burst: 5}", "rate_limit: {interval: 1h, burst: 6}"),
        ("http_server_config.headers", HEADERS("X-Frame-Options: deny"), ""),
        ("http_server_config.headers", HEADERS("X-Frame-Options: deny"), HEADERS("X-Frame-Options: sameorigin")),
        ("http_server_config.headers", HEADERS("X-Frame-Options: deny"), HEADERS("X-Frame-Options: ''")),
        ("http_server_config.headers", "", HEADERS("X-Frame-Options: sameorigin")),
        ("http_server_config.headers", "", HEADERS("Content-Security-Policy: default-src *")),
    ],
)
def test_reload_never_removes_protection(path: Path, key: str, before: str, after: str) -> None:
    """For every key, the previous settings stay in use, and the rejection is counted and logged with the key."""
    web_config, old, log_text = reloaded(path, before, after)
    assert web_config.current is old
    assert web_config.reload_failures == 1
    assert "event=web.config_broken" in log_text
    assert f"{key}: " in log_text
    assert "restart" in log_text
    assert WebConfig(path).current, "a restart does it"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", TLS_LINES),
        ("", USERS),
        (TLS_LINES, MUTUAL),
        (TLS_LINES, GIVEN),
        (GIVEN, MUTUAL),
        (MUTUAL, MUTUAL + "  client_allowed_sans: [a]\n"),
        (MUTUAL + "  client_allowed_sans: [a, b]\n", MUTUAL + "  client_allowed_sans: [b]\n"),
        (TLS_LINES, TLS_LINES + "  min_version: TLS13\n"),
        (TLS_LINES + "  min_version: TLS10\n", TLS_LINES),
        (TLS_LINES + "  max_version: TLS12\n", TLS_LINES),
        (TLS_LINES, TLS_LINES + f"  cipher_suites: [{GCM}]\n"),
        (TLS_LINES + f"  cipher_suites: [{GCM}]\n", TLS_LINES + "  min_version: TLS13\n"),
        (TLS_LINES, TLS_LINES + "  curve_preferences: [X25519]\n"),
        (TLS_LINES + "  prefer_server_cipher_suites: false\n", TLS_LINES),
        (USERS, f"basic_auth_users: {{alice: '{HASH.replace('DeSi', 'DeSu')}'}}"),
        (USERS, f"basic_auth_users: {{bob: '{HASH}'}}"),
        (USERS, USERS + "rate_limit: {interval: 1s, burst: 5}"),
        ("rate_limit: {interval: 1s, burst: 5}", "rate_limit: {interval: 2s, burst: 4}"),
        ("", HEADERS("Strict-Transport-Security: max-age=60")),
        (HEADERS("X-Frame-Options: deny"), HEADERS("X-Frame-Options: deny, X-Content-Type-Options: nosniff")),
        (TLS_LINES, TLS_LINES + "http_server_config: {http2: false}"),
    ],
)
def test_stronger_or_equal_protection_is_applied_at_once(path: Path, before: str, after: str) -> None:
    """A change of users and passwords is applied too."""
    web_config, old, _ = reloaded(path, before, after)
    assert web_config.reload_failures == 0
    assert web_config.current is not old


def test_client_ca_is_rotated_without_a_restart(path: Path) -> None:
    """The file has the new CA after the old one, then only the new one; a file without a CA is rejected."""
    path.write_text(MUTUAL + "  client_allowed_sans: [a]\n")
    web_config = WebConfig(path)
    both = (path.parent / "ca.crt").read_text() + (other := Authority().pem)
    for pem in (both, other):
        (path.parent / "ca.crt").write_text(pem)
        web_config.refresh()
        assert web_config.reload_failures == 0
    (path.parent / "ca.crt").write_text("")
    web_config.refresh()
    assert web_config.reload_failures == 1
    assert len(web_config.current.tls.get_ca_certs()) == 1  # type: ignore[union-attr]  # TLS is configured


def test_client_ca_with_a_non_ascii_comment_is_accepted(path: Path, authority: Authority) -> None:
    """The comments of a bundle don't matter: the new authority is trusted."""
    path.write_text(MUTUAL)
    config = WebConfig(path)
    other = Authority()
    text = f"# Főtanúsítvány\n{authority.pem}# 中国\n{other.pem}"
    (path.parent / "ca.crt").write_text(text, encoding="utf-8")
    config.refresh()
    assert config.reload_failures == 0
    assert config.current.tls is not None
    assert len(config.current.tls.get_ca_certs()) == 2


def test_a_client_ca_with_invalid_base64_is_refused(path: Path, authority: Authority) -> None:
    """Only text outside the certificates may contain any character."""
    (path.parent / "ca.crt").write_text(authority.pem.replace("MII", "MİI"), encoding="utf-8")
    (error,) = errors_of(path, MUTUAL)
    assert "cannot use certificate, key, and client CA together" in error


@pytest.mark.parametrize(
    "text",
    [
        f"rate_limit: {{interval: 1{'0' * 400}, burst: 1}}",
        f'basic_auth_users: {{"hunter2\\ud800": "{HASH}"}}',
        'tls_server_config: {cert_file: "\\ud800", key_file: k}',
        "rate_limit: {interval: !!int ''}",
    ],
)
def test_every_failed_reload_is_counted(path: Path, text: str) -> None:
    """Each failed read is counted and logged, and the file is read again once it is fixed."""
    stream = io.StringIO()
    log = Log(stream)
    now = [0.0]
    path.write_text("rate_limit: {interval: 1s, burst: 5}\n")
    config = WebConfig(path, log, lambda: now[0])
    path.write_text(text)
    config.refresh()
    now[0] = 31.0
    config.refresh()
    assert config.reload_failures == 2
    assert config.current.rate_limit == RateLimit(1.0, 5)
    written = logged(log, stream)
    assert "web.config_broken" in written
    assert "hunter2" not in written
    path.write_text("rate_limit: {interval: 2s, burst: 5}\n")
    config.refresh()
    assert config.current.rate_limit == RateLimit(2.0, 5)
    assert config.reload_failures == 2


def test_a_removed_file_is_a_failure_and_is_read_again_when_it_returns(path: Path) -> None:
    """Kubernetes and configuration tools replace files in steps; in between, the previous settings stay in use."""
    path.write_text(TLS_LINES)
    web_config = WebConfig(path)
    path.unlink()
    web_config.refresh()
    assert web_config.reload_failures == 1
    path.write_text(TLS_LINES)
    before = web_config.current
    web_config.refresh()
    assert web_config.current is not before


@pytest.mark.parametrize(
    "name",
    [
        *("007", "7", "0o17", "0x1F", "0b1", "1_000", "+1", "-1", "1.5", "1e3", ".5", ".inf", ".nan"),
        *("yes", "No", "on", "OFF", "true", "False", "y", "null", "~", "NULL", "2026-01-02"),
        *("2026-99-99", "=", "jürgen", "a b", "00", "0"),
    ],
)
def test_user_names_are_kept_as_written(path: Path, name: str) -> None:
    """YAML would read many of them as a number, a boolean, a date, or null."""
    path.write_text(f"basic_auth_users:\n  {name}: {HASH}\n", encoding="utf-8")
    assert set(WebConfig(path).current.users) == {name.encode()}


def test_user_name_may_be_quoted_and_must_be_unique(path: Path) -> None:
    """`007` and "007" are the same name, `7` is another one."""
    path.write_text(f"basic_auth_users:\n  '007': {HASH}\n  7: {HASH}\n")
    assert set(WebConfig(path).current.users) == {b"007", b"7"}
    assert "duplicate key" in errors_of(path, f"basic_auth_users:\n  '007': {HASH}\n  007: {HASH}\n")[0]


@pytest.mark.parametrize("name", ["!!python/name:os.system ''", "!secret x", "? ''", "!!binary aGk=", "<<"])
def test_key_with_a_tag_is_refused(path: Path, name: str) -> None:
    """An empty name is rejected too."""
    assert len(errors_of(path, f"basic_auth_users:\n  {name}: {HASH}\n")) == 1


@pytest.mark.parametrize("name", ["12:30", "190:20:30", "1:2.5", "2026-01-02T03:04:05Z", "'a:b'"])
def test_user_name_with_a_colon_is_refused(path: Path, name: str) -> None:
    """This includes names that YAML 1.1 reads as a number or time: the user in a header ends at the first colon."""
    (error,) = errors_of(path, f"basic_auth_users:\n  {name}: {HASH}\n")
    assert "without a colon" in error


def test_merged_mappings_are_read(path: Path) -> None:
    """An alias after `<<` merges the keys of another mapping, as in YAML 1.1."""
    limit = "rate_limit: {<<: {interval: 1s, burst: 3}, burst: 2}\n"
    path.write_text(f"{limit}basic_auth_users: {{7: &hash {HASH}, 8: *hash}}\n")
    current = WebConfig(path).current
    assert set(current.users) == {b"7", b"8"}
    assert current.rate_limit == RateLimit(1.0, 2)


def test_unchanged_files_are_not_read_again(path: Path) -> None:
    """A refresh then costs a few stat calls, and creates no context."""
    path.write_text(TLS_LINES)
    web_config = WebConfig(path)
    before = web_config.current
    web_config.refresh()
    assert web_config.current is before


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_are_read_as_powershell_writes_them(path: Path, authority: Authority, encoding: str) -> None:
    """Files may be UTF-16 or begin with a byte order mark. On Windows, certificate and key may not be UTF-16."""
    pem_encoding = "utf-8-sig" if sys.platform == "win32" else encoding
    for name, text in zip(("server.crt", "server.key"), authority.issue("localhost"), strict=True):
        path.with_name(name).write_text(text, encoding=pem_encoding)
    path.write_text(TLS_LINES + f"basic_auth_users:\n  jürgen: {HASH}\n", encoding=encoding)
    assert WebConfig(path).certificate_not_after is not None


@pytest.mark.parametrize(
    "name", [r"C:\temp\server.crt", r"C:\Logs\server.crt", r"C:\certs\server.crt", r"C:\new\a.crt"]
)
def test_a_windows_path_in_double_quotes_is_refused_with_the_right_spelling(path: Path, name: str) -> None:
    """YAML reads a backslash between double quotes as an escape, as TOML does."""
    (sentence,) = errors_of(path, f'tls_server_config:\n  cert_file: "{name}"\n  key_file: server.key\n')
    assert "backslashes" in sentence
    assert "single quotes" in sentence
