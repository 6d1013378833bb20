"""Windows access lists: the rights of accounts to a file or a folder. POSIX modes have no meaning on Windows.

Lists made here are protected: they inherit nothing from the parent folder. SYSTEM and Administrators have full access,
and listed accounts have the given rights. Accounts are identified only by their SID, since their names depend on the
language of the system [Well-known SIDs]. Texts are SDDL [Security Descriptor Definition Language; ACE strings].

Checks work on data (`AccessList`, `others`), so that they can be tested on every system. Functions that take a path
need Windows, and raise OSError with `winerror`, like the system's calls.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from exporter.windows.places import is_link

if TYPE_CHECKING:
    from pathlib import Path

    from _win32typing import PyACL, PySECURITY_ATTRIBUTES

READ: Final = 0x1200A9
"""FILE_GENERIC_READ and FILE_GENERIC_EXECUTE: read files, list and traverse folders [File access rights]."""
MODIFY: Final = 0x1301BF
"""Read, write, create, and delete, but not change permissions."""
FULL: Final = 0x1F01FF
"""FILE_ALL_ACCESS."""

SYSTEM: Final = "S-1-5-18"
ADMINISTRATORS: Final = "S-1-5-32-544"
EVERYONE: Final = "S-1-1-0"
CREATOR_OWNER: Final = "S-1-3-0"
OWNER_RIGHTS: Final = "S-1-3-4"
SERVICE_NAME: Final = "azure-scheduled-events-exporter"
"""Name of the service in the service manager; its account is `NT SERVICE\\` and this name."""

Entry = tuple[str, int]
"""A SID and its rights: `READ`, `MODIFY`, or `FULL`."""

NO_LISTS: Final = "its file system does not support access lists"

_SID: Final = re.compile(r"S-1-[0-9]{1,15}(-[0-9]{1,10}){1,15}")
_ALLOW, _DENY = 0, 1
_OBJECT_INHERIT, _INHERIT_ONLY = 0x1, 0x8
_READS: Final = 0x1 | 0x40000 | 0x80000 | 0x10000000 | 0x80000000
"""FILE_READ_DATA, WRITE_DAC, WRITE_OWNER, GENERIC_ALL, GENERIC_READ: a holder can read, or gain access."""
_REPLACES: Final = 0x40 | 0x10000 | 0x40000 | 0x80000 | 0x10000000
"""FILE_DELETE_CHILD, DELETE, WRITE_DAC, WRITE_OWNER, GENERIC_ALL: a holder can replace this folder or one in it."""
ADDS: Final = 0x2
"""FILE_ADD_FILE: create files in a folder."""
_FILLS: Final = _REPLACES | ADDS | 0x40000000
"""Also GENERIC_WRITE: a holder can create or remove files in the folder."""
_FILE_PERSISTENT_ACLS: Final = 0x8


def service_sid(name: str) -> str:
    r"""Return the SID of `NT SERVICE\name`: S-1-5-80 and the SHA-1 of the upper-case name [Service SIDs, `sc`]."""
    digest = hashlib.sha1(name.upper().encode("utf-16-le"), usedforsecurity=False).digest()
    return "S-1-5-80-" + "-".join(str(part) for part in struct.unpack("<5I", digest))


TRUSTED_INSTALLER: Final = service_sid("TrustedInstaller")
NO_OTHERS: Final = frozenset(
    {SYSTEM, ADMINISTRATORS, TRUSTED_INSTALLER, CREATOR_OWNER, OWNER_RIGHTS, service_sid(SERVICE_NAME)}
)
"""Accounts that may read private files: the system, administrators, the owner, and the service of this program."""
_GROUPS_OF_ALL: Final = frozenset(
    {
        EVERYONE,
        *("S-1-2-0", "S-1-2-1", "S-1-5-2", "S-1-5-3", "S-1-5-4", "S-1-5-7", "S-1-5-11", "S-1-5-15", "S-1-5-113"),
        *("S-1-5-32-545", "S-1-5-32-546", "S-1-5-32-555"),
    }
)
"""Groups that can include any user: Everyone, groups by logon type, Authenticated Users, Users, Guests."""
_DOMAIN_USERS: Final = "-513"


class Ace(Struct, frozen=True):
    """One entry of an access list: the account, the access mask, the type, and the flags [ACE_HEADER].

    `sid` is "" for an entry of an unsupported type.
    """

    sid: str
    mask: int
    type: int = _ALLOW
    flags: int = 0


class AccessList(Struct, frozen=True):
    """The owner and the access list of a file. `entries` None is a NULL list, which grants everyone full access."""

    owner: str
    entries: tuple[Ace, ...] | None


def others(found: AccessList, user: str, rights: int = _READS, *, files: bool = True) -> list[str]:
    """Return the SIDs with one of the `rights` (default: read), except `NO_OTHERS`, the owner, and `user`.

    "" means an entry of an unsupported type. With `files`, includes rights that a folder passes on to files created in
    it. Denials for a group aren't applied to entries of its members, so the result is never too short.
    """
    if found.entries is None:
        return [EVERYONE]
    denied: dict[str, int] = {}
    holders: dict[str, None] = {}
    for entry in found.entries:
        if entry.flags & _INHERIT_ONLY and not (files and entry.flags & _OBJECT_INHERIT):
            continue
        if entry.type == _DENY and not entry.flags:
            denied[entry.sid] = denied.get(entry.sid, 0) | entry.mask
        elif entry.type != _DENY and entry.mask & rights & ~denied.get(entry.sid, 0) & ~denied.get(EVERYONE, 0):
            holders[entry.sid] = None
    return [sid for sid in holders if sid not in {*NO_OTHERS, found.owner, user}]


def intruder(
    path: str, user: str, read: Callable[[str], AccessList], is_link: Callable[[str], bool]
) -> tuple[str, str] | None:
    """Return the first folder of a path that lets another account replace the file, and that account's SID.

    Such an account is an owner that `is_strange`, or a group of all users that may create or remove files in the file's
    folder, or replace one of its parents. A link counts too, with "" as SID; its target is not checked. Return None if
    only administrators control the file. Raises what `read` and `is_link` raise.
    """
    folder, rights = os.path.dirname(os.path.normpath(path)), _FILLS
    while True:
        if is_link(folder):
            return folder, ""
        found = read(folder)
        if is_strange(found.owner, user):
            return folder, found.owner
        for sid in others(found, user, rights, files=rights == _FILLS):
            if sid in _GROUPS_OF_ALL or sid.endswith(_DOMAIN_USERS):
                return folder, sid
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder, rights = above, _REPLACES


def list_text(entries: Sequence[Entry], *, folder: bool) -> str:
    """Return a protected access list as SDDL: SYSTEM and Administrators, then the entries.

    Files in a folder inherit its list. Raises ValueError for an invalid SID.
    """
    flags = "OICI" if folder else ""
    aces = {SYSTEM: FULL, ADMINISTRATORS: FULL}
    for sid, rights in entries:
        if not _SID.fullmatch(sid):
            raise ValueError("expected a SID, for example S-1-5-18")
        aces[sid] = aces.get(sid, 0) | rights
    return "D:P" + "".join(f"(A;{flags};{rights:#x};;;{sid})" for sid, rights in aces.items())


def closing_commands(path: str | Path, rights: int, *, folder: bool, accounts: Iterable[str] = ()) -> str:
    """Return the commands that restrict a file or a folder to SYSTEM, Administrators, and, with `rights`, `accounts`.

    `accounts` are SIDs, since account names are translated; by default the service and the user of this process. The
    first command removes existing entries, which /grant would keep [icacls]. The commands work in PowerShell and cmd.
    Raises OSError.
    """
    letters = {READ: "RX" if folder else "R", MODIFY: "M", FULL: "F"}
    inherited = "(OI)(CI)" if folder else ""
    granted = dict.fromkeys(accounts or (service_sid(SERVICE_NAME), current_user()), rights)
    granted |= {SYSTEM: FULL, ADMINISTRATORS: FULL}
    texts = " ".join(f'"*{sid}:{inherited}{letters[given]}"' for sid, given in granted.items())
    return f'`icacls "{path}" /reset`, then `icacls "{path}" /inheritance:r /grant:r {texts}`'


def protect_file(path: str | Path, entries: Sequence[Entry] = ()) -> None:
    """Set a protected list on the file: SYSTEM, Administrators, the user of this process, and `entries`.

    Raises OSError, also if other accounts still have access.
    """
    _protect(path, [(current_user(), FULL), *entries], folder=False)


def protect_folder(path: str | Path, entries: Sequence[Entry]) -> None:
    """Set a protected list on the folder: SYSTEM, Administrators, and `entries`; this process only if listed there.

    New and existing contents inherit the list, except those with their own protected list. Raises OSError.
    """
    _protect(path, entries, folder=True)


def make_file(path: str | Path) -> None:
    """Create an empty file to which only SYSTEM, Administrators, and the user of this process have access.

    It inherits from its folder if no one else has access there; otherwise it gets a protected list. Raises OSError,
    including FileExistsError.
    """
    inherits = False
    with contextlib.suppress(OSError):  # a folder whose list can't be read
        inherits = is_private(os.path.dirname(os.path.abspath(path)))
    text = list_text([(current_user(), FULL)], folder=False)
    with _system_errors(path):
        import win32con  # noqa: PLC0415  # only on Windows
        import win32file  # noqa: PLC0415  # only on Windows

        win32file.CreateFile(
            str(path),
            win32con.GENERIC_READ | win32con.GENERIC_WRITE,
            win32con.FILE_SHARE_READ | win32con.FILE_SHARE_WRITE | win32con.FILE_SHARE_DELETE,
            None if inherits else _attributes(text),
            win32con.CREATE_NEW,
            win32con.FILE_ATTRIBUTE_NORMAL,
            None,
        ).Close()


def make_folder(path: str | Path, entries: Sequence[Entry] = ()) -> None:
    """Create a folder with a protected list: SYSTEM, Administrators, the user of this process, and `entries`.

    Raises OSError, including FileExistsError.
    """
    text = list_text([(current_user(), FULL), *entries], folder=True)
    with _system_errors(path):
        import win32file  # noqa: PLC0415  # only on Windows

        win32file.CreateDirectory(str(path), _attributes(text))


def others_with_access(path: str | Path) -> list[str]:
    """Return the accounts that may read the path, except `NO_OTHERS`, its owner, and the user of this process.

    Each is a name with its SID, or only the SID if it can't be resolved. If the file system doesn't support lists, the
    result is Everyone (a NULL list). Raises OSError.
    """
    return [_named(sid) for sid in others(access_list(path), current_user())]


def is_strange(owner: str, user: str) -> bool:
    """Return whether an owner, which may change the list at any time, is neither `user` nor one of `NO_OTHERS`."""
    return owner not in {*NO_OTHERS, user}


def is_exposed(path: str) -> bool:
    """Return whether another account can replace the file (`intruder`). Raises OSError. On other systems: False."""
    return sys.platform == "win32" and intruder(path, current_user(), access_list, is_link) is not None


def exposure(path: str) -> str:
    """Return the result of `intruder` as a clause, "" for none. Raises OSError."""
    if sys.platform == "win32" and (found := intruder(path, current_user(), access_list, is_link)) is not None:
        folder, sid = found
        return f"{folder} can be changed by {_named(sid)}" if sid else f"{folder} is a link to another folder"
    return ""


def is_private(path: str | Path) -> bool:
    """Return whether `others_with_access` would be empty, without resolving names. Raises OSError."""
    return not others(access_list(path), current_user())


# Calls of the system. The functions import pywin32, so that this module can be imported on every system.


@contextlib.contextmanager
def _system_errors(path: str | Path) -> Iterator[None]:
    """Turn an error of pywin32 into the OSError for its number. On other systems, raise OSError."""
    if sys.platform == "win32":
        import pywintypes  # noqa: PLC0415  # only on Windows

        try:
            yield
        except pywintypes.error as error:
            raise OSError(0, error.strerror, str(path), error.winerror) from error
    else:
        raise OSError(errno.ENOSYS, "access lists are only available on Windows", str(path))


def current_user() -> str:
    """Return the SID of the user of this process. Raises OSError."""
    with _system_errors("the token of this process"):
        import win32api  # noqa: PLC0415  # only on Windows
        import win32security  # noqa: PLC0415  # only on Windows

        token = win32security.OpenProcessToken(win32api.GetCurrentProcess(), win32security.TOKEN_QUERY)
        user, _ = win32security.GetTokenInformation(token, win32security.TokenUser)
        return win32security.ConvertSidToStringSid(user)


def access_list(path: str | Path) -> AccessList:
    """Return the owner and list of a file or folder; links are followed. Raises OSError."""
    with _system_errors(path):
        import win32security  # noqa: PLC0415  # only on Windows

        found = win32security.GetNamedSecurityInfo(
            str(path),
            win32security.SE_FILE_OBJECT,
            win32security.OWNER_SECURITY_INFORMATION | win32security.DACL_SECURITY_INFORMATION,
        )
        owner = win32security.ConvertSidToStringSid(found.GetSecurityDescriptorOwner())
        acl = found.GetSecurityDescriptorDacl()
        entries = None if acl is None else tuple(_ace(acl, number) for number in range(acl.GetAceCount()))
        return AccessList(owner, entries)


def _ace(entries: PyACL, number: int) -> Ace:
    import win32security  # noqa: PLC0415  # only on Windows

    try:
        (kind, flags), mask, *rest = entries.GetAce(number)
    except NotImplementedError:  # pywin32 doesn't support conditional entries
        return Ace("", _READS)
    return Ace(win32security.ConvertSidToStringSid(rest[-1]), mask & 0xFFFFFFFF, kind, flags)


def keeps_lists(path: str | Path) -> bool:
    """Return whether the file system supports access lists; FAT and some shares don't. Raises OSError."""
    with _system_errors(path):
        import win32api  # noqa: PLC0415  # only on Windows
        import win32file  # noqa: PLC0415  # only on Windows

        volume = win32file.GetVolumePathName(os.path.abspath(path))
        return bool(win32api.GetVolumeInformation(volume)[3] & _FILE_PERSISTENT_ACLS)


