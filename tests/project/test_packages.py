"""The deb and the rpm: their content, scripts, and requirements, and what is generated from the commands for them.

`make -C tests packages` installs them in fresh roots; these tests find what a change of settings, commands, or paths
would break.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import pytest

from deploy.packages import NAME, completion, manual
from deploy.packages.build import SCRIPTS_FOLDER, files, script
from deploy.packages.contents import COMMAND, SCRIPTS, SETTINGS, Entry, Format, entries, file_name, package_version
from deploy.packages.needs import Needs, NeedsError, measure
from deploy.packages.program import Command, commands
from exporter import __version__
from exporter.cli import COMMANDS
from exporter.config.load import load
from exporter.config.places import hold_place, ready_place
from exporter.config.schema import SECTIONS, catalogue, settings_of
from tests.support.peers import need

pytestmark = pytest.mark.linux("is about packages for Linux")

ROOT: Final = Path(__file__).parents[2]
UNIT: Final = ROOT / "deploy" / "systemd" / f"{NAME}.service"
CONFIG: Final = ROOT / "deploy" / "systemd" / "config.toml"
FORMATS: Final[tuple[Format, ...]] = ("deb", "rpm")
MAINTAINER_SCRIPTS: Final = [(form, name) for form in FORMATS for name in SCRIPTS[form].values()]


# -- content


def made(form: Format, folder: Path) -> list[Entry]:
    """Return the entries of a package, with what `build` makes for it in `folder`."""
    for name, content in files(form, package_version(__version__), datetime(2026, 1, 2, tzinfo=UTC)).items():
        (folder / name).write_bytes(content)
    (folder / "program").mkdir()
    return list(entries(form, folder / "program", folder))


@pytest.mark.parametrize("form", FORMATS)
def test_the_unit_starts_what_the_package_installs(form: Format, tmp_path: Path) -> None:
    """Command, settings, and directories of the unit are those of the package, and every source exists."""
    held = {entry.target: entry for entry in made(form, tmp_path)}
    unit = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE))
    assert unit["ExecStart"] == f"{COMMAND} run"
    assert held[COMMAND].source == f"/opt/{NAME}/{NAME}"
    recorded = re.findall(
        r"^Environment=SCHEDULED_EVENTS_CONFIG_FILE=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert recorded == [f"{SETTINGS}/config.toml"]
    assert held[recorded[0]].kind == "config|noreplace"
    assert held[SETTINGS].kind == "dir"
    assert f"/etc/{unit['ConfigurationDirectory']}" == SETTINGS == os.path.dirname(hold_place("linux"))
    assert unit["EnvironmentFile"] == f"-{SETTINGS}/environment"
    # DynamicUser= creates the state directory; a package that owned it would conflict.
    state = f"/var/lib/{unit['StateDirectory']}"
    assert [target for target in held if target.startswith("/var")] == []
    assert all(place in script("deb", "postrm", "1") for place in (state, f"/var/lib/private/{unit['StateDirectory']}"))
    assert [
        entry for entry in held.values() if entry.kind not in ("symlink", "dir") and not Path(entry.source).exists()
    ] == []


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.1.0", "0.1.0"),
        ("1.0rc1", "1.0~rc1"),
        ("1.0.dev3", "1.0~dev3"),
        ("1.0a2.dev3", "1.0~a2~dev3"),
        ("1.0.post1", "1.0+post1"),
    ],
)
def test_a_version_is_ordered_as_python_orders_it(version: str, expected: str) -> None:
    """A pre-release is older than its release for dpkg and rpm too: it has a tilde."""
    assert package_version(version) == expected


def test_the_files_are_named_as_their_tools_name_them() -> None:
    """deb and rpm name architectures differently."""
    assert file_name("deb", "0.1.0", "amd64") == f"{NAME}_0.1.0_amd64.deb"
    assert file_name("rpm", "0.1.0", "arm64") == f"{NAME}-0.1.0-1.aarch64.rpm"


def test_packages_are_reproducible(tmp_path: Path) -> None:
    """No generated file of a package depends on the time or place of the build."""
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    made("deb", tmp_path / "one")
    made("deb", tmp_path / "other")
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.is_dir() or path.read_bytes() == (tmp_path / "other" / path.name).read_bytes(), path.name
    assert gzip.decompress((tmp_path / "one" / "changelog.gz").read_bytes()).startswith(
        f"{NAME} ({__version__})".encode()
    )


# -- the configuration


def test_the_configuration_names_every_section() -> None:
    """Each section has its head in the shipped file, commented if all its settings are: a second head is an error."""
    heads = re.findall(r"^(?:# )?\[(\w+)\]", CONFIG.read_text(encoding="utf-8"), re.MULTILINE)
    assert heads == list(SECTIONS)


def test_commented_settings_are_valid(tmp_path: Path) -> None:
    """With every setting uncommented the file is valid, and those documented as defaults are the defaults."""
    text = CONFIG.read_text(encoding="utf-8")
    uncommented, count = re.subn(r"^# ([a-z_]+ = |\[+[a-z])", r"\1", text, flags=re.MULTILINE)
    assert count > 10
    (tmp_path / "config.toml").write_text(uncommented, encoding="utf-8")
    flags = argparse.Namespace(**{"config.file": str(tmp_path / "config.toml")})
    settings = load(flags, {})
    assert settings.warnings == ()
    assert settings.approval.mode == "dry-run"
    assert settings.approval.hold_file == hold_place("linux")
    for section, key in (
        ("source", "poll_interval"),
        ("outbox", "max_bytes"),
        ("web", "listen_address"),
        ("log", "format"),
    ):
        assert getattr(getattr(settings, section), key) == settings_of(section)[key].default


# -- the scripts


@pytest.mark.peer("shellcheck")
@pytest.mark.parametrize(("form", "name"), MAINTAINER_SCRIPTS)
def test_shellcheck_accepts_each_script(form: Format, name: str) -> None:
    """Each script as it is packed, with the common part before it."""
    command = [need("shellcheck"), "--shell=sh", "-"]
    done = subprocess.run(command, input=script(form, name, "1.0"), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_script_is_packed() -> None:
    """The folder has the scripts that the formats call, and no other."""
    named = {f"{form}-{name}.sh" for form, name in MAINTAINER_SCRIPTS} | {"common.sh"}
    assert {path.name for path in SCRIPTS_FOLDER.iterdir()} == named
    assert all("@VERSION@" not in script(form, name, "1.0") for form, name in MAINTAINER_SCRIPTS)


def run_script(text: str, *arguments: str, **environ: str) -> tuple[int, str]:
    """Run a script; return its exit code and output."""
    done = subprocess.run(
        ["/bin/sh", "-c", text, "script", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": os.environ["PATH"], **environ},
    )
    return done.returncode, done.stdout


def test_a_downgrade_is_rejected_before_anything_changes() -> None:
    """preinst compares as dpkg does: a pre-release is older, and the installed version may be installed again."""
    if shutil.which("dpkg") is None:
        pytest.skip("dpkg is not installed here")
    text = script("deb", "preinst", "1.10.0")
    for older in ("1.9.0", "1.10.0~rc1", "1.10.0"):
        assert run_script(text, "upgrade", older, "1.10.0") == (0, "")
    for newer in ("1.10.1", "1.11.0~rc1", "2.0"):
        code, said = run_script(text, "upgrade", newer, "1.10.0")
        assert code == 1
        assert (
            f"1.10.0 is older than the installed version {newer}, so it was not installed and nothing was changed"
            in said
        )
        assert "first remove the package, which keeps the configuration and the outbox" in said


@pytest.mark.parametrize(
    ("form", "name", "arguments"),
    [
        ("deb", "prerm", ("upgrade", "2.0")),
        ("deb", "postrm", ("upgrade", "2.0")),
        ("deb", "postinst", ("triggered", "x")),
    ],
)
def test_an_upgrade_keeps_the_old_agent_running(form: Format, name: str, arguments: tuple[str, ...]) -> None:
    """Until postinst restarts it, no script touches the service."""
    assert run_script(script(form, name, "1.0"), *arguments) == (0, "")


def valid(settings: Path, tmp_path: Path) -> tuple[int, str]:
    """Return what the scripts print about settings in a directory, with this checkout's program, and without setpriv,
    which needs root."""
    (tools := tmp_path / "bin").mkdir()
    for tool in ("grep", "sed"):
        (tools / tool).symlink_to(shutil.which(tool) or "")
    common = (SCRIPTS_FOLDER / "common.sh").read_text(encoding="utf-8")
    program = Path(sys.executable).with_name(NAME)
    return run_script(f"{common}\nsettings={settings}\nprogram={program}\nis_valid started", PATH=str(tools))


@pytest.mark.parametrize(
    ("config", "environment", "expected"),
    [
        ("", None, ""),
        ('[approval]\nmode = "always"\n', None, '[approval] mode: expected one of "off", "dry-run", "enforce"'),
        ("", 'SCHEDULED_EVENTS_APPROVAL_MODE="always"\n', "SCHEDULED_EVENTS_APPROVAL_MODE: expected"),
        ('[approval]\nmode = "always"\n', "SCHEDULED_EVENTS_APPROVAL_MODE=off\n", ""),
        ("", "  SCHEDULED_EVENTS_APPROVAL_MODE = enforce \r\nSCHEDULED_EVENTS_SOURCE_VM_NAME='a' \n", ""),
        ("", "SCHEDULED_EVENTS_APPROVAL_MODE=en\\\nforce\nOTEL_LOG_LEVEL=info\\\n", ""),
        ("", "  SCHEDULED_EVENTS_APPROVAL_MODE=always\n", "SCHEDULED_EVENTS_APPROVAL_MODE: expected"),
        ("", "# x\nPATH=/nowhere\nSCHEDULED_EVENTS_SOURCE_VM_NAME=$(:>{folder}/run)`:>{folder}/run`\n", ""),
        # The files from systemd don't exist yet: the unit itself reports what is wrong.
        ('[event_hubs]\nconnection_string_file = "/run/credentials/azse.service/event-hubs"\n', None, ""),
    ],
    ids=[
        "valid",
        "wrong file",
        "wrong variable",
        "variable before file",
        "blanks and carriage returns",
        "a continued line",
        "indented",
        "nothing is run",
        "credential",
    ],
)
def test_the_service_starts_only_with_valid_settings(
    config: str, environment: str | None, expected: str, tmp_path: Path
) -> None:
    """The scripts check what the unit would read, run none of it, and print what is wrong and what to do."""
    (settings := tmp_path / "settings").mkdir()
    (settings / "config.toml").write_text(config, encoding="utf-8")
    if environment is not None:
        (settings / "environment").write_text(environment.format(folder=tmp_path), encoding="utf-8")
    code, said = valid(settings, tmp_path)
    assert not (tmp_path / "run").exists()
    if not expected:
        assert (code, said) == (0, "")
        return
    assert code == 1
    assert said.startswith(f"{NAME}: the configuration is not valid, so the service was not started:\n")
    assert expected in said
    assert f"then run: systemctl restart {NAME}" in said


def test_wrong_value_in_the_shipped_settings_is_reported(tmp_path: Path) -> None:
    """The comments of the shipped file name /run/credentials/; that doesn't skip the check."""
    (settings := tmp_path / "settings").mkdir()
    text, count = re.subn(
        r'^mode = "dry-run"', 'mode = "always"', CONFIG.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert (count, "/run/credentials/" in text) == (1, True)
    (settings / "config.toml").write_text(text, encoding="utf-8")
    code, printed = valid(settings, tmp_path)
    assert (code, "[approval] mode: expected one of" in printed) == (1, True), printed


@pytest.mark.parametrize(("recorded", "readable"), [("", False), ("daemon no-such-group", True)])
def test_a_file_readable_for_the_units_group_is_accepted(recorded: str, readable: bool) -> None:
    """A key that is readable for a group of the unit's drop-in doesn't keep the service from starting."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to change the user")
    with tempfile.TemporaryDirectory() as name:
        (folder := Path(name)).chmod(0o755)
        programs = {"systemctl": f"echo '{recorded}'", "program": 'exec cat "$SCHEDULED_EVENTS_CONFIG_FILE"'}
        for program, does in programs.items():
            (folder / program).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
            (folder / program).chmod(0o755)
        (config := folder / "config.toml").touch(0o640)
        shutil.chown(config, "root", "daemon")
        common = (SCRIPTS_FOLDER / "common.sh").read_text(encoding="utf-8")
        text = f"{common}\nsettings={folder}\nprogram={folder}/program\nis_valid started"
        code, said = run_script(text, PATH=f"{folder}:{os.environ['PATH']}")
    assert (code == 0) == readable, said


def test_a_unit_that_overrides_the_packages_is_reported(tmp_path: Path) -> None:
    """A unit that remains from a pip installation is named; a masked unit or none isn't."""
    common = (SCRIPTS_FOLDER / "common.sh").read_text(encoding="utf-8")
    text = f"{common}\nlocal_units={tmp_path}\nwarn_about_local_unit"
    assert run_script(text) == (0, "")
    (unit := tmp_path / f"{NAME}.service").symlink_to("/dev/null")
    assert run_script(text) == (0, "")
    unit.unlink()
    unit.write_text("[Service]\n", encoding="utf-8")
    code, said = run_script(text)
    assert code == 0
    assert said.startswith(f"{NAME}: {unit} overrides the package's unit.")
    assert "warn_about_local_unit\n" in script("deb", "postinst", "1").partition("# postinst configure")[2]
    assert "warn_about_local_unit\n" in script("rpm", "post", "1").partition("# %post:")[2]


# -- requirements


def compiled(name: str) -> tuple[Path, tuple[int, int]]:
    """Create a compiled module of a wheel, with the oldest glibc that its tag promises."""
    wheel = distribution(name)
    tags = re.findall(r"manylinux_(\d+)_(\d+)", wheel.read_text("WHEEL") or "")
    if not tags:
        pytest.skip(f"{name} was not installed from a manylinux wheel here")
    (module, *_) = [file for file in wheel.files or () if ".so" in file.name]
    return Path(str(wheel.locate_file(module))), min((int(one), int(other)) for one, other in tags)


@pytest.mark.parametrize("name", ["msgspec", "aiohttp", "multidict"])
def test_the_required_glibc_is_measured(name: str, tmp_path: Path) -> None:
    """A module of a manylinux wheel needs no newer glibc than its tag's, and none needs less than an old one."""
    module, promised = compiled(name)
    shutil.copy(module, tmp_path / "module.so")
    needs = measure(tmp_path)
    assert (2, 0) < tuple(map(int, needs.glibc.split(".")))[:2] <= promised
    assert needs.debian() == [f"libc6 (>= {needs.glibc})"]
    assert any(re.fullmatch(r"libc\.so\.6\(GLIBC_[\d.]+\)\(64bit\)", line) for line in needs.rpm())


def test_a_bundled_library_is_required_only_by_the_program(tmp_path: Path) -> None:
    """The program starts before its library path is set; the modules are loaded later."""
    module, _ = compiled("msgspec")
    (inside := tmp_path / "_internal").mkdir()
    shutil.copy(module, inside / "module.so")
    needed = set(measure(tmp_path).symbols)
    assert "libc.so.6" in needed
    for library in needed:
        shutil.copy(module, inside / library)
    assert measure(tmp_path).symbols == {}
    with pytest.raises(NeedsError, match="no file uses a symbol of glibc"):
        _ = measure(tmp_path).glibc
    shutil.copy(module, tmp_path / "program")
    assert set(measure(tmp_path).symbols) == needed


def test_requirements_are_written_for_each_format() -> None:
    """Versions are ordered as numbers, and a library of an unknown package is an error."""
    needs = Needs("amd64", {"libc.so.6": "GLIBC_2.9", "libm.so.6": "GLIBC_2.27", "libz.so.1": ""})
    assert needs.glibc == "2.27"
    assert needs.debian() == ["libc6 (>= 2.27)", "zlib1g"]
    assert needs.rpm() == ["libc.so.6(GLIBC_2.9)(64bit)", "libm.so.6(GLIBC_2.27)(64bit)", "libz.so.1()(64bit)"]
    with pytest.raises(NeedsError, match=r"libX11\.so\.6: needed from the host"):
        Needs("amd64", {"libc.so.6": "GLIBC_2.9", "libX11.so.6": ""}).debian()


def test_a_folder_without_programs_is_rejected(tmp_path: Path) -> None:
    """An empty folder has no requirements to measure."""
    (tmp_path / "text").write_text("no ELF file")
    with pytest.raises(NeedsError, match="expected files of one machine"):
        measure(tmp_path)


# -- manual page and completions


def all_commands() -> Iterator[Command]:
    for command in commands():
        yield command
        yield from command.actions


def test_the_manual_page_lists_every_command_flag_and_setting() -> None:
    """Each command, each of its flags, each setting with its variable, and the shipped files."""
    page = manual.page(__version__, date(2026, 1, 2)).replace("\\-", "-").replace("\\(aq", "'")
    assert [command.name for command in commands()] == list(COMMANDS)
    for command in commands():
        assert f".SS \\fB{command.name}\\fR " in page
        assert all(
            f"\\fB{flag.spelling}\\fR" in page
            for flag in command.flags
            if not flag.setting and flag.spelling != "--help"
        )
    for setting in catalogue():
        assert f"\\fB{setting.key}\\fR\n" in page
        assert setting.env in page
        assert setting.secret or f"{setting.flag}, {setting.env}" in page
    for heading in (
        "NAME",
        "SYNOPSIS",
        "COMMANDS",
        "SETTINGS",
        "ENVIRONMENT",
        "FILES",
        "EXIT STATUS",
        "EXAMPLES",
        "SEE ALSO",
    ):
        assert f"\n.SH {heading}\n" in page
    assert ready_place("linux").replace("{event_id}", "EVENT-ID") in page
    assert [line for line in page.splitlines() if re.match(r"[.'](?!(TH|SH|SS|TP|PP|B|br|nh|UR|UE)\b)", line)] == []


def completed(*words: str) -> set[str]:
    """Return what bash's completion function offers for the last word."""
    shown = " ".join(f"'{word}'" for word in (NAME, *words))
    call = f"COMP_WORDS=({shown}); COMP_CWORD={len(words)}; _azure_scheduled_events_exporter"
    call += "; printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(
        [need("bash"), "-c", f"{completion.bash()}\n{call}"], text=True, capture_output=True, check=True
    )
    return set(done.stdout.split())


