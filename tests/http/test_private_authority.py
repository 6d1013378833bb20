"""A private authority whose certificate lacks extensions that RFC 5280 requires is trusted on every Python."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from exporter.config.schema import EventHubsSettings
from exporter.http.tls import TlsFiles, default_context
from exporter.secrets import Secret
from exporter.sinks.event_hubs.address import Address

PEM = serialization.Encoding.PEM
NAME = "agent.example"
CONNECTION_STRING = f"Endpoint=sb://{NAME}/;SharedAccessKeyName=a;SharedAccessKey=b"


def bare(
    issuer: str, subject: str, signer: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey, ca: bool
) -> str:
    """Return a certificate with neither key usage nor key identifiers."""
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number()).public_key(key.public_key())
    builder = builder.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
    builder = builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
    if not ca:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(PEM).decode()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the authority's file; its directory has `server.pem`, a server's certificate and key."""
    folder = tmp_path_factory.mktemp("authority")
    ours, servers = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (folder / "ca.pem").write_text(bare("company", "company", ours, ours, ca=True))
    key = servers.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
    (folder / "server.pem").write_text(bare("company", NAME, ours, servers, ca=False) + key)
    return folder / "ca.pem"


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Run both ends of a handshake in memory. Raises ssl.SSLError if the client doesn't trust the server."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=NAME), server.wrap_bio(there, back, server_side=True)]
    while ends:
        for end in tuple(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue


CLIENTS: dict[str, Callable[[Path], ssl.SSLContext]] = {
    "a file that a setting names": lambda path: TlsFiles(str(path)).context(),
    "the system's own": lambda _path: default_context(),
    "Event Hubs": lambda path: Address(
        EventHubsSettings(connection_string=Secret(CONNECTION_STRING), certificate=str(path))
    ).tls_context(),
}


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_an_authority_without_key_usage_is_trusted(
    authority: Path, client: Callable[[Path], ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 would refuse it by default; a certificate that worked on older versions must keep working."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.with_name("server.pem"))
    shake_hands(client(authority), server)
