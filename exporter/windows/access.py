"""Access lists: who may do what with a file or a folder. On Windows the modes of POSIX mean nothing.

A list of ours is protected: nothing is inherited from the folder above. SYSTEM and Administrators have full access, and
those that are named have what is said. Accounts are named by their SID alone, since their names differ from language to
language [Well-known SIDs]. The texts are SDDL [Security Descriptor Definition Language; ACE strings].

What is judged is data (`AccessList`, `others`), so that it can be tried on every system; the functions that take a path
need Windows, and raise OSError with `winerror` as the system's own calls do.
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
"""FILE_GENERIC_READ and FILE_GENERIC_EXECUTE: read files, list and pass folders [File access rights]."""
MODIFY: Final = 0x1301BF
"""Read, write, make and delete, but not give the right to others."""
FULL: Final = 0x1F01FF
"""FILE_ALL_ACCESS."""

SYSTEM: Final = "S-1-5-18"
ADMINISTRATORS: Final = "S-1-5-32-544"
EVERYONE: Final = "S-1-1-0"
CREATOR_OWNER: Final = "S-1-3-0"
OWNER_RIGHTS: Final = "S-1-3-4"
SERVICE_NAME: Final = "azure-scheduled-events-exporter"
"""The service as the service manager knows it; its account is `NT SERVICE\\` and this name."""

Entry = tuple[str, int]
"""A SID and its rights: `READ`, `MODIFY` or `FULL`."""

NO_LISTS: Final = "its file system keeps no access lists"

_SID: Final = re.compile(r"S-1-[0-9]{1,15}(-[0-9]{1,10}){1,15}")
_ALLOW, _DENY = 0, 1
_OBJECT_INHERIT, _INHERIT_ONLY = 0x1, 0x8
_READS: Final = 0x1 | 0x40000 | 0x80000 | 0x10000000 | 0x80000000
"""FILE_READ_DATA, WRITE_DAC, WRITE_OWNER, GENERIC_ALL, GENERIC_READ: who has one of them can read, or can see to it."""
_REPLACES: Final = 0x40 | 0x10000 | 0x40000 | 0x80000 | 0x10000000
"""FILE_DELETE_CHILD, DELETE, WRITE_DAC, WRITE_OWNER, GENERIC_ALL: a holder can put another folder in the place of this
one or of one in it."""
ADDS: Final = 0x2
"""FILE_ADD_FILE, to make files in a folder."""
_FILLS: Final = _REPLACES | ADDS | 0x40000000
"""Also GENERIC_WRITE: a holder can make or remove files in the folder."""
_FILE_PERSISTENT_ACLS: Final = 0x8


def service_sid(name: str) -> str:
    r"""The SID of `NT SERVICE\name`: S-1-5-80 and the SHA-1 of the name in upper case [Service SIDs, `sc showsid`]."""
    digest = hashlib.sha1(name.upper().encode("utf-16-le"), usedforsecurity=False).digest()
    return "S-1-5-80-" + "-".join(str(part) for part in struct.unpack("<5I", digest))


TRUSTED_INSTALLER: Final = service_sid("TrustedInstaller")
NO_OTHERS: Final = frozenset(
    {SYSTEM, ADMINISTRATORS, TRUSTED_INSTALLER, CREATOR_OWNER, OWNER_RIGHTS, service_sid(SERVICE_NAME)}
)
"""Who may read what is private: the system, its administrators, who owns it, and the service of this program."""
_GROUPS_OF_ALL: Final = frozenset(
    {
        EVERYONE,
        *("S-1-2-0", "S-1-2-1", "S-1-5-2", "S-1-5-3", "S-1-5-4", "S-1-5-7", "S-1-5-11", "S-1-5-15", "S-1-5-113"),
        *("S-1-5-32-545", "S-1-5-32-546", "S-1-5-32-555"),
    }
)
"""Groups that any user may be in: Everyone, those by the way of logging on, Authenticated Users, Users, Guests."""
_DOMAIN_USERS: Final = "-513"


class Ace(Struct, frozen=True):
    """One entry of an access list: for whom, the access mask, its type and its flags [ACE_HEADER].

    `sid` is "" for an entry of a type that is not known here.
    """

    sid: str
    mask: int
    type: int = _ALLOW
    flags: int = 0


class AccessList(Struct, frozen=True):
    """Who owns a file, and who may do what with it. `entries` None, a NULL list, lets everybody do everything."""

    owner: str
    entries: tuple[Ace, ...] | None


def others(found: AccessList, user: str, rights: int = _READS, *, files: bool = True) -> list[str]:
    """The SIDs of those that have one of the `rights`, by default to read, but for `NO_OTHERS`, the owner and `user`;
    "" for an entry that is not known.

    Of a folder also those that have it for the `files` that are made in it. What a group is denied is not taken from
    its members' own entries: this never finds fewer than there are.
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
    """The folder on the way to a file in which a stranger decides what the file is, and that account's SID.

    A stranger is an owner that `is_strange`, and a group of all users that may make or remove files in the file's own
    folder, or put another folder in the place of one above it. A link is one too, with "" for the SID: what it leads to
    is not judged. None if administrators decide alone. Raises what `read` and `is_link` raise.
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
    """A protected access list as SDDL: SYSTEM and Administrators, then the entries.

    Of a folder it is inherited by what is made in it. Raises ValueError for what is no SID.
    """
    flags = "OICI" if folder else ""
    aces = {SYSTEM: FULL, ADMINISTRATORS: FULL}
    for sid, rights in entries:
        if not _SID.fullmatch(sid):
            raise ValueError("expected a SID such as S-1-5-18")
        aces[sid] = aces.get(sid, 0) | rights
    return "D:P" + "".join(f"(A;{flags};{rights:#x};;;{sid})" for sid, rights in aces.items())


def closing_commands(path: str | Path, rights: int, *, folder: bool, accounts: Iterable[str] = ()) -> str:
    """The commands that give a file or a folder to SYSTEM, Administrators, and with `rights` to these accounts.

    `accounts` are SIDs, by default those of our service and of the user of this process: the names of accounts are
    translated. The first command takes away the entries that are there, which /grant would leave [icacls]. Each can be
    typed in PowerShell as in cmd. Raises OSError.
    """
    letters = {READ: "RX" if folder else "R", MODIFY: "M", FULL: "F"}
    inherited = "(OI)(CI)" if folder else ""
    granted = dict.fromkeys(accounts or (service_sid(SERVICE_NAME), current_user()), rights)
    granted |= {SYSTEM: FULL, ADMINISTRATORS: FULL}
    texts = " ".join(f'"*{sid}:{inherited}{letters[given]}"' for sid, given in granted.items())
    return f'`icacls "{path}" /reset`, then `icacls "{path}" /inheritance:r /grant:r {texts}`'


def protect_file(path: str | Path, entries: Sequence[Entry] = ()) -> None:
    """Give the file a protected list: SYSTEM, Administrators, the user of this process, and `entries`.

    Raises OSError, also where others have access all the same.
    """
    _protect(path, [(current_user(), FULL), *entries], folder=False)


def protect_folder(path: str | Path, entries: Sequence[Entry]) -> None:
    """Give the folder a protected list: SYSTEM, Administrators and `entries`, the user of this process only if named.

    What is made in it inherits the list, and so does what is in it, but for what has a protected list of its own.
    Raises OSError.
    """
    _protect(path, entries, folder=True)


def make_file(path: str | Path) -> None:
    """Make an empty file that only SYSTEM, Administrators and the user of this process have access to.

    It inherits from its folder where nobody else has access there, and is protected elsewhere. Raises OSError,
    FileExistsError among them.
    """
    inherits = False
    with contextlib.suppress(OSError):  # a folder whose list may not be read
        inherits = is_private(os.path.dirname(os.path.abspath(path)))
    text = list_text([(current_user(), FULL)], folder=False)
    with _system_errors(path):
        import win32con  # noqa: PLC0415  # of Windows alone
        import win32file  # noqa: PLC0415  # of Windows alone

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
    """Make a folder with a protected list: SYSTEM, Administrators, the user of this process, and `entries`.

    Raises OSError, FileExistsError among them.
    """
    text = list_text([(current_user(), FULL), *entries], folder=True)
    with _system_errors(path):
        import win32file  # noqa: PLC0415  # of Windows alone

        win32file.CreateDirectory(str(path), _attributes(text))


def others_with_access(path: str | Path) -> list[str]:
    """Those that may read the file or folder, but for `NO_OTHERS`, its owner and the user of this process.

    Names with their SIDs where they can be resolved, else the SIDs. Everybody where the file system keeps no lists:
    there it has a NULL list. Raises OSError.
    """
    return [_named(sid) for sid in others(access_list(path), current_user())]


def is_strange(owner: str, user: str) -> bool:
    """Whether a folder's owner, who may change its list at any time, is neither `user` nor one of `NO_OTHERS`."""
    return owner not in {*NO_OTHERS, user}


