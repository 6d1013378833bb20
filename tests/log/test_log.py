"""The agent's own log: lines can't be forged or torn, never block, and contain no secret."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
import time
import warnings
import weakref
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.choices import LogFormat
from exporter.files import RotatingFile
from exporter.log.log import CLOSE_SECONDS, MAX_LINE, REMIND_SECONDS, Log, captured_libraries
from exporter.log.writer import MAX_WAITING_LINES
from exporter.secrets import Secret
from tests.support.factories import Clock
from tests.support.log_reading import PATIENCE, logged, wait_until_gone

START = 1767225600.0  # 2026-01-01T00:00:00Z


def lines(log: Log, stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in logged(log, stream).splitlines()]


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def clock() -> Clock:
    return Clock(START)


@pytest.fixture
def log(stream: io.StringIO, clock: Clock) -> Log:
    return Log(stream, format="json", clock=clock, monotonic=clock, level="debug")


def test_logfmt_line_has_time_level_event_and_fields(stream: io.StringIO, clock: Clock) -> None:
    """The format for grep: simple words are bare, everything else is quoted."""
    clock.now += 0.0625
    log = Log(stream, clock=clock)
    log.warn("document.changed", incarnation=3, a=None, b=True, c=1.5, d="x y", e='"', f="")
    assert logged(log, stream) == (
        "ts=2026-01-01T00:00:00.062Z level=warn event=document.changed incarnation=3 a=null b=true c=1.5 "
        'd="x y" e="\\"" f=""\n'
    )


def test_json_line_keeps_types(log: Log, stream: io.StringIO) -> None:
    """Numbers, booleans, and null keep their type; everything else is text."""
    log.error(
        "a.b",
        n=1,
        x=None,
        t=True,
        f=0.5,
        nan=float("nan"),
        big=10**30,
        path=PurePosixPath("/a"),
        error=ValueError("no"),
    )
    assert lines(log, stream) == [
        {
            "ts": "2026-01-01T00:00:00.000Z",
            "level": "error",
            "event": "a.b",
            "n": 1,
            "x": None,
            "t": True,
            "f": 0.5,
            "nan": "nan",
            "big": "a very long integer",
            "path": "/a",
            "error": "ValueError: no",
        }
    ]


def test_levels_below_the_chosen_one_are_not_written(stream: io.StringIO) -> None:
    log = Log(stream, level="warn")
    log.debug("a")
    log.info("b")
    log.warn("c")
    log.error("d")
    assert [line.split(" event=")[1] for line in logged(log, stream).splitlines()] == ["c", "d"]


@given(st.text(max_size=200), st.sampled_from(["logfmt", "json"]))
def test_outside_text_never_makes_a_second_line(outside: str, form: LogFormat) -> None:
    """For any Description, one call is one printable line, and JSON gives the text back."""
    stream = io.StringIO()
    log = Log(stream, format=form)
    log.info("event.seen", description=outside, after=1)
    written = logged(log, stream)
    assert written.endswith("\n")
    assert written[:-1].isprintable()
    assert len(written.splitlines()) == 1
    if form == "json":
        assert json.loads(written)["after"] == 1
    else:
        assert written.endswith(" after=1\n")


def test_json_gives_ordinary_text_back(log: Log, stream: io.StringIO) -> None:
    """Escaping loses nothing."""
    ordinary = 'a "b" \\ \n\t\x00\x7f\x85\u2028\u202e é \U0001f600'
    log.info("a", text=ordinary)
    assert lines(log, stream)[0]["text"] == ordinary


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_long_values_and_lines_are_capped(stream: io.StringIO, form: LogFormat) -> None:
    """A huge value is cut; a line that is too long drops fields and has a mark; the line stays complete."""
    log = Log(stream, format=form)
    log.info("a", **{f"f{n}": "é\n" * 10**6 for n in range(9)}, last=7)
    written = logged(log, stream)
    assert len(written.encode()) <= MAX_LINE
    assert "truncated" in written
    assert "last" in written
    if form == "json":
        assert json.loads(written)["truncated"] is True


def test_any_object_can_be_logged(log: Log, stream: io.StringIO) -> None:
    """An unprintable object, a cycle, and field names from outside do no harm."""

    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no")

    circle: list[object] = []
    circle.append(circle)
    log.info(
        "a", odd=Unprintable(), circle=circle, nested={"s": Secret("hunter2"), "n": [1, None]}, **{"ts": 1, 'x="y': 2}
    )
    (line,) = lines(log, stream)
    assert line["odd"] == "<unprintable Unprintable>"
    assert line["circle"] == "<unprintable list>"
    assert line["nested"] == '{"s": "<secret>", "n": [1, null]}'
    assert (line["ts_"], line["x__y"]) == (1, 2)


def test_repeated_secret_up_to_the_cap_leaves_no_part(stream: io.StringIO) -> None:
    """A text is cut before it's redacted: a secret at the cut is hidden completely."""
    secret = "".join(f"hunter{number:03}" for number in range(60))
    log = Log(stream, hide=[Secret(secret)])
    log.info("a", text=secret * 20, late=f"{secret * 8}zz{secret}")
    log.flush()
    assert "hunter" not in stream.getvalue()


