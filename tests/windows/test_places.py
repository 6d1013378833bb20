"""The folder below ProgramData, by the environment that is given."""

import pytest

from exporter.windows.places import OUTBOX_FILE, is_fixed, is_on_a_drive, program_data


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
def test_the_folder_is_below_program_data_on_a_drive(environ: dict[str, str], folder: str) -> None:
    assert program_data(environ) == folder


def test_what_is_in_it_has_plain_names() -> None:
    assert OUTBOX_FILE == "outbox.db"


@pytest.mark.parametrize("path", [r"C:\x", "c:/x", "C:\\"])
def test_a_drive_with_its_root_is_fixed(path: str) -> None:
    assert is_on_a_drive(path)
    assert is_fixed(path)


@pytest.mark.parametrize("path", [r"\\server\share\x", "//server/share/x", r"\\?\C:\x", r"\\.\C:\x"])
def test_a_share_and_a_literal_path_are_fixed(path: str) -> None:
    assert not is_on_a_drive(path)
    assert is_fixed(path)


@pytest.mark.parametrize("path", ["", "x", r"\x", "/var/lib/x", "C:x", "C:", "1:\\x", "é:\\x", r".\x"])
def test_what_depends_on_the_working_directory_or_the_drive_is_not_fixed(path: str) -> None:
    assert not is_fixed(path)
