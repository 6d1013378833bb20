"""A secret as a path that can be read once, for libraries that take only the name of a file: never on a disk.

The pipe has a random name, one instance that nobody made before, and is for the user of this process alone, on this
machine alone [CreateNamedPipe: FILE_FLAG_FIRST_PIPE_INSTANCE, PIPE_REJECT_REMOTE_CLIENTS].
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
from collections.abc import Iterator
from typing import Final

from exporter.windows.access import current_user

_FIRST_INSTANCE: Final = 0x00080000
_REJECT_REMOTE: Final = 0x00000008
_BUFFER: Final = 64 << 10
PATIENCE_SECONDS: Final = 2.0
"""How long the pipe's end is waited for: another program of this user may have opened it, and read nothing."""


@contextlib.contextmanager
def pipe_of(content: bytes, patience: float = PATIENCE_SECONDS) -> Iterator[str]:
    """The path of a named pipe that gives the content to the first that opens it. Raises OSError.

    Afterwards at most `patience` seconds are waited for whoever has it open. Then its thread is left behind, and ends
    with that reader.
    """
    if sys.platform == "win32":
        import pywintypes  # noqa: PLC0415  # of Windows alone
        import win32con  # noqa: PLC0415  # of Windows alone
        import win32file  # noqa: PLC0415  # of Windows alone
        import win32pipe  # noqa: PLC0415  # of Windows alone
        import win32security  # noqa: PLC0415  # of Windows alone

        path = rf"\\.\pipe\{secrets.token_hex(16)}"
        attributes = win32security.SECURITY_ATTRIBUTES()
        attributes.SECURITY_DESCRIPTOR = win32security.ConvertStringSecurityDescriptorToSecurityDescriptor(
            f"D:P(A;;FA;;;{current_user()})", win32security.SDDL_REVISION_1
        )
        try:
            pipe = win32pipe.CreateNamedPipe(
                path,
                win32pipe.PIPE_ACCESS_OUTBOUND | _FIRST_INSTANCE,
                win32pipe.PIPE_TYPE_BYTE | win32pipe.PIPE_WAIT | _REJECT_REMOTE,
                1,
                _BUFFER,
                0,
                0,
                attributes,
            )
        except pywintypes.error as error:
            raise OSError(0, error.strerror, path, error.winerror) from error

        def serve() -> None:
            with contextlib.suppress(pywintypes.error):  # connected already, or the reader has read enough
                win32pipe.ConnectNamedPipe(pipe, None)
            with contextlib.suppress(pywintypes.error):
                win32file.WriteFile(pipe, content)
                win32file.FlushFileBuffers(pipe)
            win32file.CloseHandle(pipe)

        server = threading.Thread(target=serve, name="pipe", daemon=True)
        server.start()
        try:
            yield path
        finally:
            with contextlib.suppress(pywintypes.error):  # nobody has opened it: the thread waits for one
                win32file.CreateFile(path, win32con.GENERIC_READ, 0, None, win32con.OPEN_EXISTING, 0, None).close()
            server.join(patience)
    else:
        raise OSError("named pipes in this sense are those of Windows")
