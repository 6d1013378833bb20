"""Contexts of TLS connections: whom a client trusts, and what it shows of itself."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path


class UnusableFile(Exception):
    """A CA, certificate or key file that cannot be read or used."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths, "" for none. `authorities` is a file or a folder, and takes the place of certifi's; `key` may be in the
    file of `certificate`."""

    authorities: str = ""
    certificate: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """A context from the files as they are now, so that a renewed one counts from the next connection on.

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
                # Without a password OpenSSL would ask for the one of an encrypted key on the terminal, and wait.
                context.load_cert_chain(self.certificate, self.key or None, password="")
        except (OSError, ValueError) as error:
            raise UnusableFile(type(error).__name__) from error
        return context


def default_context() -> ssl.SSLContext:
    """Trust in what the system and certifi trust."""
    import certifi  # noqa: PLC0415  # only TLS needs it

    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    context.load_verify_locations(certifi.where())
    return context
