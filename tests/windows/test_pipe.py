"""A secret as a path that can be read once."""

from __future__ import annotations

import io
import ssl
import threading
from pathlib import Path

import pytest

from exporter.web.tls import TlsSettings, make_context
from exporter.windows.pipe import pipe_of
from tests.support.certificates import Authority


@pytest.mark.linux("Windows has them")
def test_elsewhere_there_are_no_such_pipes() -> None:
    with pytest.raises(OSError, match="those of Windows"), pipe_of(b"secret"):
        pass


@pytest.mark.windows
@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_the_first_reader_gets_all_of_it_and_no_other_anything(size: int) -> None:
    before = threading.active_count()
    with pipe_of(b"x" * size) as path:
        assert path.startswith("\\\\.\\pipe\\")
        with open(path, "rb") as file:
            assert file.read() == b"x" * size
            with pytest.raises(OSError, match="pipe"):
                Path(path).read_bytes()
    assert threading.active_count() == before
    with pytest.raises(FileNotFoundError):
        Path(path).read_bytes()


@pytest.mark.windows
def test_nobody_has_to_read_it() -> None:
    """A certificate that can't be used: the key is never asked for."""
    before = threading.active_count()
    with pipe_of(b"x"):
        pass
    with pytest.raises(ZeroDivisionError), pipe_of(b"x"):
        raise ZeroDivisionError
    assert threading.active_count() == before


@pytest.mark.windows
@pytest.mark.parametrize("size", [1, 100_000])
def test_a_reader_that_reads_nothing_keeps_nobody_waiting(size: int) -> None:
    """Another program of this user, which then may have what it opened: the web server goes on all the same."""
    before = threading.active_count()
    readers: list[io.FileIO] = []

    def hand_over() -> None:
        with pipe_of(b"x" * size, patience=0.1) as path:
            readers.append(io.FileIO(path))

    server = threading.Thread(target=hand_over, daemon=True)
    server.start()
    server.join(20)
    assert not server.is_alive()
    assert readers[0].readable()
    readers[0].close()
    for thread in threading.enumerate():
        if thread.name == "pipe":
            thread.join(20)
    assert threading.active_count() == before


def test_no_key_is_ever_written_to_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a certificate: with a folder for temporary files that is watched, on whichever system."""
    certificate, key = Authority().issue("localhost")
    for name in ("TMP", "TEMP", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    assert isinstance(make_context(TlsSettings(certificate, key)), ssl.SSLContext)
    with pytest.raises(ssl.SSLError):
        make_context(TlsSettings("no certificate", key))
    with pytest.raises(ssl.SSLError):
        make_context(TlsSettings(certificate, Authority().issue("localhost")[1]))
    assert list(tmp_path.iterdir()) == []
