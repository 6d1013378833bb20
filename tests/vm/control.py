"""QEMU's control (QMP): one command, one response."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Final

ANSWER_SECONDS: Final = 15.0


class MachineError(Exception):
    """The machine did not execute a command; the text has the end of its output."""


class Control:
    """A connection to the socket that QEMU's `-qmp unix:…` makes."""

    def __init__(self, path: Path) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(ANSWER_SECONDS)
        self._connection.connect(str(path))
        self._answers = self._connection.makefile("r", encoding="utf-8")
        self._answers.readline()
        self.execute("qmp_capabilities")

    def execute(self, command: str) -> None:
        """Send a command to QEMU, such as `stop` and `cont`, and wait until it is done. Raises MachineError."""
        self._connection.sendall(json.dumps({"execute": command}).encode() + b"\n")
        while line := self._answers.readline():
            answer = json.loads(line)
            if "error" in answer:
                raise MachineError(f"{command}: {answer['error']}")
            if "return" in answer:
                return
        raise MachineError(f"{command}: QEMU has gone")

    def close(self) -> None:
        """Close the connection; the machine continues."""
        self._answers.close()
        self._connection.close()
