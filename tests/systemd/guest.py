"""One boot of the virtual machine: commands on its second serial line, and QEMU's own control (QMP)."""

from __future__ import annotations

import base64
import shlex
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.systemd.disk import Disk
from tests.vm.control import Control

QEMU: Final = "qemu-system-x86_64"
BOOT_SECONDS: Final = 300.0
COMMAND_SECONDS: Final = 240.0
SHUTDOWN_SECONDS: Final = 180.0


class GuestError(Exception):
    """The guest did not execute a command; the text has the end of its console output."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command in the guest."""

    code: int
    text: str
    """Its output on both streams, without white space at both ends."""

    def __bool__(self) -> bool:
        return self.code == 0


class Guest:
    """A booted machine. A context manager that ends it; `port` reaches the agent's port 10169 from outside."""

    def __init__(self, disk: Disk, files: Path, folder: Path, port: int, accelerator: str) -> None:
        self.port = port
        self._folder = folder
        self._console = folder / "console"
        self._command = [QEMU, "-accel", accelerator, "-cpu", "max", "-smp", "2", "-m", "1024"]
        self._command += ["-nodefaults", "-no-reboot", "-display", "none"]
        self._command += ["-kernel", str(disk.kernel), "-initrd", str(disk.initrd)]
        self._command += ["-append", "root=/dev/vda rw console=ttyS0 panic=1 quiet net.ifnames=0"]
        self._command += ["-drive", f"file={disk.image},format=raw,if=virtio,cache=unsafe"]
        self._command += ["-drive", f"file={files},format=raw,if=virtio,readonly=on"]
        self._command += ["-nic", f"user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:10169"]
        self._command += ["-device", "virtio-rng-pci", "-serial", f"file:{self._console}"]
        self._command += ["-serial", f"unix:{folder / 'commands'},server,nowait"]
        self._command += ["-qmp", f"unix:{folder / 'control'},server,nowait"]

    def __enter__(self) -> Self:
        for name in ("commands", "control"):
            (self._folder / name).unlink(missing_ok=True)
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._connection = self._connect()
            self._lines = self._connection.makefile("r", encoding="ascii", errors="replace")
            self._control = Control(self._folder / "control")
            while self._line() != "ready":
                continue
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._control.close()
        self._lines.close()
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def run(self, command: str, *words: str, seconds: float = COMMAND_SECONDS) -> Done:
        """Run a bash command in the guest, with further words quoted. Raises GuestError if it does not end."""
        whole = " ".join((command, *map(shlex.quote, words)))
        self._connection.settimeout(seconds)
        self._connection.sendall(base64.b64encode(whole.encode()) + b"\n")
        code, _, printed = self._line().partition(" ")
        return Done(int(code), base64.b64decode(printed).decode(errors="replace").strip())

    def write(self, path: str, content: str, mode: str = "0644") -> None:
        """Create a file in the guest, with its directory."""
        coded = base64.b64encode(content.encode()).decode()
        self.run(f"mkdir -p $(dirname {path}) && (umask 077; base64 -d <<<'{coded}' >{path}) && chmod {mode} {path}")

    def freeze(self, seconds: float) -> None:
        """Pause the whole machine, its clocks too, as a host does; then set its time of day as a time service does."""
        self._control.execute("stop")
        time.sleep(seconds)
        self._control.execute("cont")
        self.run(f"date --set=@{time.time():.3f}")

    def shut_down(self) -> float:
        """Shut down in order; return the seconds that it took."""
        began = time.monotonic()
        self.run("systemctl --no-block poweroff")
        try:
            self._process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise GuestError(f"it did not shut down:\n{self._last_words()}") from error
        return time.monotonic() - began

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + BOOT_SECONDS
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(BOOT_SECONDS)
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                connection.connect(str(self._folder / "commands"))
                return connection
            except OSError:
                time.sleep(0.1)
        connection.close()
        raise GuestError(f"QEMU did not start: {shlex.join(self._command)}")

    def _line(self) -> str:
        try:
            line = self._lines.readline()
        except TimeoutError as error:
            raise GuestError(f"no answer from the guest:\n{self._last_words()}") from error
        if not line:
            raise GuestError(f"the guest is gone:\n{self._last_words()}")
        return line.strip()

    def _last_words(self) -> str:
        if not self._console.exists():
            return ""
        return "\n".join(self._console.read_text(errors="replace").splitlines()[-20:])
