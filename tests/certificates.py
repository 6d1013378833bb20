"""Certificates for the tests: a CA of their own, and what it signs."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """A CA; `pem` is its certificate."""

    def __init__(self, name: str = "test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self._name, self._key, timedelta(days=1))
        self._certificate = builder.add_extension(x509.BasicConstraints(True, None), critical=True).sign(
            self._key, hashes.SHA256()
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, *names: str, lasting: timedelta = timedelta(days=1)) -> tuple[str, str]:
        """Certificate and key, as PEM texts, for these names: DNS names, addresses or URIs."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        builder = self._builder(subject, key, lasting)
        builder = builder.add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, lasting: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + lasting)


def _name(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def ends(pem: str) -> float:
    """When a PEM certificate ends, as Unix time, read by somebody else's code."""
    return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc.timestamp()


def encrypted(key: str) -> str:
    """The same private key under a passphrase."""
    private = serialization.load_pem_private_key(key.encode(), None)
    how = serialization.BestAvailableEncryption(b"passphrase")
    return private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how).decode()


def write(folder: Path, name: str, certificate: str, key: str) -> None:
    """NAME.crt and NAME.key."""
    (folder / f"{name}.crt").write_text(certificate)
    (folder / f"{name}.key").write_text(key)