def test_bash_completes_every_command_and_flag() -> None:
    """It offers everything that the parsers accept, and nothing that they reject."""
    assert completed("") == {*COMMANDS, "--help", "--version"}
    assert completed("rep") == {"replay"}
    for command in commands():
        expected = {action.name for action in command.actions} | {"--help"}
        assert completed(command.name, "-") == (
            {flag.spelling for flag in command.flags} if not command.actions else {"--help"}
        )
        assert not command.actions or completed(command.name, "") == expected
    assert completed("service", "install", "--na") == {"--name"}
    assert "--event-hubs.connection-string" not in completed("run", "--event-hubs.")
    assert completed("run", "--approval.mode", "") == {"off", "dry-run", "enforce"}
    assert completed("tail", "--format", "=", "js") == {"json"}


def test_zsh_and_fish_complete_every_flag() -> None:
    """Their files name each flag of each command (`make -C tests packages` asks the shells themselves)."""
    zsh, fish = completion.zsh(), completion.fish()
    for command in all_commands():
        for flag in command.flags:
            assert f"{flag.spelling}[" in zsh or f"{flag.spelling}=[" in zsh
            assert flag.spelling == "--help" or f"-l {flag.spelling.removeprefix('--')} " in fish


def test_an_interactive_bash_completes(tmp_path: Path) -> None:
    """On a terminal, the tab key completes a flag, its value after an equals sign, and a file name."""
    (tmp_path / "recording.jsonl").touch()
    (tmp_path / "completion").write_text(completion.bash(), encoding="utf-8")
    leader, terminal = os.openpty()
    environ = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "", "INPUTRC": "/dev/null", "COLUMNS": "500"}
    command = [need("bash"), "--norc", "--noprofile", "-i"]
    shell = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path, env=environ, start_new_session=True
    )
    os.close(terminal)
    try:
        os.write(leader, b"source completion; echo rea''dy\n")
        heard(leader, "ready")
        os.write(leader, f"{NAME} tail --form\t=time\t".encode())
        heard(leader, "tail --format =timeline")
        os.write(leader, f"\x15{NAME} replay rec\t".encode())
        heard(leader, "replay recording.jsonl")
    finally:
        shell.kill()
        shell.wait(30)
        os.close(leader)


def heard(terminal: int, expected: str, seconds: float = 30.0) -> None:
    """Read the terminal's output until it contains this."""
    shown = ""
    end = time.monotonic() + seconds
    while expected not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 1.0)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    assert expected in shown, shown
