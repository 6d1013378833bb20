"""The command line: grouped help, shared formats of values, and errors for mistyped words."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from exporter.cli import COMMANDS, PROGRAM, main
from exporter.commands.tail.command import begin_argument
from exporter.config.command_line import duration_argument
from exporter.config.schema import SECTIONS, catalogue
from tests.support.configuration import errors, loaded
from tests.support.lines import too_wide

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "help"
PARTS: Final = ((), *((name,) for name in COMMANDS), *(("service", name) for name in ("install", "remove")))
WORDS: Final = {"DURATION", "FILE", "FOLDER", "ADDRESS", "SIZE", "URL", "NAME", "NAME,NAME", "N", "DATE", "MODE"}


def help_of(words: tuple[str, ...], columns: int = 100) -> str:
    """Return the output of `--help` on a terminal of this width."""
    done = subprocess.run(
        [sys.executable, "-m", "exporter", *words, "--help"],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "COLUMNS": str(columns)},
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the standard error of a bad command line; nothing else may be printed."""
    try:
        code = main(words)
    except SystemExit as error:
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), (words, out)
    assert "Traceback" not in err
    return str(err)


# -- help


@pytest.mark.parametrize("words", PARTS, ids=lambda words: "-".join(words) or "program")
def test_help_is_as_published(words: tuple[str, ...]) -> None:
    """The options of the program and of each command, on every Python; settings have their own page."""
    text = help_of(words)
    own = re.split(rf"(?m)^\[(?:{'|'.join(SECTIONS)})\]:$", text)[0].rstrip() + "\n"
    path = GOLDEN / f"{'-'.join(words) or 'program'}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(own, encoding="utf-8")
    assert own == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("columns", [50, 250])
def test_help_fits_the_terminal_and_is_never_wider_than_100_columns(columns: int) -> None:
    """Text is wrapped; unbreakable text, for example the name of a variable, has its own line."""
    for words in PARTS:
        text = help_of(words, columns)
        usage = text.splitlines()[0]
        assert re.fullmatch(rf"usage: {PROGRAM}( \w+)* (\[OPTIONS\]( FILE\.\.\.)?|(COMMAND|ACTION) \[OPTIONS\])", usage)
        long = [line for line in too_wide(text.partition("\n")[2], min(columns, 100)) if " " in line.strip()]
        assert [line for line in long if not line.lstrip().startswith("--")] == []
        assert too_wide(text) == []


def test_help_uses_the_same_placeholders_everywhere() -> None:
    """DURATION, FILE, ADDRESS, and so on, or the list of words: no placeholder is derived from a setting's name."""
    for setting in catalogue():
        assert setting.secret or setting.kind.word in WORDS or "|" in setting.kind.word, setting.name


# -- mistyped words


@pytest.mark.parametrize(
    ("words", "sentence", "listed"),
    [
        (("chekc",), 'unknown command "chekc"; did you mean check?', "replay"),
        (("service", "instal"), 'unknown action "instal"; did you mean install?', "remove"),
        (("simulate", "--scenaro", "demo"), 'unknown flag "--scenaro"; did you mean --scenario?', "simulate --help"),
        (("run", "--source.pol-interval=1s"), "did you mean --source.poll-interval?", "run --help"),
        (("simulate", "--scenario", "user-rebot"), "did you mean user-reboot?", "spot-preemption"),
        (("demo", "--scenario", "user-rebot"), "did you mean user-reboot?", "spot-preemption"),
        (("replay", "user-rebot"), 'unknown scenario "user-rebot"; did you mean user-reboot?', "spot-preemption"),
        (("simulate", "--fault", "all/slwo:2"), 'unknown fault "slwo"; did you mean slow?', "half-close"),
        (("simulate", "--fault", "evnts/500"), 'unknown place "evnts"; did you mean events?', "instance"),
        (("simulate", "--vm", "wbe_1"), 'unknown VM "wbe_1"; did you mean web_1?', "web_2"),
        (("demo", "--vm", "wbe_1"), 'unknown VM "wbe_1"; did you mean web_1?', "web_2"),
        (("tail", "--kind", "schedule"), 'unknown word "schedule"; did you mean scheduled?', "agent.stopped"),
        (("replay", "x", "--assume-files", "absnt"), "did you mean absent?", "look"),
        *(((name, "--format", "jsn"), "did you mean json?", "timeline") for name in ("check", "simulate", "tail")),
    ],
)
def test_error_of_a_mistyped_word_has_the_nearest_word_and_the_list(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str, listed: str
) -> None:
    """Exit code 2; the error and the list are on standard error, the list within 100 columns."""
    said = refused(capsys, *words)
    assert sentence in said
    assert listed in said.partition(sentence)[2]
    assert too_wide(said.partition(sentence)[2]) == []


