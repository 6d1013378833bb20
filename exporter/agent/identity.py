"""Who this VM is: asked of the metadata service on a thread of its own, so that a slow answer delays no poll."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Final, Protocol

from exporter.core.folding import alike
from exporter.core.records import Vm, VmIdentity
from exporter.errors import Failure
from exporter.log.protocol import Logger

REFRESH_SECONDS: Final = 300.0
RETRY_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 30.0)


class Source(Protocol):
    """The metadata service, as far as it is asked who this VM is."""

    def instance(self) -> Vm:
        """What `/metadata/instance/compute` says. Raises `Failure`."""

    def abort(self) -> None:
        """Breaks a request off, from another thread."""


def who_is(configured_name: str, node: str, azure: Vm | None, *, silent: bool = True) -> VmIdentity:
    """This VM from what was configured and what Azure says.

    A configured name is shown until Azure contradicts it, and is confirmed once Azure gives the same, or says that it
    has no such document (`silent` is false), as a stand-in does. Before, it may be that of the VM whose configuration
    was cloned.
    """
    known = azure or Vm()
    conflict = bool(configured_name and known.name and not alike(configured_name, known.name))
    vm = replace(known, name=configured_name or known.name, node=node)
    return VmIdentity(vm, conflict, confirmed=bool(known.name) or not silent)


class Identity:
    """Keeps `who` current: asked until it is known, then every five minutes. The last known answer stays."""

    def __init__(self, source: Source, log: Logger, *, vm_name: str = "", node: str = "") -> None:
        self._source = source
        self._log = log
        self._vm_name = vm_name
        self._node = node
        self._azure: Vm | None = None
        self._stop = threading.Event()
        self._asked = threading.Event()
        self._failures = 0
        self._silent = True
        self._who = who_is(vm_name, node, None)
        self._thread = threading.Thread(target=self._run, name="identity", daemon=True)

    def who(self) -> VmIdentity:
        """What is known now."""
        return self._who

    def start(self) -> None:
        """Starts the thread that asks."""
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Waits until Azure was asked once who we are, whatever it said, at most so long."""
        self._asked.wait(seconds)

    def abort(self) -> None:
        """Ends whatever waits here; nothing is asked any more."""
        self._stop.set()
        self._asked.set()
        self._source.abort()

    def stop(self) -> None:
        """Ends the thread, and a request that it waits for."""
        self.abort()
        if self._thread.is_alive():
            self._thread.join(1.5)

    def _run(self) -> None:
        while not self._stop.is_set():
            again = self.refresh()
            self._asked.set()
            self._stop.wait(again)

    def refresh(self) -> float:
        """Asks once. Answers in how many seconds to ask again."""
        try:
            found = self._source.instance()
        except Failure as failure:
            if failure.reason == "not-found" and self._silent:
                self._silent = False
                self._who = who_is(self._vm_name, self._node, self._azure, silent=False)
            return self._not_known(failure.reason, failure.detail)
        if not found.name and not found.id:
            return self._not_known("malformed", "the instance document names no VM")
        self._failures = 0
        self._log.recovered("identity", "identity.recovered")
        if found != self._azure:
            self._azure = found
            self._who = who_is(self._vm_name, self._node, found, silent=self._silent)
            self._told()
        return REFRESH_SECONDS

    def _not_known(self, reason: str, detail: str) -> float:
        if not self._stop.is_set():
            self._log.failing("identity", "identity.failed", reason=reason, detail=detail)
        self._failures += 1
        return RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS)) - 1]

    def _told(self) -> None:
        vm = self._who.vm
        self._log.info("identity.known", vm_name=vm.name, vm_id=vm.id, location=vm.location)
        if self._who.conflict and self._azure is not None:
            self._log.error("identity.conflict", configured=self._vm_name, azure=self._azure.name)
