"""Contexts of TLS connections: the authorities that a client trusts, and its own certificate."""

from __future__ import annotations

import ssl
from pathlib import Path

from msgspec import Struct


class UnusableFile(Exception):
    """A CA, certificate or key file that cannot be read or used."""


class TlsFiles(Struct, frozen=True):
    """Paths, "" for none. `authorities` is a file or a folder that replaces certifi's; without `key` the private key is
    in the file of `certificate`."""

    authorities: str = ""
    certificate: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """A context from the files as they are now, so that a renewed one is used from the next connection on.

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
                # Without `password` OpenSSL would prompt for that of an encrypted key on the terminal.
                context.load_cert_chain(self.certificate, self.key or None, password="")
        except (OSError, ValueError) as error:
            raise UnusableFile(type(error).__name__) from error
        return context


def default_context() -> ssl.SSLContext:
    """A context that trusts the authorities of the system and of certifi.

    Not as strict as Python is by itself from 3.13 on, nor is `TlsFiles`: a company's own authority may lack what RFC
    5280 has every authority say, such as a key usage, and what worked on one Python works on the next.
    """
    import certifi  # noqa: PLC0415  # only TLS needs it

    context = ssl.create_default_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    context.load_verify_locations(certifi.where())
    return context
