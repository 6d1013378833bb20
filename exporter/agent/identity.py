"""The identity of this VM, read from the metadata service on a separate thread so that it delays no poll."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from exporter.core.document import alike
from exporter.core.records import Vm, VmIdentity, unknown_tags
from exporter.errors import Failure
from exporter.log.protocol import Logger

REFRESH_SECONDS: Final = 300.0
RETRY_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 30.0)


class IdentitySource(Protocol):
    """The part of the metadata service that the identity needs."""

    def instance(self) -> Vm:
        """Read the VM from `/metadata/instance/compute`. Blocks; raises `Failure`."""

    def abort(self) -> None:
        """Abort a request, from another thread."""


def identity_of(
    configured_name: str, node: str, azure: Vm | None, *, silent: bool = True, tags: Sequence[str] = ()
) -> VmIdentity:
    """Return the identity, from the configured name and the response of the metadata service (None: no response yet).

    A configured name always takes precedence. It is confirmed when the service has returned a name, or 404 for that
    document as simulators do (`silent` is False). Until then the configuration may be a clone from another VM. Two
    different names are a conflict. `tags` are the names of the published tags; they have no value until Azure responds.
    """
    known = azure or Vm(tags=unknown_tags(tags))
    conflict = bool(configured_name and known.name and not alike(configured_name, known.name))
    vm = replace(known, name=configured_name or known.name, node=node)
    return VmIdentity(vm, conflict, confirmed=bool(known.name) or not silent)


class Identity:
    """The current identity: read until it is known, then every five minutes, because tags can change.

    The last valid response is kept.
    """

    def __init__(
        self, source: IdentitySource, log: Logger, *, vm_name: str = "", node: str = "", tags: Sequence[str] = ()
    ) -> None:
        """Prepare the thread. `tags` are the names of the VM's tags that `source` returns."""
        self._source = source
        self._log = log
        self._vm_name = vm_name
        self._node = node
        self._azure: Vm | None = None
        self._stop = threading.Event()
        self._answered = threading.Event()
        self._failures = 0
        self._silent = True
        self._tags = tuple(tags)
        self._identity = self._identity_of(None)
        self._thread = threading.Thread(target=self._run, name="identity", daemon=True)

    def current(self) -> VmIdentity:
        """Return the identity as it is known now, from any thread."""
        return self._identity

    def start(self) -> None:
        """Start the thread, which reads the identity at once."""
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Block until the first request has succeeded or failed, at most for `seconds`."""
        self._answered.wait(seconds)

    def abort(self) -> None:
        """Unblock every `wait` and abort the request in flight. No further request is made."""
        self._stop.set()
        self._answered.set()
        self._source.abort()

    def stop(self) -> None:
        """End the thread and abort its request, within 1.5 s."""
        self.abort()
        if self._thread.is_alive():
            self._thread.join(1.5)

    def _run(self) -> None:
        while not self._stop.is_set():
            again = self.refresh()
            self._answered.set()
            self._stop.wait(again)

    def refresh(self) -> float:
        """Make one request and update the identity. Return the seconds until the next request is due."""
        try:
            vm = self._source.instance()
        except Failure as failure:
            if failure.reason == "not-found" and self._silent:
                self._silent = False
                self._identity = self._identity_of(self._azure)
            return self._not_known(failure.reason, failure.detail)
        if not vm.name and not vm.id:
            return self._not_known("malformed", "the instance document has no VM name and no vmId")
        self._failures = 0
        self._log.recovered("identity", "identity.recovered")
        before, self._azure = self._azure, vm
        if vm != before:
            self._identity = self._identity_of(vm)
            if before is None or replace(before, tags=vm.tags) != vm:
                known = self._identity.vm
                self._log.info("identity.known", vm_name=known.name, vm_id=known.id, location=known.location)
                if self._identity.conflict:
                    self._log.error("identity.conflict", configured=self._vm_name, azure=vm.name)
        return REFRESH_SECONDS

    def _identity_of(self, azure: Vm | None) -> VmIdentity:
        return identity_of(self._vm_name, self._node, azure, silent=self._silent, tags=self._tags)

    def _not_known(self, reason: str, detail: str) -> float:
        if not self._stop.is_set():
            self._log.failing("identity", "identity.failed", reason=reason, detail=detail)
        self._failures += 1
        return RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS)) - 1]