def test_error_of_a_word_without_a_near_match_has_only_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong suggestion is worse than none."""
    said = refused(capsys, "xyzzy")
    assert "did you mean" not in said
    assert all(name in said for name in COMMANDS)


def test_value_of_an_unknown_flag_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """It can be a password for another program."""
    assert "hunter2" not in refused(capsys, "run", "--pasword=hunter2")
    assert "hunter2" not in refused(capsys, "run", "--pasword", "hunter2")


def test_vm_name_that_differs_only_in_digits_is_not_a_mistyped_name(capsys: pytest.CaptureFixture[str]) -> None:
    """It's replayed as a neighbour that no event names."""
    assert main(["replay", "user-reboot", "--vm", "vm-7"]) == 0
    assert "(no event names vm-7: set --vm to one of vm-1)" in capsys.readouterr().out


# -- formats of values


@pytest.mark.parametrize(("text", "seconds"), [("5s", 5), ("500ms", 0.5), ("2m", 120), ("1m30s", 90)])
def test_duration_is_written_with_its_unit(text: str, seconds: float) -> None:
    """The format is that of Prometheus."""
    assert duration_argument(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "5", "0.5", "1.5s", "nan", "inf", "1e9", "five", "5 s", "99999999999y", "٣"]
)
def test_invalid_duration_is_rejected_with_an_example(text: str) -> None:
    """Infinite and zero durations are invalid too."""
    with pytest.raises(argparse.ArgumentTypeError, match='for example "500ms" or "2m"'):
        duration_argument(text)


def test_time_is_an_instant_or_an_age() -> None:
    """`1h` means one hour ago."""
    before = datetime.now(UTC) - timedelta(hours=1)
    ago = begin_argument("1h")
    assert isinstance(ago, datetime)
    assert before <= ago <= datetime.now(UTC) - timedelta(hours=1)
    assert begin_argument("2026-03-02T09:00:00Z") == datetime(2026, 3, 2, 9, tzinfo=UTC)
    for text in ("yesterday", "", "1", "9999y", "999999999999y", "-1h"):
        with pytest.raises(argparse.ArgumentTypeError, match="or an age, for example 1h"):
            begin_argument(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("100MB", 10**8), ("100MiB", 100 << 20), ("2 GB", 2 * 10**9), ("2048KiB", 2 << 20), ("1TiB", 1 << 40),
     ("104857600", 104857600), ("104857600B", 104857600), ("1100kB", 1100000), ("1100KB", 1100000)],
)  # fmt: skip
def test_size_has_the_same_format_in_flag_variable_and_file(text: str, size: int) -> None:
    """MB is 10^6 bytes and MiB is 2^20 bytes everywhere; a number without a unit is bytes."""
    assert loaded(f"--outbox.max-bytes={text}").outbox.max_bytes == size
    assert loaded(environ={"SCHEDULED_EVENTS_OUTBOX_MAX_BYTES": text}).outbox.max_bytes == size
    assert loaded(toml=f'[recording]\nmax_bytes = "{text}"').recording.max_bytes == size
    assert loaded(toml=f"[recording]\nmax_bytes = {size}").recording.max_bytes == size


@pytest.mark.parametrize("text", ["100", "100mb", "100M", "1.5GB", "-1MB", "MB", "1e9", "2TiB", "100 000 000", "١MB"])
def test_invalid_size_is_rejected_with_examples(text: str) -> None:
    """Too small, too large, and ambiguous units."""
    (said,) = errors(f"--outbox.max-bytes={text}")
    assert 'a size from 1MiB to 1TiB, for example "100MB" (10^6 bytes each), "100MiB" (2^20)' in said


def test_default_of_a_size_is_shown_with_its_unit() -> None:
    """The shown value can be read back."""
    (setting,) = [setting for setting in catalogue() if setting.name == "outbox.max_bytes"]
    assert setting.kind.show(setting.default) == '"100MiB"'
    assert setting.kind.read("100MiB") == setting.default
    assert setting.kind.show(1048577) == "1048577"
