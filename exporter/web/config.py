"""The web-config file of the Prometheus exporter-toolkit: TLS, basic authentication, headers, rate limit.

Format and meaning are those of prometheus/exporter-toolkit, docs/web-configuration.md and web/tls_config.go. Where we
differ, it is towards the safe side: unknown or duplicate keys are errors, and all errors are reported at once; client
certificates need a CA of their own (Go would trust every public one); HTTP/2 is accepted and not spoken, scrapers then
use 1.1. See `tls` for what Python's ssl can't do; `config_file` reads the file.

The toolkit re-reads the file at every request. Here the files' stamps are compared once a second; a new file or
certificate that is broken leaves the old ones in use, is logged once, counted, and tried again every half minute. So is
a change that would remove TLS or all users: protection is removed only by a restart.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from exporter.log.protocol import Logger, NullLogger
from exporter.web.config_file import WebSettings, read_web_file
from exporter.web.tls import not_after

RETRY_SECONDS: Final = 30.0

Stamps = tuple[tuple[str, int, int, int] | tuple[str, None, None, None], ...]


class WebConfigError(Exception):
    """The web-config file can't be used. `errors` are sentences with file and key, none with a secret."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


@dataclass(slots=True)
class WebConfig:
    """A web-config file as it is now. `current` is replaced as a whole by `refresh` and may be read from any thread."""

    path: Path
    log: Logger = field(default_factory=NullLogger)
    clock: Callable[[], float] = time.monotonic
    reload_failures: int = field(default=0, init=False)
    current: WebSettings = field(init=False)
    _files: tuple[Path, ...] = field(init=False)
    _stamps: Stamps = field(init=False)
    _failed_at: float | None = field(default=None, init=False)
    _busy: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        """Read the file and all that it names. Raises `WebConfigError` with every error."""
        self.path = Path(self.path)
        self._files = (self.path,)
        settings, errors = self._read()
        if settings is None:
            raise WebConfigError(errors)
        self.current = settings

    @property
    def certificate_not_after(self) -> float | None:
        """When the certificate that is being served ends, as Unix time; None without TLS."""
        return not_after(self.current.certificate_pem) if self.current.tls else None

    def refresh(self) -> None:
        """Take over changed files. Blocks on the disk for a moment; never raises for what the files hold."""
        with self._busy:
            stamps = stamps_of(self._files)
            retry = self._failed_at is not None and self.clock() - self._failed_at >= RETRY_SECONDS
            if stamps == self._stamps and not retry:
                return
            settings, errors = self._read()
            errors += [] if settings is None else self._removed_protection(settings)
            if settings is None or errors:
                self._report_failure(errors)
                return
            self.current = settings
            self.log.info("web.config_read_again", file=str(self.path))
            self.log.recovered("web.config", "web.config_mended", file=str(self.path))
            self._failed_at = None

    def _read(self) -> tuple[WebSettings | None, list[str]]:
        # The stamps are taken before reading: what changes meanwhile is seen by the next refresh.
        before = stamps_of(self._files)
        settings, errors, files = read_web_file(self.path)
        stamps = {stamp[0]: stamp for stamp in before}
        self._files = tuple(dict.fromkeys((self.path, *files)))
        self._stamps = tuple(stamps.get(str(path)) or stamps_of((path,))[0] for path in self._files)
        return settings, errors

    def _removed_protection(self, settings: WebSettings) -> list[str]:
        errors = []
        if (settings.tls is None) != (self.current.tls is None):
            errors.append(f"{self.path}: tls_server_config: switching TLS on or off takes a restart")
        if self.current.users and not settings.users:
            errors.append(f"{self.path}: basic_auth_users: taking the last user away takes a restart")
        return errors

    def _report_failure(self, errors: list[str]) -> None:
        self.reload_failures += 1
        sentence = "the settings before go on serving: " + "; ".join(errors)
        self.log.failing("web.config", "web.config_broken", level="error", file=str(self.path), error=sentence)
        self._failed_at = self.clock()


def stamps_of(paths: tuple[Path, ...]) -> Stamps:
    """What changes when a file is written or replaced, through symbolic links too, as Kubernetes replaces its secrets:
    its path, modification time in nanoseconds, size and inode."""
    stamps: list[tuple[str, int, int, int] | tuple[str, None, None, None]] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            stamps.append((str(path), None, None, None))
        else:
            stamps.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)
