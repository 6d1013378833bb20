"""Access lists: as data on every system; on files only on Windows (Wine keeps only what a mode can express)."""

import os
from pathlib import Path

import pytest

from exporter.windows import access
from exporter.windows.access import (
    ADMINISTRATORS,
    CREATOR_OWNER,
    EVERYONE,
    FULL,
    MODIFY,
    READ,
    SERVICE_NAME,
    SYSTEM,
    TRUSTED_INSTALLER,
    AccessList,
    Ace,
    is_strange,
    list_text,
    others,
    service_sid,
)

USERS = "S-1-5-32-545"
OWNER = "S-1-5-21-1-2-3-1001"
USER = "S-1-5-21-1-2-3-1002"
STRANGER = "S-1-5-21-1-2-3-1003"
DENY = 1
OBJECT_INHERIT, CONTAINER_INHERIT, INHERIT_ONLY, INHERITED = 1, 2, 8, 16
GENERIC_READ, READ_ATTRIBUTES, WRITE_OWNER = 0x80000000, 0x80, 0x80000


def found(*entries: Ace) -> list[str]:
    return others(AccessList(OWNER, entries), USER)


def test_list_is_protected_and_identifies_accounts_by_their_sids() -> None:
    assert list_text([(USER, FULL)], folder=False) == (
        f"D:P(A;;0x1f01ff;;;S-1-5-18)(A;;0x1f01ff;;;S-1-5-32-544)(A;;0x1f01ff;;;{USER})"
    )


def test_files_in_a_folder_inherit_its_list() -> None:
    text = list_text([(USER, MODIFY), (STRANGER, READ)], folder=True)
    assert text == (
        "D:P(A;OICI;0x1f01ff;;;S-1-5-18)(A;OICI;0x1f01ff;;;S-1-5-32-544)"
        f"(A;OICI;0x1301bf;;;{USER})(A;OICI;0x1200a9;;;{STRANGER})"
    )


def test_folder_of_another_account_is_strange() -> None:
    """Its owner can change its list at any time."""
    assert is_strange(STRANGER, USER)
    assert not any(is_strange(owner, USER) for owner in (USER, SYSTEM, ADMINISTRATORS, service_sid(SERVICE_NAME)))


def test_account_has_one_entry() -> None:
    twice = list_text([(SYSTEM, READ), (USER, READ), (USER, MODIFY)], folder=False)
    assert twice == list_text([(USER, MODIFY)], folder=False)


@pytest.mark.parametrize("sid", ["", "Users", "S-1", "S-1-5-18)(A;;FA;;;WD", "WD", "S-1-5-18\n"])
def test_invalid_sid_is_rejected(sid: str) -> None:
    with pytest.raises(ValueError, match="expected a SID"):
        list_text([(sid, READ)], folder=False)


def test_sid_of_a_service_is_computed_as_windows_does() -> None:
    assert TRUSTED_INSTALLER == "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"
    assert service_sid("trustedinstaller") == TRUSTED_INSTALLER


def test_system_administrators_owner_user_and_service_are_not_others() -> None:
    own = [SYSTEM, ADMINISTRATORS, TRUSTED_INSTALLER, OWNER, USER, service_sid(SERVICE_NAME)]
    assert found(*(Ace(sid, FULL) for sid in own)) == []
    assert found(Ace(CREATOR_OWNER, 0x10000000, 0, OBJECT_INHERIT | CONTAINER_INHERIT | INHERIT_ONLY)) == []


@pytest.mark.parametrize("mask", [READ, MODIFY, FULL, GENERIC_READ, 1, WRITE_OWNER])
def test_account_with_or_able_to_gain_access_is_reported(mask: int) -> None:
    assert found(Ace(SYSTEM, FULL), Ace(USERS, mask)) == [USERS]


def test_account_that_only_sees_attributes_is_not_reported() -> None:
    assert found(Ace(USERS, READ_ATTRIBUTES)) == []


def test_missing_list_lets_everyone_read() -> None:
    assert others(AccessList(OWNER, None), USER) == [EVERYONE]
    assert others(AccessList(OWNER, ()), USER) == []


