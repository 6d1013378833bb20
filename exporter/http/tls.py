"""TLS contexts for clients: trusted authorities and client certificates."""

from __future__ import annotations

import ssl
from pathlib import Path

from msgspec import Struct


class UnusableFile(Exception):
    """A CA, certificate or key file that cannot be read or used."""


class TlsFiles(Struct, frozen=True):
    """The paths of a client's TLS files, "" for none.

    `authorities` is a file or directory used instead of certifi's. Without `key`, the private key is in `certificate`.
    """

    authorities: str = ""
    certificate: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """Return a context from the files as they are now: the next connection uses a renewed file.

        Raises UnusableFile.
        """
        import certifi  # noqa: PLC0415  # only TLS needs it

        authorities = Path(self.authorities or certifi.where())
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.set_alpn_protocols(["http/1.1"])
            if authorities.is_dir():
                context.load_verify_locations(capath=authorities)
            else:
                context.load_verify_locations(cafile=authorities)
            if self.certificate:
                # Without `password`, OpenSSL would prompt on the terminal for an encrypted key.
                context.load_cert_chain(self.certificate, self.key or None, password="")
        except (OSError, ValueError) as error:
            raise UnusableFile(type(error).__name__) from error
        return context


def default_context() -> ssl.SSLContext:
    """Return a context that trusts the authorities of the system and of certifi.

    Like `TlsFiles`, it is less strict than the default from Python 3.13 on: private authorities often lack extensions
    that RFC 5280 requires, for example key usage, and must work on every Python version.
    """
    import certifi  # noqa: PLC0415  # only TLS needs it

    context = ssl.create_default_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    context.load_verify_locations(certifi.where())
    return context
