"""Whose the files are: `user`, `user:group` or `:group`, by name or number. Not on Windows."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Final

UNCHANGED: Final = -1
"""For chown(2): as it is."""
_MOST: Final = 2**32 - 2
"""The last number of a user or a group; the one above it means `UNCHANGED`."""


class OwnerError(ValueError):
    """There is no such user or group, or files may not be given to it. The message follows "expected"."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The numbers of a user and a group, `UNCHANGED` for what stays as the process makes it."""

    user: int = UNCHANGED
    group: int = UNCHANGED

    @property
    def given(self) -> bool:
        """Whether anything is to be changed."""
        return (self.user, self.group) != (UNCHANGED, UNCHANGED)


def resolve(text: str) -> Owner:
    """The numbers of `user`, `user:group` or `:group`; of "" none. Raises `OwnerError`."""
    user, colon, group = text.partition(":")
    if text and ((not user and not group) or (colon and not group)):
        raise OwnerError('"user", "user:group" or ":group"')
    return Owner(_user(user), _group(group))


def _user(name: str) -> int:
    if sys.platform == "win32" or not name:
        return UNCHANGED
    import pwd  # noqa: PLC0415  # not on Windows

    try:
        return _number(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise OwnerError("a user that this machine knows") from None


def _group(name: str) -> int:
    if sys.platform == "win32" or not name:
        return UNCHANGED
    import grp  # noqa: PLC0415  # not on Windows

    try:
        return _number(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise OwnerError("a group that this machine knows") from None


def _number(text: str) -> int:
    if not text.isascii() or len(text) > len(str(_MOST)) or int(text) > _MOST:
        raise OwnerError(f"a number up to {_MOST}")
    return int(text)


def check_permitted(owner: Owner) -> None:
    """Raises `OwnerError` where this process may not give its files to `owner`; tried with a file in memory."""
    if sys.platform == "win32" or not owner.given or not hasattr(os, "memfd_create"):
        return
    descriptor = os.memfd_create("azse-owner", os.MFD_CLOEXEC)
    try:
        os.fchown(descriptor, owner.user, owner.group)
    except OSError as error:
        who = os.geteuid()
        raise OwnerError(
            f"an owner that this process may give files to: it runs as user {who} ({error.strerror}), and without "
            "CAP_CHOWN may give them to its own groups alone"
        ) from None
    finally:
        os.close(descriptor)
