"""What the driver of `make -C tests windows` makes of what a portion of the suite said."""

from __future__ import annotations

from pathlib import Path

from tests.windows.__main__ import Portion, portion_of


def portion(folder: Path, said: str, code: int) -> Portion:
    log = folder / "portion.log"
    log.write_text(said, encoding="utf-8")
    return portion_of("tests/core", 1.0, code, log)


def test_all_that_passed_is_good(tmp_path: Path) -> None:
    found = portion(tmp_path, "...\n3 passed, 1 skipped in 1.00s\n", 0)
    assert found.good
    assert found.counts == {"passed": 3, "skipped": 1}


def test_what_failed_or_came_to_no_end_is_no_success(tmp_path: Path) -> None:
    failed = "FAILED tests/core/test_a.py::test_b - assert 0\n1 failed, 2 passed in 1.00s\n"
    for said, code in ((failed, 1), ("...\n", 0), ("...\n", -9), ("3 passed in 1.00s\n", 3)):
        found = portion(tmp_path, said, code)
        assert not found.good
        assert not found.unjudged


def test_a_death_of_wines_server_says_nothing_of_a_test_and_is_no_success(tmp_path: Path) -> None:
    said = "..\nwineserver64: server/sock.c:1331: sock_poll_event: Assertion `sock->obj.ops == &sock_ops' failed.\n"
    found = portion(tmp_path, said, -9)
    assert found.unjudged
    assert not found.good
