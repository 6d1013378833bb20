"""The web-config file of the Prometheus exporter-toolkit: TLS, basic authentication, headers, rate limit.

Format and meaning are those of prometheus/exporter-toolkit, docs/web-configuration.md and web/tls_config.go. Where we
differ, it is towards the safe side: unknown or duplicate keys are errors, and all errors are reported at once; client
certificates need a CA of their own (Go would trust every public one); HTTP/2 is accepted and not spoken, scrapers then
use 1.1. See `tls` for what Python's ssl can't do; `config_file` reads the file.

The toolkit re-reads the file at every request. Here the files' stamps are compared once a second; a new file or
certificate that is broken leaves the old ones in use, is logged once, counted, and tried again every half minute. So is
a change that protects less than before (`weakened`): only a restart removes protection.
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
_OF_THE_PAGE: Final = ("Content-Security-Policy", "X-Frame-Options")
"""Headers that the page has itself, as strict as can be; one that is configured replaces them."""

Stamp = tuple[int, int, int]
"""What changes when a file is written or replaced: modification time in nanoseconds, size and inode."""


class WebConfigError(Exception):
    """The web-config file can't be used. `errors` are sentences with file and key, none with a secret."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


class WebConfig:
    """A web-config file as it is now. `current` is replaced as a whole by `refresh` and may be read from any thread."""

    def __init__(self, path: Path, log: Logger | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file and all that it names. Raises `WebConfigError` with every error."""
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
        """When the certificate that is being served ends, as Unix time; None without TLS."""
        return not_after(self.current.certificate_pem) if self.current.tls else None

    def refresh(self) -> None:
        """Take over changed files. Blocks on the disk for a moment; never raises for what the files hold.

        For one thread at a time.
        """
        retry = self._failed_at is not None and self._clock() - self._failed_at >= RETRY_SECONDS
        if not retry and self._stamps == {path: _stamp(path) for path in self._stamps}:
            return
        settings, errors = self._read()
        if settings is not None:
            weaker = "protects less than before, which a reload never does; restart the agent to apply it"
            errors += [f"{self.path}: {key}: {weaker}" for key in weakened(self.current, settings)]
        if settings is None or errors:
            self.reload_failures += 1
            sentence = "the settings before go on serving: " + "; ".join(errors)
            self._log.failing("web.config", "web.config_broken", level="error", file=str(self.path), error=sentence)
            self._failed_at = self._clock()
            return
        self.current = settings
        self._log.info("web.config_reloaded", file=str(self.path))
        self._log.recovered("web.config", "web.config_recovered", file=str(self.path))
        self._failed_at = None

    def _read(self) -> tuple[WebConfigFile | None, list[str]]:
        # The stamps are taken before reading: what changes meanwhile is seen by the next refresh.
        before = {path: _stamp(path) for path in (self.path, *self._stamps)}
        settings, errors, files = read_web_file(self.path)
        self._stamps = {path: before[path] if path in before else _stamp(path) for path in (self.path, *files)}
        return settings, errors


def weakened(before: WebConfigFile, after: WebConfigFile) -> list[str]:
    """The keys of the file by which `after` protects less than `before`: what it asks of clients, and offers them.

    Which users, certificates and client CAs there are is no protection but what it protects by, and may change.
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


def tls_demands(settings: WebConfigFile) -> tuple[object, ...]:
    """What a connection must have agreed to, in a form that can be compared."""
    tls = settings.tls
    if tls is None:
        return ()
    versions = (tls.minimum_version, tls.maximum_version)
    sans, authorities = settings.client_allowed_sans, frozenset(tls.get_ca_certs(binary_form=True))
    return (tls.verify_mode, sans, authorities, versions, _ciphers(tls), settings.curves)


def _ciphers(tls: ssl.SSLContext) -> frozenset[str]:
    """The ciphers that are offered up to TLS 1.2; those of TLS 1.3 can't be chosen."""
    if tls.minimum_version > ssl.TLSVersion.TLSv1_2:
        return frozenset()
    return frozenset(cipher["name"] for cipher in tls.get_ciphers() if cipher["protocol"] != "TLSv1.3")


def _is_looser(before: RateLimit | None, after: RateLimit | None) -> bool:
    return before is not None and (after is None or after.interval < before.interval or after.burst > before.burst)


def _are_weaker(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether a header is gone or has another value, whose strength can't be compared, or replaces one of the page."""
    changed = any(after.get(name) != value for name, value in before.items())
    return changed or any(name in after and name not in before for name in _OF_THE_PAGE)


def _stamp(path: Path) -> Stamp | None:
    """Of the file that is there, through symbolic links too, as Kubernetes replaces its secrets."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
