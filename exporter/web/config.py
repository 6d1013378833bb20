"""The web-config file of the Prometheus exporter-toolkit: TLS, basic authentication, headers, rate limit.

Format and meaning are those of prometheus/exporter-toolkit, docs/web-configuration.md and web/tls_config.go. The
differences are on the safe side. Unknown or duplicate keys are errors, and all errors are reported at once. Client
certificates need a configured CA (Go would trust every public one). `http2` is accepted without effect: scrapers fall
back to HTTP/1.1. See `tls` for the limits of Python's ssl; `config_file` reads the file.

The toolkit re-reads the file at every request. This server compares the files' stamps once a second. If a new file or
certificate is invalid, the old settings stay in use; the error is logged once, counted, and the file is read again
every half minute. The same applies to a change that reduces protection (`weakened`): that takes a restart.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from exporter.log.protocol import Logger, NullLogger
from exporter.web.config_file import RateLimit, WebConfigFile, read_web_file
from exporter.web.tls import not_after

RETRY_SECONDS: Final = 30.0
_PAGE_HEADERS: Final = ("Content-Security-Policy", "X-Frame-Options")
"""Headers that the page sets, as strictly as possible. A configured header of the same name replaces them."""

Stamp = tuple[int, int, int]
"""Modification time in nanoseconds, size, and inode: they change when a file is written or replaced."""


class WebConfigError(Exception):
    """The web-config file can't be used. `errors` are texts with file and key, without secrets."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


class WebConfig:
    """A web-config file that is reloaded. `refresh` replaces `current` as a whole; any thread may read it."""

    def __init__(self, path: Path, log: Logger | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file and the files it names. Raises `WebConfigError` with every error."""
        self.path = Path(path)
        self.reload_failures = 0
        self._log = log or NullLogger()
        self._clock = clock
        self._stamps: dict[Path, Stamp | None] = {}
        self._failed_at: float | None = None
        settings, errors = self._read()
        if settings is None:
            raise WebConfigError(errors)
        self.current = settings

    @property
    def certificate_not_after(self) -> float | None:
        """Unix time at which the served certificate expires; None without TLS."""
        return not_after(self.current.certificate_pem) if self.current.tls else None

    def refresh(self) -> None:
        """Apply changed files. Blocks on disk I/O; never raises because of the files' content.

        For one thread at a time.
        """
        retry = self._failed_at is not None and self._clock() - self._failed_at >= RETRY_SECONDS
        if not retry and self._stamps == {path: _stamp(path) for path in self._stamps}:
            return
        settings, errors = self._read()
        if settings is not None:
            weaker = "protects less than before, and a reload cannot reduce protection; restart the agent to apply it"
            errors += [f"{self.path}: {key}: {weaker}" for key in weakened(self.current, settings)]
        if settings is None or errors:
            self.reload_failures += 1
            sentence = "the previous settings stay in use: " + "; ".join(errors)
            self._log.failing("web.config", "web.config_broken", level="error", file=str(self.path), error=sentence)
            self._failed_at = self._clock()
            return
        self.current = settings
        self._log.info("web.config_reloaded", file=str(self.path))
        self._log.recovered("web.config", "web.config_recovered", file=str(self.path))
        self._failed_at = None

    def _read(self) -> tuple[WebConfigFile | None, list[str]]:
        # Stamps come before the read, so that the next refresh detects a change in between.
        before = {path: _stamp(path) for path in (self.path, *self._stamps)}
        settings, errors, files = read_web_file(self.path)
        self._stamps = {path: before[path] if path in before else _stamp(path) for path in (self.path, *files)}
        return settings, errors


def weakened(before: WebConfigFile, after: WebConfigFile) -> list[str]:
    """Return the keys of the file in which `after` protects less than `before`; empty if none does.

    Users, certificates, and client CAs may be replaced by others: that doesn't reduce protection.
    """
    weaker = {
        "basic_auth_users": bool(before.users) and not after.users,
        "rate_limit": _is_looser(before.rate_limit, after.rate_limit),
        "http_server_config.headers": _are_weaker(dict(before.headers), dict(after.headers)),
        "tls_server_config": before.tls is not None and after.tls is None,
    }
    if (old := before.tls) is not None and (new := after.tls) is not None:
        prefer = ssl.OP_CIPHER_SERVER_PREFERENCE
        sans = after.client_allowed_sans
        weaker |= {
            "tls_server_config.client_auth_type": new.verify_mode < old.verify_mode,
            "tls_server_config.client_allowed_sans": bool(before.client_allowed_sans)
            and not (sans and sans <= before.client_allowed_sans),
            "tls_server_config.min_version": new.minimum_version < old.minimum_version,
            "tls_server_config.max_version": new.maximum_version < old.maximum_version,
            "tls_server_config.cipher_suites": not _ciphers(new) <= _ciphers(old),
            "tls_server_config.curve_preferences": not after.curves <= before.curves,
            "tls_server_config.prefer_server_cipher_suites": bool(old.options & prefer & ~new.options),
        }
    return [key for key, is_weaker in weaker.items() if is_weaker]


def tls_requirements(settings: WebConfigFile) -> tuple[object, ...]:
    """Return the TLS requirements that every open connection must have met, as a comparable value."""
    tls = settings.tls
    if tls is None:
        return ()
    versions = (tls.minimum_version, tls.maximum_version)
    sans, authorities = settings.client_allowed_sans, frozenset(tls.get_ca_certs(binary_form=True))
    return (tls.verify_mode, sans, authorities, versions, _ciphers(tls), settings.curves)


def _ciphers(tls: ssl.SSLContext) -> frozenset[str]:
    """Return the ciphers offered up to TLS 1.2; those of TLS 1.3 can't be configured."""
    if tls.minimum_version > ssl.TLSVersion.TLSv1_2:
        return frozenset()
    return frozenset(cipher["name"] for cipher in tls.get_ciphers() if cipher["protocol"] != "TLSv1.3")


def _is_looser(before: RateLimit | None, after: RateLimit | None) -> bool:
    return before is not None and (after is None or after.interval < before.interval or after.burst > before.burst)


def _are_weaker(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Return whether a header was removed, changed (values can't be compared), or now replaces one of the page's."""
    changed = any(after.get(name) != value for name, value in before.items())
    return changed or any(name in after and name not in before for name in _PAGE_HEADERS)


def _stamp(path: Path) -> Stamp | None:
    """Return the stamp of the file, None if unreadable. Follows links: Kubernetes replaces secrets through them."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