def test_entries_inherited_by_files_count_and_those_inherited_by_folders_do_not() -> None:
    assert found(Ace(USERS, READ, 0, OBJECT_INHERIT | INHERIT_ONLY)) == [USERS]
    assert found(Ace(USERS, READ, 0, CONTAINER_INHERIT | INHERIT_ONLY)) == []
    assert found(Ace(USERS, READ, 0, INHERITED)) == [USERS]


def test_earlier_denial_counts_for_the_same_account_and_for_everyone() -> None:
    assert found(Ace(USERS, FULL, DENY), Ace(USERS, READ)) == []
    assert found(Ace(EVERYONE, FULL, DENY), Ace(USERS, READ)) == []
    assert found(Ace(USERS, READ), Ace(USERS, FULL, DENY)) == [USERS]
    assert found(Ace(USERS, 1, DENY), Ace(USERS, FULL)) == [USERS]  # they can still take ownership
    assert found(Ace(STRANGER, FULL, DENY), Ace(USERS, READ)) == [USERS]


def test_unknown_entry_counts_as_another_account() -> None:
    assert found(Ace("", 1)) == [""]


def test_closing_commands_reset_the_path_first_and_use_sids() -> None:
    """/grant keeps explicit entries of other accounts; unquoted parentheses have a meaning in PowerShell."""
    service = service_sid(SERVICE_NAME)
    assert access.closing_commands(r"C:\a b\key.pem", READ, folder=False, accounts=[service, SYSTEM]) == (
        r'`icacls "C:\a b\key.pem" /reset`, then '
        rf'`icacls "C:\a b\key.pem" /inheritance:r /grant:r "*{service}:R" "*S-1-5-18:F" "*S-1-5-32-544:F"`'
    )
    assert access.closing_commands(r"C:\data", MODIFY, folder=True, accounts=[USER]).endswith(
        f'"*{USER}:(OI)(CI)M" "*S-1-5-18:(OI)(CI)F" "*S-1-5-32-544:(OI)(CI)F"`'
    )


# -- control over a file by other accounts

PARENT, OWN = os.path.join(os.sep, "data"), os.path.join(os.sep, "data", "ready")
CLOSED = (Ace(SYSTEM, FULL), Ace(ADMINISTRATORS, FULL), Ace(STRANGER, MODIFY))
ADD_FILE, ADD_FOLDER, DELETE_CHILD, DELETE, WRITE_DAC, GENERIC_WRITE = 2, 4, 0x40, 0x10000, 0x40000, 0x40000000


def intruder_of(lists: dict[str, AccessList], links: tuple[str, ...] = ()) -> tuple[str, str] | None:
    """Return the intruder on the way to a ready file; unlisted folders belong to the administrators."""
    closed = AccessList(ADMINISTRATORS, CLOSED)
    return access.intruder(
        os.path.join(OWN, "event"), USER, lambda path: lists.get(path, closed), lambda path: path in links
    )


@pytest.mark.parametrize("owner", [SYSTEM, ADMINISTRATORS, TRUSTED_INSTALLER, USER, service_sid(SERVICE_NAME)])
def test_folders_of_administrators_and_of_the_service_have_no_intruder(owner: str) -> None:
    """An account that an administrator listed isn't one: it's the software that writes ready files."""
    assert intruder_of({OWN: AccessList(owner, CLOSED)}) is None


@pytest.mark.parametrize("folder", [OWN, PARENT, os.sep])
def test_owner_of_any_parent_folder_is_an_intruder(folder: str) -> None:
    """An owner can change the list at any time, and replace a folder below."""
    assert intruder_of({folder: AccessList(STRANGER, CLOSED)}) == (folder, STRANGER)


@pytest.mark.parametrize("mask", [ADD_FILE, DELETE_CHILD, DELETE, WRITE_DAC, WRITE_OWNER, GENERIC_WRITE, MODIFY, FULL])
@pytest.mark.parametrize("group", [EVERYONE, "S-1-5-11", USERS, "S-1-5-4", "S-1-5-21-1-2-3-513"])
def test_group_of_all_users_that_may_change_files_is_an_intruder(group: str, mask: int) -> None:
    """Folders that an administrator creates in C:\\ or in ProgramData have such entries."""
    assert intruder_of({OWN: AccessList(ADMINISTRATORS, (*CLOSED, Ace(group, mask)))}) == (OWN, group)