def _protect(path: str | Path, entries: Sequence[Entry], *, folder: bool) -> None:
    if not keeps_lists(path):
        raise OSError(errno.ENOTSUP, NO_LISTS, str(path))
    text = list_text(entries, folder=folder)
    named = {SYSTEM, ADMINISTRATORS, *(sid for sid, _ in entries)}
    with _system_errors(path):
        import win32security  # noqa: PLC0415  # only on Windows

        wanted = win32security.ConvertStringSecurityDescriptorToSecurityDescriptor(text, win32security.SDDL_REVISION_1)
        win32security.SetNamedSecurityInfo(
            str(path),
            win32security.SE_FILE_OBJECT,
            win32security.DACL_SECURITY_INFORMATION | win32security.PROTECTED_DACL_SECURITY_INFORMATION,
            None,
            None,
            wanted.GetSecurityDescriptorDacl(),
            None,
        )
        if _has_others(path, named):
            # Wine still inherits from the folder; this call sets exactly the given list.
            win32security.SetFileSecurity(str(path), win32security.DACL_SECURITY_INFORMATION, wanted)
    if _has_others(path, named):
        raise OSError(errno.EACCES, "other accounts still have access", str(path))


def _has_others(path: str | Path, named: set[str]) -> bool:
    """Return whether the list has entries for accounts that aren't in `named` and aren't the owner."""
    found = access_list(path)
    return found.entries is None or any(entry.sid not in {*named, found.owner} for entry in found.entries)


def _attributes(text: str) -> PySECURITY_ATTRIBUTES:
    """Return security attributes that create a file with this list (SDDL)."""
    import win32security  # noqa: PLC0415  # only on Windows

    attributes = win32security.SECURITY_ATTRIBUTES()
    attributes.SECURITY_DESCRIPTOR = win32security.ConvertStringSecurityDescriptorToSecurityDescriptor(
        text, win32security.SDDL_REVISION_1
    )
    return attributes


def _named(sid: str) -> str:
    """Return the account's name in the language of this system, with its SID; only the SID if it can't be resolved."""
    if not sid:
        return "a conditional entry"
    import pywintypes  # noqa: PLC0415  # only on Windows
    import win32security  # noqa: PLC0415  # only on Windows

    try:
        name, domain, _ = win32security.LookupAccountSid(None, win32security.ConvertStringSidToSid(sid))
    except pywintypes.error:  # a removed account, or an unreachable domain
        return sid
    return f"{domain}\\{name} ({sid})" if domain else f"{name} ({sid})"
