"""Status reports of a service, quoting of its command line, and errors of the service manager."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.windows.service_manager import (
    ACCEPTED,
    BAD_CONFIGURATION,
    CALL_NOT_IMPLEMENTED,
    CONTROL_INTERROGATE,
    CONTROL_PRESHUTDOWN,
    CONTROL_SHUTDOWN,
    CONTROL_STOP,
    SERVICE_SPECIFIC_ERROR,
    ServiceState,
    StatusReporter,
    command_line,
    control,
    sentence_of,
    serve,
)

Reported = tuple[int, int, int, int, int, int, int]


class Ends:
    """A program that starts, unless disabled, and ends with an exit code: at once, or when it's stopped."""

    def __init__(self, code: int, *, starts: bool = True, at_once: bool = True) -> None:
        self.code, self.starts = code, starts
        self.stopped = threading.Event()
        if at_once:
            self.stopped.set()

    def run(self, started: Callable[[], None]) -> int:
        if self.starts:
            started()
        self.stopped.wait(30)
        return self.code

    def stop(self) -> None:
        self.stopped.set()


def states(reported: list[Reported]) -> list[int]:
    return [status[1] for status in reported]


def test_successful_program_is_reported_starting_running_and_stopped() -> None:
    reported: list[Reported] = []
    assert serve(Ends(0), StatusReporter(reported.append)) == 0
    assert states(reported) == [ServiceState.START_PENDING, ServiceState.RUNNING, ServiceState.STOPPED]
    assert [status[2] for status in reported] == [0, ACCEPTED, 0], "controls are taken while it runs alone"
    assert reported[-1][3:5] == (0, 0)
    assert reported[0][6] > 0, "a start has a hint, or the manager gives up after two seconds"


def test_running_is_not_reported_before_the_program_has_started() -> None:
    reported: list[Reported] = []
    assert serve(Ends(2, starts=False), StatusReporter(reported.append)) == 2
    assert ServiceState.RUNNING not in states(reported)


def test_invalid_settings_are_reported_as_a_stop_with_their_own_code() -> None:
    reported: list[Reported] = []
    serve(Ends(BAD_CONFIGURATION, starts=False), StatusReporter(reported.append))
    assert reported[-1][1] == ServiceState.STOPPED
    assert reported[-1][3:5] == (SERVICE_SPECIFIC_ERROR, BAD_CONFIGURATION)


def test_other_failures_are_not_reported_as_a_stop_so_that_recovery_actions_run() -> None:
    reported: list[Reported] = []
    assert serve(Ends(1, starts=False), StatusReporter(reported.append)) == 1
    assert ServiceState.STOPPED not in states(reported)


def test_failure_after_a_stop_request_is_reported_as_a_stop() -> None:
    reported: list[Reported] = []
    reporter = StatusReporter(reported.append)
    program = Ends(1, at_once=False)
    ended = threading.Thread(target=serve, args=(program, reporter))
    ended.start()
    assert control(CONTROL_STOP, program, reporter) == 0
    ended.join(30)
    assert states(reported)[-2:] == [ServiceState.STOP_PENDING, ServiceState.STOPPED]
    assert reported[-1][3:5] == (SERVICE_SPECIFIC_ERROR, 1)


@pytest.mark.parametrize("code", [CONTROL_STOP, CONTROL_SHUTDOWN, CONTROL_PRESHUTDOWN])
def test_stop_and_shutdown_are_reported_at_once_and_end_the_program(code: int) -> None:
    reported: list[Reported] = []
    reporter = StatusReporter(reported.append)
    reporter.start_pending()
    reporter.running()
    program = Ends(0, at_once=False)
    assert control(code, program, reporter) == 0
    assert states(reported)[-1] == ServiceState.STOP_PENDING, (
        "before the program has ended: the manager waits for the answer"
    )
    assert program.stopped.wait(30)


def test_second_stop_is_not_reported_again() -> None:
    reported: list[Reported] = []
    reporter, program = StatusReporter(reported.append), Ends(0)
    for _ in range(2):
        control(CONTROL_STOP, program, reporter)
    assert states(reported) == [ServiceState.STOP_PENDING]


def test_interrogation_changes_nothing_and_an_unknown_control_is_rejected() -> None:
    reported: list[Reported] = []
    reporter, program = StatusReporter(reported.append), Ends(0, at_once=False)
    assert control(CONTROL_INTERROGATE, program, reporter) == 0
    assert control(200, program, reporter) == CALL_NOT_IMPLEMENTED
    assert not reported
    assert not program.stopped.is_set()


@given(st.lists(st.sampled_from(["start_pending", "running", "stop_pending", "stopped"]), max_size=8))
def test_states_never_go_backwards(calls: list[str]) -> None:
    order = [ServiceState.START_PENDING, ServiceState.RUNNING, ServiceState.STOP_PENDING, ServiceState.STOPPED]
    reported: list[Reported] = []
    reporter = StatusReporter(reported.append)
    for call in calls:
        if call == "stopped":
            reporter.stopped(0)
        else:
            getattr(reporter, call)()
    places = [order.index(ServiceState(status[1])) for status in reported]
    assert all(before < after for before, after in pairwise(places))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([r"C:\azse\azse.exe", "service", "run"], r'"C:\azse\azse.exe" service run'),
        ([r"C:\Program Files\a.exe", "--folder=C:\\my data"], r'"C:\Program Files\a.exe" "--folder=C:\my data"'),
        (["a.exe", '--x="y"'], '"a.exe" --x=\\"y\\"'),
        (["a.exe", "--folder=C:\\my data\\"], '"a.exe" "--folder=C:\\my data\\\\"'),
        (["a.exe"], '"a.exe"'),
    ],
)
def test_words_are_quoted_for_exactly_this_program_and_these_arguments(words: list[str], line: str) -> None:
    assert command_line(words) == line


@pytest.mark.windows
@pytest.mark.parametrize(
    "word", ["plain", "two words", 'a"b', 'two "quoted" words', "end\\", "end \\", "ü", "--a=b c\\"]
)
def test_windows_splits_the_line_into_the_same_words(word: str) -> None:
    import ctypes

    shell, count = ctypes.WinDLL("shell32"), ctypes.c_int()  # type: ignore[attr-defined,unused-ignore]  # only on Windows
    shell.CommandLineToArgvW.restype = ctypes.POINTER(ctypes.c_wchar_p)
    words = [r"C:\Program Files\a.exe", word, "last"]
    found = shell.CommandLineToArgvW(ctypes.c_wchar_p(command_line(words)), ctypes.byref(count))
    assert [found[index] for index in range(count.value)] == words


@pytest.mark.parametrize("words", [["a.exe", "--x=%PATH%"], ["100%.exe"], ['a".exe']])
def test_words_that_the_service_manager_would_change_are_rejected(words: list[str]) -> None:
    with pytest.raises(ValueError, match="cannot contain"):
        command_line(words)


def test_error_has_the_fix_and_an_unknown_error_its_number() -> None:
    assert "administrator" in sentence_of(5, "azse", "Access is denied.")
    assert "service install" in sentence_of(1060, "azse", "")
    assert sentence_of(4711, "azse", "Something else.") == "azse: Something else (Windows error 4711)"
