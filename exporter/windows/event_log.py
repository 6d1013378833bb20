r"""The Event Log of Windows: where an administrator looks first when a service does not start.

A source is a key below `EventLog\Application` that names a file with message texts. Ours is EventCreate.exe, which
every Windows has: its messages 1 to 1000 are `%1`, the text itself, so that nothing has to be shipped or kept at its
place for old entries to be readable [eventcreate; Event Sources].
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
"""Characters. Windows takes 31,839 in one string [ReportEvent]."""

_KEY: Final = r"SYSTEM\CurrentControlSet\Services\EventLog\Application"
_ERROR: Final = 1
"""EVENTLOG_ERROR_TYPE [ReportEvent]."""
_INSERTED: Final = re.compile(r"%(?=[0-9!%{])")


def message(text: str) -> str:
    """The text as the Event Viewer shows it unchanged: it would take `%1` for a place to insert something
    [ReportEvent], and it breaks lines at CR LF alone. Without characters that it can't hold, and cut where too long."""
    lines = (line.rstrip("\r") for line in text.replace("\0", "").split("\n"))
    text = _INSERTED.sub("% ", "\r\n".join(lines)).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


def add_source(source: str) -> None:
    """Register the source, or change what is registered. Raises OSError, PermissionError for no administrator and for
    another program's source."""
    if sys.platform == "win32":
        import winreg  # noqa: PLC0415  # of Windows alone

        _refuse_another(source)
        with winreg.CreateKeyEx(winreg.HKEY_LOCAL_MACHINE, rf"{_KEY}\{source}", 0, winreg.KEY_SET_VALUE) as key:
            winreg.SetValueEx(key, "EventMessageFile", 0, winreg.REG_EXPAND_SZ, MESSAGE_FILE)
            winreg.SetValueEx(key, "TypesSupported", 0, winreg.REG_DWORD, _ERROR)


def remove_source(source: str) -> None:
    """Remove the source, if it is registered. Raises OSError, PermissionError for another program's source."""
    if sys.platform == "win32":
        import winreg  # noqa: PLC0415  # of Windows alone

        _refuse_another(source)
        with contextlib.suppress(FileNotFoundError):
            winreg.DeleteKey(winreg.HKEY_LOCAL_MACHINE, rf"{_KEY}\{source}")


def _refuse_another(source: str) -> None:
    """Raises PermissionError where the source is registered with another file of messages than ours."""
    if sys.platform == "win32":
        import winreg  # noqa: PLC0415  # of Windows alone

        with (
            contextlib.suppress(FileNotFoundError),
            winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, rf"{_KEY}\{source}") as key,
        ):
            if winreg.QueryValueEx(key, "EventMessageFile")[0] != MESSAGE_FILE:
                raise PermissionError(errno.EACCES, "it is another program's")


def report(source: str, number: int, text: str) -> bool:
    """Write an error of this source, with an id from 1 to `LAST_ID`. Whether the Event Log has taken it; never raises:
    who reports a failure has no better place to say that."""
    import pywintypes  # noqa: PLC0415  # of Windows alone
    import win32evtlog  # noqa: PLC0415  # of Windows alone

    try:
        handle = win32evtlog.RegisterEventSource(None, source)
        try:
            win32evtlog.ReportEvent(handle, _ERROR, 0, number, None, [message(text)], None)
        finally:
            win32evtlog.DeregisterEventSource(handle)
    except pywintypes.error:
        return False
    return True
