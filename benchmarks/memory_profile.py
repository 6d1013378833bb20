"""The agent, and a thread beside it that says what its memory is made of: `python -m benchmarks.weighed run …`.

RSS alone can't tell a leak from what the allocator keeps for later: after one answer of megabytes glibc's `free` gives
back only what is above a higher threshold, in each of its arenas. So a line with the event `WEIGHED` goes to the log
every `EVERY` seconds, after a full garbage collection, with

- `used`: bytes that `malloc` has given out and not got back (the C libraries, Python's objects of more than 512 bytes);
- `blocks`: how many objects Python holds, also the smaller ones, which have an allocator of their own;
- `kept`: bytes that `malloc` got back and holds.

`LEAK` in the environment is a number of bytes to lose at each line: whoever looks for leaks can see that one is found.
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
WEIGHED: Final = "soak.weighed"
LEAK: Final = "SOAK_LEAK_BYTES"
PIECE: Final = 1024
_LIBC: Final[Any] = None if sys.platform == "win32" else ctypes.CDLL(None)


class _Mallinfo2(ctypes.Structure):
    """As `mallinfo(3)` has it; its sums are over all arenas."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def weigh() -> dict[str, int]:
    """What is in use now."""
    gc.collect()
    found = _LIBC.mallinfo2()
    return {"used": found.uordblks + found.hblkhd, "blocks": sys.getallocatedblocks(), "kept": found.fordblks}


def tell(leak: int) -> None:
    """For ever. A line is shorter than what a pipe takes in one piece, so it never stands within another."""
    lost: list[bytes] = []
    while True:
        line = json.dumps({"event": WEIGHED, **weigh()}) + "\n"
        os.write(sys.stderr.fileno(), line.encode())
        lost.extend(bytes(PIECE) for _ in range(leak // PIECE))
        time.sleep(EVERY)


def main() -> int:
    if not hasattr(_LIBC, "mallinfo2"):
        raise SystemExit("only glibc, since 2.33, can say what is in use: nothing is weighed here")
    _LIBC.mallinfo2.restype = _Mallinfo2
    threading.Thread(target=tell, args=(int(os.environ.get(LEAK, "0")),), daemon=True).start()
    return run()


if __name__ == "__main__":
    sys.exit(main())