def test_secrets_are_hidden_in_all_values(stream: io.StringIO) -> None:
    """A Secret, a known secret inside other text, even if cut by the cap, and the usual formats are redacted."""
    log = Log(stream, hide=[Secret("t0psecret"), Secret("a")])
    log.info(
        "a", it=Secret("hunter2"), text="x t0psecret y", cut="z" * 995 + "t0psecret", error=ValueError("sig=hunter2")
    )
    written = logged(log, stream)
    assert "hunter2" not in written
    assert "t0ps" not in written
    assert "level=info event=a" in written


@pytest.mark.parametrize("step", [-86_400.0, 86_400.0])
def test_duration_of_a_failure_uses_the_monotonic_clock(stream: io.StringIO, clock: Clock, step: float) -> None:
    """Setting the wall clock doesn't change a duration, and neither suppresses nor repeats a failure."""
    monotonic = Clock(START)
    log = Log(stream, format="json", clock=clock, monotonic=monotonic)
    for _ in range(3):
        log.failing("poll", "poll.failed", reason="timeout")
        clock.now += step
        monotonic.now += 1
    log.recovered("poll", "poll.recovered")
    written = lines(log, stream)
    assert [line["event"] for line in written] == ["poll.failed", "poll.recovered"]
    assert written[-1]["lasted_seconds"] == 3.0


def test_failure_is_logged_once_then_counted_then_ended(log: Log, stream: io.StringIO, clock: Clock) -> None:
    """A failure each second gives one line, one more per hour, and one when it ends."""
    for _ in range(int(REMIND_SECONDS) + 1):
        log.failing("poll", "poll.failed", reason="timeout")
        clock.now += 1
    log.recovered("poll", "poll.recovered", source="x")
    log.recovered("poll", "poll.recovered")
    written = [{k: v for k, v in line.items() if k != "ts"} for line in lines(log, stream)]
    assert written == [
        {"level": "warn", "event": "poll.failed", "reason": "timeout"},
        {"level": "warn", "event": "poll.failed", "reason": "timeout", "repeated": 3599},
        {"level": "info", "event": "poll.recovered", "source": "x", "failures": 3601, "lasted_seconds": 3601.0},
    ]


def test_new_reason_is_logged_and_flapping_is_not(log: Log, stream: io.StringIO) -> None:
    """Each reason is logged once, however often they alternate; many different reasons can't flood the log."""
    for _ in range(100):
        log.failing("a", "a.failed", level="error", reason="timeout")
        log.failing("a", "a.failed", level="error", reason="refused")
    assert [line["reason"] for line in lines(log, stream)] == ["timeout", "refused"]
    for number in range(1000):
        log.failing("b", "b.failed", reason=f"number {number}")
        log.failing(f"key {number}", "c.failed")
    assert len([line for line in lines(log, stream) if line["event"] == "b.failed"]) < 20


