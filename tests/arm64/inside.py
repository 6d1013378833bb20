"""An isolated environment for one command of another architecture: `python inside.py READY GO ROOT [SOURCE] --
COMMAND…`.

`tests.arm64.root` runs it, and writes the maps of user and group ids when this program asks for them. In separate user,
mount, and process namespaces it registers QEMU for arm64 with its own binfmt_misc ([binfmt_misc], one per user
namespace since Linux 6.7), so that the machine isn't changed and no mount remains: the kernel removes it all with the
last process.

With a SOURCE, which is then `/src`, both folders are seen through overlays in memory: the command may write everywhere,
and neither is changed. READY and GO are file descriptors. Exit code: the command's; 125 with a message if the
environment could not be made.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
PR_SET_PDEATHSIG: Final = 1
"""<linux/sched.h>, <linux/mount.h>, <linux/prctl.h>."""

NOT_MADE: Final = 125
INTERPRETER: Final = "/usr/bin/qemu-aarch64-static"
HEADER: Final = rb"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK: Final = rb"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
"""A 64-bit little-endian ELF file of type 2 or 3 (the mask omits the last bit) for machine 183, AArch64."""
FLAGS: Final = "FP"
"""F: the kernel keeps QEMU open from now on, since the root has none; P: QEMU gets argv[0], by which a virtual
environment's Python finds its folder."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


class NotMade(Exception):
    """The environment could not be made; the text has the reason."""


def mount(source: str, target: Path, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    """Call mount(2). Raises NotMade."""
    coded = [part.encode() if part is not None else None for part in (source, str(target), kind, options)]
    if _libc.mount(coded[0], coded[1], coded[2], ctypes.c_ulong(flags), coded[3]):
        code = ctypes.get_errno()
        raise NotMade(f"mount of {kind or source} at {target}: {os.strerror(code)}")


def leave(ready: int, go: int) -> None:
    """Leave the machine's namespaces; notify the process that writes the id maps with a byte, and wait for its byte."""
    if _libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID):
        raise NotMade(f"unshare: {os.strerror(ctypes.get_errno())}")
    os.write(ready, b"1")
    if os.read(go, 1) != b"1":
        raise NotMade("the maps of user ids were not written")
    os.setgroups([])
    os.setgid(0)
    os.setuid(0)


def register(proc: Path) -> None:
    """Make the kernel run arm64's programs with QEMU, in this user namespace and those below."""
    try:
        mount("binfmt_misc", proc / "sys/fs/binfmt_misc", "binfmt_misc")
    except NotMade as error:
        raise NotMade(f"{error}: Linux {platform.release()} has no binfmt_misc for a user namespace; 6.7 has") from None
    rule = b":qemu-aarch64:M::" + HEADER + b":" + MASK + b":" + INTERPRETER.encode() + b":" + FLAGS.encode()
    (proc / "sys/fs/binfmt_misc/register").write_bytes(rule)


def layer(memory: Path, lower: Path, target: Path) -> None:
    """Mount `lower` at `target`, with changes kept in memory."""
    upper, work = memory / f"{target.name}-upper", memory / f"{target.name}-work"
    upper.mkdir()
    work.mkdir()
    mount("overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")


def furnish(root: Path, source: Path | None) -> Path:
    """Mount what the command needs; return the root to change into."""
    mount("none", Path("/"), None, MS_REC | MS_PRIVATE)
    if source is not None:
        memory = Path("/mnt")
        mount("tmpfs", memory, "tmpfs", 0, "mode=755")
        (whole := memory / "root").mkdir()
        layer(memory, root, whole)
        root = whole
        (root / "src").mkdir(exist_ok=True)
        layer(memory, source, root / "src")
        for name in ("tmp", "run"):
            mount("tmpfs", root / name, "tmpfs", 0, "mode=1777" if name == "tmp" else "mode=755")
    mount("proc", root / "proc", "proc")
    register(root / "proc")
    for name in ("sys", "dev"):
        mount(f"/{name}", root / name, None, MS_BIND | MS_REC)
    mount("tmpfs", root / "dev" / "shm", "tmpfs", 0, "mode=1777")
    return root


def attend(root: Path, folder: str, command: list[str]) -> int:
    """Run the command in the root and wait for it, and for every orphan: this is the first process of its namespace."""
    child = os.fork()
    if child == 0:
        try:
            os.chroot(root)
            os.chdir(folder)
            os.execvp(command[0], command)  # noqa: S606  # it takes this process' place
        except OSError as error:
            print(f"{command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(NOT_MADE)
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main(arguments: list[str]) -> int:
    before, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    ready, go, root, *sources = before
    source = Path(sources[0]) if sources else None
    try:
        leave(int(ready), int(go))
    except NotMade as error:
        print(error, file=sys.stderr)
        return NOT_MADE
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the process that waits for this one does not leave it behind
    first = os.fork()  # the process namespace is that of the children
    if first:
        code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        return code if code >= 0 else 128 - code
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # and with the first process every other of its namespace
    try:
        code = attend(furnish(Path(root), source), "/src" if source else "/", command)
    except (NotMade, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        code = NOT_MADE
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
