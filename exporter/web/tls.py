"""TLS of the web-config file with Python's ssl: its keywords and ciphers, and the expiry time of a certificate.

Settings that Go supports and Python's ssl doesn't are rejected when the file is read, never weakened: a client
certificate requested without verification, and a choice of two or three curves. TLS 1.0 and 1.1 (RFC 8996) are never
used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

VERSIONS: Final = {
    "TLS10": ssl.TLSVersion.TLSv1_2,
    "TLS11": ssl.TLSVersion.TLSv1_2,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
"""The version for each keyword of the file. `TLS10` and `TLS11` mean 1.2: allowing them doesn't require them."""

CLIENT_AUTH: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
"""Go's keywords for the verification of client certificates."""
UNVERIFIED_CLIENT_AUTH: Final = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
"""Go's keywords that Python's ssl doesn't support."""

CURVES: Final = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}

CIPHERS: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}
"""The names of Go's `tls.CipherSuites()` and their names in OpenSSL."""

TLS13_CIPHERS: Final = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Accepted without effect, as in Go: the ciphers of TLS 1.3 can't be configured."""

FIRST_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
UTC_TIME, EXPLICIT_VERSION = 0x17, 0xA0
LONG_FORM: Final = 0x80


def load_certificates(context: ssl.SSLContext, certificate_file: str, key_file: str, client_ca: str) -> None:
    """Load certificate and key from files into a server's context, and the client CA from PEM text ("" for none).

    Raises ssl.SSLError or OSError if certificate, key, or CA can't be used.
    """
    context.load_cert_chain(certificate_file, key_file, password="")  # an encrypted key is an error, not a prompt
    if client_ca:
        # Python accepts only ASCII. A comment may contain any character; in a certificate, `?` is as invalid as any.
        context.load_verify_locations(cadata=client_ca.encode("ascii", "replace").decode("ascii"))


@contextlib.contextmanager
def as_file(text: str) -> Iterator[str]:
    """Yield the path of an in-memory file with this text: ssl accepts certificates only from files. Readable once.

    Never a file on disk, where a private key would survive a crash. Raises OSError.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, "this system has no in-memory files (memfd), which are needed for the private key")
    with os.fdopen(os.memfd_create("pem"), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def not_after(pem: str) -> float | None:
    """Return the Unix time at which the first certificate of a PEM text expires; None if it can't be parsed.

    Python's ssl reports this only for a peer's certificate, so this parses DER (X.690; RFC 5280, 4.1).
    """
    if (certificate := FIRST_CERTIFICATE.search(pem)) is None:
        return None
    try:
        der = ssl.PEM_cert_to_DER_cert(certificate[0])
        _, at, _ = _element(der, 0)  # Certificate
        _, at, _ = _element(der, at)  # tbsCertificate
        tag, _, end = _element(der, at)
        for _ in range(3 if tag == EXPLICIT_VERSION else 2):  # of version, serialNumber, signature, and issuer
            _, _, end = _element(der, end)
        _, at, _ = _element(der, end)  # validity
        _, _, end = _element(der, at)  # notBefore
        tag, at, end = _element(der, end)
        form = "%y%m%d%H%M%SZ" if tag == UTC_TIME else "%Y%m%d%H%M%SZ"
        return datetime.strptime(der[at:end].decode("ascii"), form).replace(tzinfo=UTC).timestamp()
    except (IndexError, ValueError):
        return None


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return tag, begin, and end of the content of the DER element at this offset."""
    tag, length, begin = der[at], der[at + 1], at + 2
    if length >= LONG_FORM:
        size = length - LONG_FORM
        length = int.from_bytes(der[begin : begin + size], "big")
        begin += size
    return tag, begin, begin + length