def test_flapping_failure_is_logged_once(log: Log, stream: io.StringIO, clock: Clock) -> None:
    """With `quiet`, a flapping failure is one failure, ended when it's absent for `quiet`; a long one ends at once."""
    for _ in range(28):
        log.failing("a", "a.failed", reason="limit")
        clock.now += 5
        log.recovered("a", "a.back", quiet=60)
        clock.now += 20
        log.recovered("a", "a.back", quiet=60)
    assert [line["event"] for line in lines(log, stream)] == ["a.failed"]
    clock.now += 41
    log.recovered("a", "a.back", quiet=60)
    log.recovered("a", "a.back", quiet=60)
    (_, back) = lines(log, stream)
    assert (back["event"], back["failures"], back["lasted_seconds"]) == ("a.back", 28, 27 * 25 + 5)
    log.failing("a", "a.failed", reason="limit")
    clock.now += 60
    log.recovered("a", "a.back", quiet=60)
    log.failing("a", "a.failed", reason="limit")
    assert [line["event"] for line in lines(log, stream)][2:] == ["a.failed", "a.back", "a.failed"]
    log.recovered("a", "a.back", quiet=60)
    clock.now += 3600
    log.failing("a", "a.failed", reason="limit")
    assert [line["event"] for line in lines(log, stream)][5:] == ["a.back", "a.failed"]
    log.recovered("a", "a.back", quiet=60)
    clock.now -= 7200
    log.recovered("a", "a.back", quiet=60)
    assert [line["event"] for line in lines(log, stream)][7:] == ["a.back"]


def test_closed_stream_is_no_error() -> None:
    """Logging to a closed stream, to a closed pipe, or to no stream continues silently."""
    read, write = os.pipe()
    os.close(read)
    gone = os.fdopen(write, "w")
    closed = io.StringIO()
    closed.close()
    for stream in (gone, closed, None):
        log = Log(stream)
        log.info("a")
        log.error("b", x=1)
        assert log.flush(PATIENCE)
    gone.close()
    log = Log(gone)
    log.info("c")
    assert log.flush(PATIENCE)


@pytest.mark.linux("needs /dev/full")
def test_full_disk_is_no_error() -> None:
    """ENOSPC is ignored, and the lost lines are counted once there is space."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader, open("/dev/full", "w") as full:  # real ENOSPC, from the kernel
        log = Log(full)
        log.info("a")
        log.info("b")
        assert log.flush(PATIENCE)
        os.dup2(write, full.fileno())
        os.close(write)
        log.info("c")
        output = [reader.readline() for _ in range(2)]
        log.close(PATIENCE)
    assert b"event=log.lines_lost lines=2" in output[0]
    assert b"event=c" in output[1]


def test_blocked_reader_delays_nothing_and_gets_the_number_of_lost_lines() -> None:
    """No call waits for a pipe that isn't read. Once it's read, all lines that weren't lost are there in order, and the
    number of lost lines is in their place."""
    read, write = os.pipe()
    count = 10 * MAX_WAITING_LINES
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "w") as writer:
        log = Log(writer, format="json")
        begin = time.monotonic()
        for number in range(count):
            log.info("stuck", number=number)
        assert time.monotonic() - begin < PATIENCE
        assert not log.flush(0.01)
        number = missing = 0
        while number < count:
            line = json.loads(reader.readline())
            if line["event"] == "stuck":
                assert line["number"] == number
                number += 1
            else:
                assert (line["level"], line["event"]) == ("warn", "log.lines_lost")
                missing += line["lines"]
                number += line["lines"]
        assert number == count
        assert MAX_WAITING_LINES < missing < count - MAX_WAITING_LINES
        log.info("written")
        assert json.loads(reader.readline())["event"] == "written"
        log.close(PATIENCE)


@pytest.mark.linux("pipes that do not block, as another process may leave a shared one")
def test_non_blocking_pipe_loses_and_tears_nothing() -> None:
    """Another process can make the shared pipe non-blocking: only the thread waits for EAGAIN."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "w") as writer:
        log = Log(writer, format="json")
        for number in range(900):
            log.info("a", number=number, text="x" * 300)
        assert [json.loads(reader.readline())["number"] for _ in range(900)] == list(range(900))
        log.close(PATIENCE)


def test_last_lines_of_a_process_are_written(tmp_path: Path) -> None:
    """`close` waits for the queue, and a later line is written as well."""
    path = tmp_path / "log"
    with path.open("w") as stream:
        log = Log(stream, format="json")
        for number in range(500):
            log.info("a", number=number)
        log.close(PATIENCE)
        assert len(path.read_bytes().splitlines()) == 500
        log.info("b")
        log.close(PATIENCE)
        assert json.loads(path.read_bytes().splitlines()[-1])["event"] == "b"


