r"""The Windows Event Log, which administrators read first when a service doesn't start.

A source is a key below `EventLog\Application` that names a file with message texts. This program uses EventCreate.exe,
which every Windows has: its messages 1 to 1000 are `%1`, the text itself. So old entries stay readable without a
message file of this program [eventcreate; Event Sources].
"""

from __future__ import annotations

import contextlib
import errno
import re
import sys
from typing import Final

MESSAGE_FILE: Final = r"%SystemRoot%\System32\EventCreate.exe"
LAST_ID: Final = 1000
"""EventCreate.exe has messages for the ids 1 to 1000."""
MAX_TEXT: Final = 30_000
"""Characters. Windows accepts 31,839 in one string [ReportEvent]."""

_KEY: Final = r"SYSTEM\CurrentControlSet\Services\EventLog\Application"
_ERROR: Final = 1
"""EVENTLOG_ERROR_TYPE [ReportEvent]."""
_INSERTED: Final = re.compile(r"%(?=[0-9!%{])")


def message(text: str) -> str:
    """Return the text in a form that the Event Viewer shows unchanged, without invalid characters, at most `MAX_TEXT`.

    The Event Viewer treats `%1` as a placeholder [ReportEvent], and breaks lines only at CR LF.
    """
    lines = (line.rstrip("\r") for line in text.replace("\0", "").split("\n"))
    text = _INSERTED.sub("% ", "\r\n".join(lines)).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


def add_source(source: str) -> None:
    """Register or update the source.

    Raises OSError: PermissionError without administrator rights, and for another program's source.
    """
    if sys.platform == "win32":
        import winreg  # noqa: PLC0415  # only on Windows

        _refuse_another(source)
        with winreg.CreateKeyEx(winreg.HKEY_LOCAL_MACHINE, rf"{_KEY}\{source}", 0, winreg.KEY_SET_VALUE) as key:
            winreg.SetValueEx(key, "EventMessageFile", 0, winreg.REG_EXPAND_SZ, MESSAGE_FILE)
            winreg.SetValueEx(key, "TypesSupported", 0, winreg.REG_DWORD, _ERROR)


def remove_source(source: str) -> None:
    """Remove the source, if it is registered. Raises OSError, PermissionError for another program's source."""
    if sys.platform == "win32":
        import winreg  # noqa: PLC0415  # only on Windows

        _refuse_another(source)
        with contextlib.suppress(FileNotFoundError):
            winreg.DeleteKey(winreg.HKEY_LOCAL_MACHINE, rf"{_KEY}\{source}")


def _refuse_another(source: str) -> None:
    """Raise PermissionError if the source is registered with another message file."""
    if sys.platform == "win32":
        import winreg  # noqa: PLC0415  # only on Windows

        with (
            contextlib.suppress(FileNotFoundError),
            winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, rf"{_KEY}\{source}") as key,
        ):
            if winreg.QueryValueEx(key, "EventMessageFile")[0] != MESSAGE_FILE:
                raise PermissionError(errno.EACCES, "the source belongs to another program")


def report(source: str, number: int, text: str) -> bool:
    """Write an error entry of this source, with an id from 1 to `LAST_ID`. Return whether the Event Log accepted it.

    Never raises: there is no better place to report that.
    """
    import pywintypes  # noqa: PLC0415  # only on Windows
    import win32evtlog  # noqa: PLC0415  # only on Windows

    try:
        handle = win32evtlog.RegisterEventSource(None, source)
        try:
            win32evtlog.ReportEvent(handle, _ERROR, 0, number, None, [message(text)], None)
        finally:
            win32evtlog.DeregisterEventSource(handle)
    except pywintypes.error:
        return False
    return True
