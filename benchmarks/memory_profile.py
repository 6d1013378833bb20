"""The agent with a thread that logs the use of its memory: `python -m benchmarks.memory_profile run …`.

RSS doesn't distinguish a leak from free memory that the allocator keeps: after one response of megabytes, glibc's
`free` returns only what exceeds a raised threshold, in each of its arenas. The thread therefore runs a full garbage
collection every `EVERY` seconds and writes a log line with the event `PROFILED` and these fields:

- `used`: bytes that `malloc` allocated and that are not freed (C libraries, Python objects of more than 512 bytes);
- `blocks`: the number of Python's objects, including smaller ones, which have a separate allocator;
- `kept`: freed bytes that `malloc` keeps.

`LEAK` in the environment is the number of bytes to leak at each line, to check that a leak is found.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import time
from typing import Any, Final

from exporter.cli import main as run

EVERY: Final = 2.0
PROFILED: Final = "soak.memory_profile"
LEAK: Final = "SOAK_LEAK_BYTES"
PIECE: Final = 1024
_LIBC: Final[Any] = None if sys.platform == "win32" else ctypes.CDLL(None)


class _Mallinfo2(ctypes.Structure):
    """The structure of `mallinfo(3)`; its values are sums over all arenas."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def memory_in_use() -> dict[str, int]:
    """Return `used`, `blocks`, and `kept`, after a garbage collection."""
    gc.collect()
    found = _LIBC.mallinfo2()
    return {"used": found.uordblks + found.hblkhd, "blocks": sys.getallocatedblocks(), "kept": found.fordblks}


def write_profile(leak: int) -> None:
    """Write a line every `EVERY` seconds and leak `leak` bytes each time; never returns. A line is shorter than an
    atomic write to a pipe, so lines don't mix."""
    lost: list[bytes] = []
    while True:
        line = json.dumps({"event": PROFILED, **memory_in_use()}) + "\n"
        os.write(sys.stderr.fileno(), line.encode())
        lost.extend(bytes(PIECE) for _ in range(leak // PIECE))
        time.sleep(EVERY)


def main() -> int:
    if not hasattr(_LIBC, "mallinfo2"):
        raise SystemExit("memory_profile needs glibc 2.33 or later")
    _LIBC.mallinfo2.restype = _Mallinfo2
    threading.Thread(target=write_profile, args=(int(os.environ.get(LEAK, "0")),), daemon=True).start()
    return run()


if __name__ == "__main__":
    sys.exit(main())
