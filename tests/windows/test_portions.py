"""The driver of `make -C tests windows`: results from the output of a portion of the tests."""

from __future__ import annotations

from pathlib import Path

from tests.windows.__main__ import Portion, portion_of


def portion(folder: Path, said: str, code: int) -> Portion:
    log = folder / "portion.log"
    log.write_text(said, encoding="utf-8")
    return portion_of("tests/core", 1.0, code, log)


def test_passed_portion_is_a_success(tmp_path: Path) -> None:
    found = portion(tmp_path, "...\n3 passed, 1 skipped in 1.00s\n", 0)
    assert found.good
    assert found.counts == {"passed": 3, "skipped": 1}


def test_failed_or_unfinished_portion_is_not_a_success(tmp_path: Path) -> None:
    failed = "FAILED tests/core/test_a.py::test_b - assert 0\n1 failed, 2 passed in 1.00s\n"
    for said, code in ((failed, 1), ("...\n", 0), ("...\n", -9), ("3 passed in 1.00s\n", 3)):
        found = portion(tmp_path, said, code)
        assert not found.good
        assert not found.unjudged


def test_end_of_wines_server_is_no_result_and_no_success(tmp_path: Path) -> None:
    said = "..\nwineserver64: server/sock.c:1331: sock_poll_event: Assertion `sock->obj.ops == &sock_ops' failed.\n"
    found = portion(tmp_path, said, -9)
    assert found.unjudged
    assert not found.good
