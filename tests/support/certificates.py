"""Certificates for the tests: a separate CA and what it signs, and self-signed certificates."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """A CA; `pem` is its certificate."""

    def __init__(self, name: str = "test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _called(name)
        builder = _builder(self._name, self._name, self._key, timedelta(days=1), self._key)
        builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
        self._certificate = builder.add_extension(SIGNS, critical=True).sign(self._key, hashes.SHA256())
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, *names: str, lasting: timedelta = timedelta(days=1)) -> tuple[str, str]:
        """Return certificate and key, as PEM texts, for these names: DNS names, addresses, or URIs."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_called(names[0]), self._name, key, lasting, self._key)
        builder = builder.add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        return _texts(builder.sign(self._key, hashes.SHA256()), key)


def self_signed(name: str, usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH) -> tuple[str, str]:
    """Return certificate and key, as PEM texts, of NAME on 127.0.0.1."""
    key, own = ec.generate_private_key(ec.SECP256R1()), _called(name)
    builder = _builder(own, own, key, timedelta(days=1), key).add_extension(
        x509.ExtendedKeyUsage([usage]), critical=False
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([_name("127.0.0.1")]), critical=False)
    return _texts(builder.sign(key, hashes.SHA256()), key)


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    lasting: timedelta,
    signer: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    """Add the key identifiers of RFC 5280, which Python requires from 3.13 on."""
    now, own, theirs = datetime.now(UTC), key.public_key(), signer.public_key()
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(own).serial_number(x509.random_serial_number())
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(theirs), critical=False)
    return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + lasting)


def _texts(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[str, str]:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


def _name(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def ends(pem: str) -> float:
    """Return when a PEM certificate expires, as Unix time, as an independent library reads it."""
    return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc.timestamp()


def encrypted(key: str) -> str:
    """Return the same private key under a passphrase."""
    private = serialization.load_pem_private_key(key.encode(), None)
    how = serialization.BestAvailableEncryption(b"passphrase")
    return private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how).decode()


def write(folder: Path, name: str, certificate: str, key: str) -> tuple[Path, Path]:
    """Write NAME.crt and NAME.key."""
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    paths[0].write_text(certificate)
    paths[1].write_text(key)
    return paths
