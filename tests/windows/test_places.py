"""The folder in ProgramData, by environment, and properties of Windows paths."""

from pathlib import Path

import pytest

from exporter.windows.places import (
    OUTBOX_FILE,
    is_fixed,
    is_in_use,
    is_not_found,
    is_on_a_drive,
    is_own_name,
    program_data,
)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"ProgramData": r"C:\ProgramData"}, r"C:\ProgramData\azure-scheduled-events-exporter"),
        ({"PROGRAMDATA": r"D:\Data"}, r"D:\Data\azure-scheduled-events-exporter"),
        ({}, r"C:\ProgramData\azure-scheduled-events-exporter"),
        ({"ProgramData": ""}, r"C:\ProgramData\azure-scheduled-events-exporter"),
        ({"ProgramData": r"C:data"}, r"C:\ProgramData\azure-scheduled-events-exporter"),
        ({"ProgramData": r"\data"}, r"C:\ProgramData\azure-scheduled-events-exporter"),
    ],
)
def test_folder_is_in_program_data_on_a_drive(environ: dict[str, str], folder: str) -> None:
    assert program_data(environ) == folder


def test_names_in_the_folder_are_plain() -> None:
    assert OUTBOX_FILE == "outbox.db"


@pytest.mark.parametrize("path", [r"C:\x", "c:/x", "C:\\"])
def test_drive_with_its_root_is_fixed(path: str) -> None:
    assert is_on_a_drive(path)
    assert is_fixed(path)


@pytest.mark.parametrize("path", [r"\\server\share\x", "//server/share/x", r"\\?\C:\x", r"\\.\C:\x"])
def test_share_and_literal_path_are_fixed(path: str) -> None:
    assert not is_on_a_drive(path)
    assert is_fixed(path)


@pytest.mark.parametrize("path", ["", "x", r"\x", "/var/lib/x", "C:x", "C:", "1:\\x", "é:\\x", r".\x"])
def test_path_that_depends_on_the_current_directory_or_drive_is_not_fixed(path: str) -> None:
    assert not is_fixed(path)


@pytest.mark.parametrize(
    "path",
    [
        r"C:\app\hold",
        r"C:\PROGRA~1\app\hold",
        r"\\server\share\hold",
        r"\\?\C:\app\hold",
        "C:/app/hold.txt",
        r"C:\app\console",
        r"C:\app\com.txt",
        r"C:\app\.hold",
        r"C:\app\a b",
        r"C:\app\hold~",
        r"C:\app\..\.\hold",
        "C:/.app/v1.2/hold",
    ],
)
def test_ordinary_name_is_of_one_file(path: str) -> None:
    assert is_own_name(path)


@pytest.mark.parametrize(
    "path",
    [
        r"C:\app\NUL",
        r"C:\app\aux.txt",
        r"C:\app\com7",
        r"C:\app\LPT1 .log",
        r"C:\con\hold",
        r"C:\app\CONIN$",
        r"C:\app\hold.",
        r"C:\app\hold ",
        r"\\?\C:\app\hold.",
        r"C:\ready\id.\done",
        r"C:\ready\id \done",
        "C:/ready/id./done",
        r"C:\app\..",
        r"C:\app\hold:stream",
        r"C:\app\hold::$DATA",
        r"C:\app\ho*d",
        r"C:\app\hold?",
        r"C:\app\HOLDFI~1",
        r"C:\app\HOLDFI~1.TXT",
        "C:\\app\\",
        r"\\.\C:\app\hold",
        r"\\.\pipe\hold",
        "NUL",
        "C:\\app\\" + 256 * "x",
        "",
    ],
)
def test_name_by_which_windows_finds_another_file_is_ambiguous(path: str) -> None:
    assert not is_own_name(path)


@pytest.mark.windows
def test_file_that_a_reader_has_open_is_in_use(tmp_path: Path) -> None:
    """A closed or missing file isn't."""
    path = tmp_path / "file"
    path.touch()
    with path.open("rb"):
        assert is_in_use(str(path))
    assert not is_in_use(str(path))
    assert path.exists()
    assert not is_in_use(str(tmp_path / "missing"))


@pytest.mark.windows
def test_only_a_name_missing_in_its_folder_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert is_not_found(str(tmp_path / "hold"))
    for path in (tmp_path / "file", tmp_path / "gone" / "hold", tmp_path / "file" / "hold", tmp_path / "ho<d"):
        assert not is_not_found(str(path))