def is_exposed(path: str) -> bool:
    """Whether a stranger may decide what the file is (`intruder`). Raises OSError. Elsewhere than on Windows: False."""
    return sys.platform == "win32" and intruder(path, current_user(), access_list, is_link) is not None


def exposure(path: str) -> str:
    """The same as a clause about the folder concerned, "" for none. Raises OSError."""
    if sys.platform == "win32" and (found := intruder(path, current_user(), access_list, is_link)) is not None:
        folder, sid = found
        return f"{folder} can be changed by {_named(sid)}" if sid else f"{folder} is a link to another folder"
    return ""


def is_private(path: str | Path) -> bool:
    """Whether `others_with_access` finds nobody, without asking for names. Raises OSError."""
    return not others(access_list(path), current_user())


# What only the system can tell or do. pywin32 is imported where it is called: this module is imported on every system.


@contextlib.contextmanager
def _system_errors(path: str | Path) -> Iterator[None]:
    """Turns an error of pywin32 into the OSError that Python raises for its number; elsewhere there is no such call."""
    if sys.platform == "win32":
        import pywintypes  # noqa: PLC0415  # of Windows alone

        try:
            yield
        except pywintypes.error as error:
            raise OSError(0, error.strerror, str(path), error.winerror) from error
    else:
        raise OSError(errno.ENOSYS, "access lists are those of Windows", str(path))


