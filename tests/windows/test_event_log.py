"""Entries of the Event Log can be read as they were written."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.windows.event_log import MAX_TEXT, add_source, message, remove_source, report


def test_text_is_not_used_as_a_template() -> None:
    assert message("fe80::1%1 and %n, 100%") == "fe80::1% 1 and %n, 100%"


def test_lines_end_with_cr_lf() -> None:
    assert message("one\ntwo\r\nthree") == "one\r\ntwo\r\nthree"


def test_invalid_characters_are_escaped_and_long_text_is_cut() -> None:
    assert message("a\0b\ud800") == "ab\\ud800"
    assert len(message("x" * 100_000)) == MAX_TEXT + 3


@pytest.mark.windows
def test_source_can_be_registered_twice_used_and_removed_twice() -> None:
    name = "azse-test-source"
    try:
        for _ in range(2):
            add_source(name)
        report(name, 1, "a test of the agent's own tests")
    finally:
        for _ in range(2):
            remove_source(name)


@pytest.mark.windows
def test_source_of_another_program_is_not_changed() -> None:
    winreg: Any = pytest.importorskip("winreg")
    name = "azse-test-source-of-another"
    path = rf"SYSTEM\CurrentControlSet\Services\EventLog\Application\{name}"
    with winreg.CreateKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
        winreg.SetValueEx(key, "EventMessageFile", 0, winreg.REG_EXPAND_SZ, "other.dll")
    try:
        for touch in (add_source, remove_source):
            with pytest.raises(PermissionError, match="another program"):
                touch(name)
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
            assert winreg.QueryValueEx(key, "EventMessageFile")[0] == "other.dll"
    finally:
        winreg.DeleteKey(winreg.HKEY_LOCAL_MACHINE, path)


@pytest.mark.windows
def test_report_never_raises() -> None:
    report("azse-test-source-that-nobody-registered", 1, "a test of the agent's own tests")