def test_deleted_log_leaves_no_thread_and_loses_no_line() -> None:
    """After creating many logs, one after another, the process has as many threads as before."""
    written: list[str] = []

    class Kept(io.StringIO):
        def flush(self) -> None:
            written[:] = self.getvalue().splitlines()

    stream = Kept()
    log = Log(stream)
    for _ in range(100):
        log.info("a")
    held = weakref.ref(stream)
    del log, stream
    wait_until_gone(held)
    assert len(written) == 100


def test_closing_an_unread_log_is_limited_in_time() -> None:
    """The end of the agent waits for at most half a second."""
    read, write = os.pipe()
    with os.fdopen(write, "w") as writer:
        log = Log(writer)
        for _ in range(5000):
            log.info("a", text="x" * 100)
        begin = time.monotonic()
        log.close()
        assert CLOSE_SECONDS * 0.9 <= time.monotonic() - begin < PATIENCE
        os.close(read)  # the thread's write fails, and so do all others
        assert log.flush(PATIENCE)


def test_text_outside_the_code_page_is_written_as_utf_8(tmp_path: Path) -> None:
    """Whatever the stream's encoding, and without Windows line ends."""
    path = tmp_path / "log"
    with path.open("w", encoding="cp1252") as stream:
        log = Log(stream, format="json")
        log.info("a", text="仮想 ≥ é")
        log.close(PATIENCE)
    assert path.read_bytes().endswith('"text": "仮想 ≥ é"}\n'.encode())


def test_rotating_file_can_be_the_stream(tmp_path: Path) -> None:
    """A service writes to it: the same lines, and the number of lines that the file rejected."""
    folder = tmp_path / "logs"
    folder.touch()
    file = RotatingFile(folder / "agent.log")
    log = Log(file, format="json")
    log.info("a")
    assert log.flush(PATIENCE)
    folder.unlink()
    log.info("b")
    log.close(PATIENCE)
    file.close()
    found = [json.loads(line) for line in (folder / "agent.log").read_bytes().splitlines()]
    assert [(line["event"], line.get("lines")) for line in found] == [("log.lines_lost", 1), ("b", None)]


def test_lines_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    """Each line is complete, even with concurrent writers."""
    path = tmp_path / "log"
    with path.open("w") as stream:
        log = Log(stream, format="json")

        def write_lines() -> None:
            for number in range(200):
                log.info("a", text="x" * 900, number=number)

        threads = [threading.Thread(target=write_lines) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.close(PATIENCE)
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 800


def test_messages_of_libraries_go_to_the_log(log: Log, stream: io.StringIO, capfd: pytest.CaptureFixture[str]) -> None:
    """A library's warning is one line without credentials; messages below WARNING (azure: ERROR) aren't logged."""
    with captured_libraries(log):
        logging.getLogger("some.library").info("no")
        logging.getLogger("azure.eventhub._pyamqp").warning("no")
        logging.getLogger("some.library").warning("to %s\nlevel=error", "http://u:hunter2@h")
        logging.getLogger("azure.eventhub").error("SharedAccessKey=%s;", "hunter2")
        logging.getLogger("some.library").error("bad %d", "format")
        try:
            raise ValueError("Authorization: Bearer hunter2")
        except ValueError:
            logging.getLogger("other").exception("failed")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
    written = [(line["level"], line["logger"], line["message"]) for line in lines(log, stream)]
    assert written[:4] == [
        ("warn", "some.library", "to http://<secret>@h\nlevel=error"),
        ("error", "azure.eventhub", "SharedAccessKey=<secret>"),
        ("error", "some.library", "bad %d"),
        ("error", "other", "failed"),
    ]
    assert written[4][:2] == ("warn", "py.warnings")
    assert lines(log, stream)[3]["error"] == "ValueError: Authorization: Bearer <secret>"
    assert capfd.readouterr() == ("", "")


def test_repeated_message_of_a_library_is_logged_once_an_hour(log: Log, stream: io.StringIO, clock: Clock) -> None:
    """The same message is dropped for an hour and then logged with the number of repeats."""
    with captured_libraries(log):
        for _ in range(100):
            logging.getLogger("some.library").warning("again")
        clock.now += REMIND_SECONDS
        logging.getLogger("some.library").warning("again")
    assert [line.get("repeated") for line in lines(log, stream)] == [None, 99]


def test_configuration_of_logging_is_restored_afterwards(log: Log) -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.getLogger("azure").level)
    with captured_libraries(log):
        assert root.handlers != before[0]
    assert (root.handlers[:], root.level, logging.getLogger("azure").level) == before
