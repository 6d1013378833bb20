"""A virtual machine under software emulation: its two serial lines, and the control of QEMU (QMP) that pauses it."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.vm.control import ANSWER_SECONDS, Control, MachineError

QEMU: Final = "qemu-system-x86_64"
BOOT_SECONDS: Final = 90.0


class Machine:
    """A kernel with a disk in memory, on one emulated CPU. A context manager."""

    def __init__(self, kernel: Path, initrd: Path, folder: Path) -> None:
        self._sockets = {name: folder / name for name in ("commands", "control")}
        self._command = [QEMU, "-accel", "tcg", "-cpu", "max", "-m", "768", "-smp", "1", "-nodefaults", "-no-reboot"]
        self._command += ["-display", "none", "-nic", "none", "-kernel", str(kernel), "-initrd", str(initrd)]
        self._command += ["-append", "console=ttyS0 panic=1 quiet", "-serial", "stdio"]
        self._command += ["-serial", f"unix:{self._sockets['commands']},server,nowait"]
        self._command += ["-qmp", f"unix:{self._sockets['control']},server,nowait"]
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._words: list[str] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self.hear("ready", BOOT_SECONDS)
            self._commands = self._connect("commands")
            self._control = Control(self._sockets["control"])
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._control.close()
        self._commands.close()
        self._end()

    def _connect(self, name: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(str(self._sockets[name]))
        return connection

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join(5)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as console:
            for line in console:
                self._words.append(line.rstrip())
                if line.startswith('{"guest"'):
                    self._said.put(json.loads(line))

    def send_line(self, line: str) -> None:
        """Send a command to the guest's first process."""
        self._commands.sendall(line.encode() + b"\n")

    def set_clock(self, ahead: float = 0.0) -> None:
        """Set the guest's time of day to the host's, or this many seconds ahead, as a time service does."""
        self.send_line(f"clock {time.time_ns() + round(ahead * 1e9)}")

    def pause(self, seconds: float) -> float:
        """Pause the whole machine, its clocks too; return the true seconds."""
        self._control.execute("stop")
        began = time.monotonic()
        time.sleep(seconds)
        lasted = time.monotonic() - began
        self._control.execute("cont")
        return lasted

    def starve(self, seconds: float) -> float:
        """Stop running the machine on the host; its clocks continue, as they are the host's. Return the true
        seconds."""
        began = time.monotonic()
        os.kill(self._process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self._process.pid, signal.SIGCONT)
        return time.monotonic() - began

    def hear(self, word: str, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """Return the guest's next report of that kind."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for said in self.heard(min(left, 0.2)):
                if said["guest"] == word:
                    return said
            if self._process.poll() is not None:
                break
        raise MachineError(f"the guest did not say {word!r}:\n{self._last_words()}")

    def heard(self, seconds: float) -> list[dict[str, Any]]:
        """Return all reports of the guest in this many seconds."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                found.append(self._said.get(timeout=left))
            except queue.Empty:
                break
        return found

    def _last_words(self) -> str:
        return "\n".join(self._words[-20:])