@pytest.mark.parametrize("mask", [READ, READ_ATTRIBUTES, ADD_FOLDER])
def test_group_of_all_users_that_may_only_read_is_not_an_intruder(mask: int) -> None:
    assert intruder_of({OWN: AccessList(ADMINISTRATORS, (*CLOSED, Ace(USERS, mask)))}) is None


def test_rights_of_all_users_to_a_parent_count_if_they_can_replace_a_folder() -> None:
    """In ProgramData, users can create files and folders, in C:\\ folders: that doesn't affect folders of others."""
    makes = Ace(USERS, ADD_FILE | ADD_FOLDER, 0, CONTAINER_INHERIT)
    handed_on = Ace("S-1-5-11", MODIFY, 0, OBJECT_INHERIT | CONTAINER_INHERIT | INHERIT_ONLY)
    assert intruder_of({PARENT: AccessList(SYSTEM, (*CLOSED, makes, handed_on))}) is None
    for mask in (DELETE, DELETE_CHILD, WRITE_DAC, WRITE_OWNER):
        assert intruder_of({PARENT: AccessList(SYSTEM, (*CLOSED, Ace(USERS, mask)))}) == (PARENT, USERS)
    assert intruder_of({OWN: AccessList(SYSTEM, (*CLOSED, handed_on))}) == (OWN, "S-1-5-11")


def test_folder_without_a_list_has_an_intruder() -> None:
    """A file system without access lists grants everyone full access."""
    assert intruder_of({OWN: AccessList(ADMINISTRATORS, None)}) == (OWN, EVERYONE)


@pytest.mark.parametrize("folder", [OWN, PARENT])
def test_link_in_the_path_is_an_intruder(folder: str) -> None:
    """Any user can create a junction; its list is read from its target."""
    assert intruder_of({}, (folder,)) == (folder, "")


@pytest.mark.windows
def test_windows_folder_that_everyone_may_write_to_is_exposed(tmp_path: Path) -> None:
    folder = tmp_path / "ready"
    folder.mkdir()
    access.protect_folder(folder, [(access.current_user(), FULL)])
    assert access.exposure(str(folder / "event")) == ""
    access.protect_folder(folder, [(access.current_user(), FULL), (EVERYONE, MODIFY)])
    assert access.is_exposed(str(folder / "event"))
    assert EVERYONE in access.exposure(str(folder / "event"))
    with pytest.raises(FileNotFoundError):
        access.is_exposed(str(folder / "missing" / "event"))


@pytest.mark.linux("Windows has access lists")
def test_access_lists_are_unavailable_on_other_systems(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="access lists are only available on Windows"):
        access.protect_file(tmp_path)


@pytest.mark.windows
def test_file_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("secret", encoding="ascii")
    assert [name for name in access.others_with_access(path) if EVERYONE in name]

    access.protect_file(path)

    assert access.others_with_access(path) == []
    assert path.read_text(encoding="ascii") == "secret"


@pytest.mark.windows
def test_file_is_private_from_its_creation_and_never_created_twice(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)
    path = tmp_path / "shared" / "file"
    access.make_file(path)
    assert access.is_private(path)
    with pytest.raises(FileExistsError):
        access.make_file(path)


@pytest.mark.windows
def test_folder_is_private_from_its_creation_and_never_created_twice(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    access.make_folder(path)
    assert access.others_with_access(path) == []
    assert os.listdir(path) == []
    with pytest.raises(FileExistsError):
        access.make_folder(path)


@pytest.mark.windows
def test_folder_is_open_only_to_listed_accounts(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    access.protect_folder(path, [(access.current_user(), FULL)])
    assert access.is_private(path)


@pytest.mark.windows
def test_missing_path_raises_the_error_of_the_system(tmp_path: Path) -> None:
    for call in (access.protect_file, access.others_with_access):
        with pytest.raises(FileNotFoundError):
            call(tmp_path / "missing")


@pytest.mark.windows
@pytest.mark.not_wine("what is made in a folder inherits nothing there")
def test_new_files_of_a_folder_are_open_only_to_listed_accounts(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "before").touch()
    access.protect_folder(path, [(access.current_user(), FULL), ("S-1-5-19", MODIFY)])
    (path / "after").touch()
    for name in ("before", "after"):
        entries = access.access_list(path / name).entries
        assert entries is not None
        assert {entry.sid for entry in entries} == {SYSTEM, ADMINISTRATORS, access.current_user(), "S-1-5-19"}
