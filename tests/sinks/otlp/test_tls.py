"""The OTLP destination over TLS: trust, and deadlines."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from exporter.errors import Retryable
from exporter.sinks.otlp.sink import OtlpDestination
from tests.sinks.otlp.test_sink import a_record
from tests.support.certificates import self_signed, write
from tests.support.otlp_receiver import Drip, Hang, Receiver, otlp_to
from tests.support.systems import AWAY_SECONDS


def make_certificate(
    folder: Path, name: str, usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH
) -> tuple[str, str]:
    """Return a self-signed certificate for 127.0.0.1 and its key, as files."""
    certificate, key = write(folder, name, *self_signed(name, usage))
    return str(certificate), str(key)


def server_context(certificate_file: str, key_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file, key_file)
    return context


def refused(destination: OtlpDestination) -> Retryable:
    with pytest.raises(Retryable) as caught:
        destination.send([a_record()])
    destination.close()
    return caught.value


def test_configured_authority_is_trusted(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "collector")
    with Receiver(tls=server_context(certificate, key)) as receiver:
        destination = otlp_to(receiver.url, certificate=certificate)
        destination.send([a_record()])
        destination.close()
        assert len(receiver.logs) == 1


def test_untrusted_certificate_needs_an_operator(tmp_path: Path) -> None:
    """It is rejected before any header is sent, and the record is kept."""
    with Receiver(tls=server_context(*make_certificate(tmp_path, "collector"))) as receiver:
        error = refused(otlp_to(receiver.url, headers={"Authorization": "Bearer s3cr3t"}))
        assert (error.reason, error.needs_operator) == ("tls", True)
        assert "trusted" in str(error)
        assert receiver.requests == []


def test_configured_authority_overrides_the_environment(tmp_path: Path) -> None:
    """REQUESTS_CA_BUNDLE has no effect."""
    certificate, key = make_certificate(tmp_path, "collector")
    other, _ = make_certificate(tmp_path, "other")
    program = (
        "import sys; from tests.sinks.otlp.test_sink import otlp_to, a_record;"
        "otlp_to(sys.argv[1], certificate=sys.argv[2]).send([a_record()])"
    )
    with Receiver(tls=server_context(certificate, key)) as receiver:
        command = [sys.executable, "-c", program, receiver.url, certificate]
        subprocess.run(command, env=os.environ | {"REQUESTS_CA_BUNDLE": other}, check=True, timeout=30)
        assert len(receiver.logs) == 1


def test_client_certificate_is_sent(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "collector")
    client, client_key = make_certificate(tmp_path, "client", ExtendedKeyUsageOID.CLIENT_AUTH)
    context = server_context(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(client)
    with Receiver(tls=context) as receiver:
        refused(otlp_to(receiver.url, certificate=certificate))
        destination = otlp_to(receiver.url, certificate=certificate, client_certificate=client, client_key=client_key)
        destination.send([a_record()])
        destination.close()
        assert len(receiver.logs) == 1


@pytest.mark.parametrize("action", [Hang(), Drip()])
def test_send_over_tls_ends_by_its_deadline(tmp_path: Path, action: Hang | Drip) -> None:
    """For a collector that sends nothing, or one byte at a time."""
    certificate, key = make_certificate(tmp_path, "collector")
    with Receiver(action, tls=server_context(certificate, key)) as receiver:
        begun = time.monotonic()
        error = refused(otlp_to(receiver.url, certificate=certificate, timeout=0.5))
        assert (error.reason, error.needs_operator) == ("timeout", False)
        assert time.monotonic() - begun < 20  # it would continue indefinitely


@pytest.mark.parametrize("own", [None, "Basic dXNlcjpvd24="])
def test_netrc_is_not_used(tmp_path: Path, own: str | None) -> None:
    """The configured header is sent instead."""
    netrc = tmp_path / ".netrc"
    netrc.write_text("default login owner password secret\nmachine 127.0.0.1 login owner password secret\n")
    netrc.chmod(0o600)
    program = (
        "import sys; from tests.sinks.otlp.test_sink import otlp_to, a_record;"
        "headers = {'authorization': word for word in sys.argv[2:]};"
        "made = otlp_to(sys.argv[1], timeout=60, headers=headers); made.probe(); made.send([a_record()])"
    )
    with Receiver() as receiver:
        environ = os.environ | {"NETRC": str(netrc), "HOME": str(tmp_path)}
        words = [sys.executable, "-c", program, receiver.url, *([own] if own else [])]
        subprocess.run(words, env=environ, check=True, timeout=AWAY_SECONDS)
        sent = [request.headers.get("authorization") for request in receiver.requests]
    assert sent == [own, own]


def test_ca_and_proxy_of_the_environment_are_used(tmp_path: Path) -> None:
    """REQUESTS_CA_BUNDLE without a configured file, and HTTP_PROXY."""
    certificate, key = make_certificate(tmp_path, "collector")
    program = (
        "import sys; from tests.sinks.otlp.test_sink import otlp_to, a_record;"
        "otlp_to(sys.argv[1], timeout=60).send([a_record()])"
    )
    environ = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    with Receiver(tls=server_context(certificate, key)) as receiver:
        trusting = environ | {"REQUESTS_CA_BUNDLE": certificate}
        subprocess.run([sys.executable, "-c", program, receiver.url], env=trusting, check=True, timeout=AWAY_SECONDS)
        assert len(receiver.logs) == 1
    with Receiver() as proxy:
        through = environ | {"http_proxy": "/".join(proxy.url.split("/")[:3]), "no_proxy": ""}
        command = [sys.executable, "-c", program, "http://collector.invalid/v1/logs"]
        subprocess.run(command, env=through, check=True, timeout=AWAY_SECONDS)
        assert len(proxy.requests) == 1


def test_renewed_ca_is_used_by_the_next_connection(tmp_path: Path) -> None:
    """Without a restart."""
    certificate, key = make_certificate(tmp_path, "collector")
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(Path(make_certificate(tmp_path, "old")[0]).read_text())
    with Receiver(tls=server_context(certificate, key)) as receiver:
        destination = otlp_to(receiver.url, certificate=str(trusted))
        with pytest.raises(Retryable, match="trusted"):
            destination.send([a_record()])
        trusted.write_text(Path(certificate).read_text())
        destination.send([a_record()])
        destination.close()
        assert len(receiver.logs) == 1


def test_encrypted_key_is_a_configuration_failure(tmp_path: Path) -> None:
    """It fails at once instead of prompting for a password on a terminal."""
    certificate, key = make_certificate(tmp_path, "client", ExtendedKeyUsageOID.CLIENT_AUTH)
    private = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"s3cr3t")
    Path(key).write_bytes(
        private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    with Receiver(tls=server_context(*make_certificate(tmp_path, "collector"))) as receiver:
        error = refused(otlp_to(receiver.url, client_certificate=certificate, client_key=key))
    assert (error.reason, error.needs_operator) == ("configuration", True)


@pytest.mark.linux("names a certificate as c_rehash does, by the openssl command")
def test_directory_of_authorities_is_supported(tmp_path: Path) -> None:
    """As made by c_rehash, in REQUESTS_CA_BUNDLE."""
    certificate, key = make_certificate(tmp_path, "collector")
    folder = tmp_path / "authorities"
    folder.mkdir()
    command = ["openssl", "x509", "-noout", "-hash", "-in", certificate]
    digest = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    (folder / f"{digest}.0").write_text(Path(certificate).read_text())
    with Receiver(tls=server_context(certificate, key)) as receiver:
        destination = otlp_to(receiver.url, environ={"REQUESTS_CA_BUNDLE": str(folder)})
        destination.send([a_record()])
        destination.close()
        assert len(receiver.logs) == 1