def current_user() -> str:
    """The SID of the user that this process runs as. Raises OSError."""
    with _system_errors("the token of this process"):
        import win32api  # noqa: PLC0415  # of Windows alone
        import win32security  # noqa: PLC0415  # of Windows alone

        token = win32security.OpenProcessToken(win32api.GetCurrentProcess(), win32security.TOKEN_QUERY)
        user, _ = win32security.GetTokenInformation(token, win32security.TokenUser)
        return win32security.ConvertSidToStringSid(user)


def access_list(path: str | Path) -> AccessList:
    """The list of a file or folder; a link is followed. Raises OSError."""
    with _system_errors(path):
        import win32security  # noqa: PLC0415  # of Windows alone

        found = win32security.GetNamedSecurityInfo(
            str(path),
            win32security.SE_FILE_OBJECT,
            win32security.OWNER_SECURITY_INFORMATION | win32security.DACL_SECURITY_INFORMATION,
        )
        owner = win32security.ConvertSidToStringSid(found.GetSecurityDescriptorOwner())
        return AccessList(owner, _entries(found.GetSecurityDescriptorDacl()))


def _entries(found: PyACL | None) -> tuple[Ace, ...] | None:
    return None if found is None else tuple(_ace(found, number) for number in range(found.GetAceCount()))


def _ace(entries: PyACL, number: int) -> Ace:
    import win32security  # noqa: PLC0415  # of Windows alone

    try:
        (kind, flags), mask, *rest = entries.GetAce(number)
    except NotImplementedError:  # pywin32 does not read entries with conditions
        return Ace("", _READS)
    return Ace(win32security.ConvertSidToStringSid(rest[-1]), mask & 0xFFFFFFFF, kind, flags)


def keeps_lists(path: str | Path) -> bool:
    """Whether the file system keeps access lists: FAT does not, nor do some shares. Raises OSError."""
    with _system_errors(path):
        import win32api  # noqa: PLC0415  # of Windows alone
        import win32file  # noqa: PLC0415  # of Windows alone

        volume = win32file.GetVolumePathName(os.path.abspath(path))
        return bool(win32api.GetVolumeInformation(volume)[3] & _FILE_PERSISTENT_ACLS)


def _protect(path: str | Path, entries: Sequence[Entry], *, folder: bool) -> None:
    if not keeps_lists(path):
        raise OSError(errno.ENOTSUP, NO_LISTS, str(path))
    text = list_text(entries, folder=folder)
    named = {SYSTEM, ADMINISTRATORS, *(sid for sid, _ in entries)}
    with _system_errors(path):
        import win32security  # noqa: PLC0415  # of Windows alone

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
            # Wine inherits from the folder all the same; this call sets the list as it is given.
            win32security.SetFileSecurity(str(path), win32security.DACL_SECURITY_INFORMATION, wanted)
    if _has_others(path, named):
        raise OSError(errno.EACCES, "others have access all the same", str(path))


def _has_others(path: str | Path, named: set[str]) -> bool:
    """Whether the list has entries for others than those named; their owner may always read the list and change it."""
    found = access_list(path)
    return found.entries is None or any(entry.sid not in {*named, found.owner} for entry in found.entries)


def _attributes(text: str) -> PySECURITY_ATTRIBUTES:
    """What is made with these has the list of the text from its first moment."""
    import win32security  # noqa: PLC0415  # of Windows alone

    attributes = win32security.SECURITY_ATTRIBUTES()
    attributes.SECURITY_DESCRIPTOR = win32security.ConvertStringSecurityDescriptorToSecurityDescriptor(
        text, win32security.SDDL_REVISION_1
    )
    return attributes


def _named(sid: str) -> str:
    """The account's name in the language of this system, with its SID."""
    if not sid:
        return "an entry with a condition"
    import pywintypes  # noqa: PLC0415  # of Windows alone
    import win32security  # noqa: PLC0415  # of Windows alone

    try:
        name, domain, _ = win32security.LookupAccountSid(None, win32security.ConvertStringSidToSid(sid))
    except pywintypes.error:  # of an account that was removed, or whose domain does not answer
        return sid
    return f"{domain}\\{name} ({sid})" if domain else f"{name} ({sid})"
