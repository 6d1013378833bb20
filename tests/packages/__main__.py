"""The deb and the rpm in fresh Debian roots without Python: `python -m tests.packages` (`make -C tests packages`).

Builds both, and a later version of each; installs, runs, and scrapes the agent, fills its outbox with records,
upgrades, tries to downgrade, removes, installs again, and purges, and checks the files after each step. Also runs
lintian, the manual page with mandoc and man, and the completions in zsh and fish. Needs root on a Debian; installs its
requirements with apt. Takes some minutes. No systemd runs in these roots: `make -C tests systemd` tests with it.
Debian's rpm installs the rpm, without knowledge of RHEL's packages: its requirements are checked against this C
library's symbols.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
from packaging.version import Version

from deploy.packages.build import fresh_folder
from deploy.packages.contents import COMMAND, PROGRAM_FOLDER, SETTINGS, Format, file_name
from deploy.packages.needs import Needs, measure
from exporter import __version__
from tests.packages.root import CommandError, Root, fresh_root
from tests.packages.unit import NAME, OUTBOX, PRIVATE, Unit, agent, installed, queued, scraped, waits
from tests.support.machine import Missing, need
from tests.support.peers import until
from tests.support.ports import reserved_port

ROOT: Final = Path(__file__).parents[2]
FORMATS: Final[tuple[Format, ...]] = ("deb", "rpm")
TOOLS: Final = {
    "lintian": "lintian",
    "rpm": "rpm",
    "mandoc": "mandoc",
    "man": "man-db",
    "zsh": "zsh",
    "fish": "fish",
    "unshare": "util-linux",
}
"""The Debian package that contains each program."""
LATER: Final = ".".join(map(str, (*Version(__version__).release[:2], Version(__version__).release[2] + 1)))
CONFIG: Final = f"{SETTINGS}/config.toml"
EDIT: Final = 'poll_interval = "500ms" # changed by hand'
REFUSAL: Final = (
    f"{__version__} is older than the installed version {LATER}, so it was not installed and nothing was changed."
)
COOKIE: Final = 88
"""Bytes of PyInstaller's cookie."""
PILE: Final = 4
"""Number of records that must wait in the outbox before an upgrade."""
ELSEWHERE: Final = re.compile(
    r"/(var/(log|cache|lib/(apt|dpkg|systemd/deb-systemd-helper-enabled|rpm))|usr/lib/sysimage|etc/systemd/system|tmp|proc)"
    r"(/|$)"
)
"""Files that package managers write for themselves."""


@dataclass(frozen=True, slots=True)
class Packages:
    """A format's package of this version, and of a later one."""

    this: Path
    later: Path


@dataclass(frozen=True, slots=True)
class Trial:
    """An installed agent under test: its unit, its port, and that of its metadata service. Logs go to `work`."""

    root: Root
    unit: Unit
    web: int
    source: int
    work: Path


def main() -> int:
    """Run all tests. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.packages", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--packages", type=Path, help=f"folder with debs and rpms of {__version__} and of {LATER}, as they are"
    )
    given: Path | None = parser.parse_args().packages
    os.chdir(ROOT)
    need(TOOLS)
    folder = fresh_folder()
    needs = measure(folder)
    with tempfile.TemporaryDirectory(prefix="packages-") as work:
        if given is None:
            _build(folder, Path(work))
        deb, rpm = (_packages(form, given or Path(work), needs) for form in FORMATS)
        _documents(deb.this, Path(work))
        _lintian(deb.this)
        with fresh_root() as root:
            _try_deb(root, deb, Path(work))
        _rpm_queries(rpm.this, folder, needs)
        with fresh_root() as root:
            _try_rpm(root, rpm, Path(work))
    _say(
        f"the packages install, run without Python, upgrade to {LATER} with settings and outbox kept, reject a "
        "downgrade, and leave no file when purged. Not tested here: systemd (make -C tests systemd), RHEL's own rpm "
        "database, SELinux"
    )
    return 0


def _say(text: str) -> None:
    print(f"== {text}", flush=True)


def _build(folder: Path, output: Path) -> None:
    """Build the packages of this version, and of a later one from a folder with the program's modules at other
    offsets."""
    later = output / "later"
    shutil.copytree(folder, later, symlinks=True)
    (later / NAME).write_bytes(_shifted((folder / NAME).read_bytes()))
    for form in FORMATS:
        for version, packed in ((__version__, folder), (LATER, later)):
            _say(f"building the {form} of {version}")
            build = [sys.executable, "-m", "deploy.packages.build", form, "--version", version, "--quick"]
            where = ["--folder", str(packed), "--output", str(output)]
            subprocess.run([*build, *where], check=True, stdout=subprocess.DEVNULL)


def _shifted(program: bytes) -> bytes:
    """Return the same program, with its archive of modules elsewhere, as in another version.

    PyInstaller finds the archive from its end: a cookie, which has the length of the whole [PyInstaller, CArchive].
    """
    cookie = program.rindex(b"MEI\014\013\012\013\016")
    (length,) = struct.unpack_from("!I", program, cookie + 8)
    end = cookie + COOKIE
    return program[: end - length] + bytes(length) + program[end:] + program[end - length : end]


def _packages(form: Format, output: Path, needs: Needs) -> Packages:
    this, later = (output / file_name(form, version, needs.architecture) for version in (__version__, LATER))
    return Packages(this, later)


# -- what is in the deb


def _output(*command: str, **environ: str) -> str:
    """Return both outputs of a command on this machine that must succeed."""
    variables = {**os.environ, **environ}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=variables
    )
    if done.returncode:
        raise CommandError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def _documents(deb: Path, work: Path) -> None:
    """Check the manual page and the completions with the programs that read them."""
    here = work / "unpacked"
    _output("dpkg-deb", "--extract", str(deb), str(here))
    page = here / f"usr/share/man/man1/{NAME}.1.gz"
    assert _output("mandoc", "-T", "lint", "-W", "warning", str(page)) == ""
    typeset = ["man", "--warnings", "--local-file", "--encoding=UTF-8", "-Tutf8", "-Z", str(page)]
    done = subprocess.run(typeset, text=True, capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    assert done.stderr == "", done.stderr
    assert "apropos" not in _output("lexgrog", str(page))
    _say("the manual page is read by mandoc and man without a warning")

    fish = here / f"usr/share/fish/vendor_completions.d/{NAME}.fish"
    for line, expected in (
        ("tail --fo", "--follow"),
        ("tail --format ", "timeline"),
        ("re", "replay"),
        ("service ", "install"),
    ):
        completed = _output("fish", "--no-config", "-c", f"source {fish}; complete -C '{NAME} {line}'")
        assert any(word.split("\t")[0] == expected for word in completed.splitlines()), (line, completed)
    _zsh(here / f"usr/share/zsh/vendor-completions/_{NAME}")
    _say("zsh and fish complete commands, flags and values")


def _zsh(path: Path) -> None:
    """Type into a zsh on a separate terminal, and check what the tab key completes."""
    script = f"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1=; fpath=({path.parent} $fpath); autoload -Uz compinit; compinit -u -D; setopt noautomenu; echo rea""dy'
zpty -r z line '*ready*'
zpty -w -n z $'{NAME} tail --form\\t=\\ttimel\\t; echo do""ne\\n'
zpty -r z line '*done*'
print -r -- $line
"""
    typed = _output("timeout", "60", "zsh", "-f", "-c", script, TERM="dumb", COLUMNS="300")
    assert re.search(r"tail --format=timeline", typed), typed


def _lintian(deb: Path) -> None:
    """Every finding is explained in the overrides, and every override has a finding."""
    found = _output("lintian", "--fail-on", "error,warning", "--tag-display-limit", "0", str(deb))
    tags = [line for line in found.splitlines() if re.match(r"[EWI]: ", line)]
    assert tags == [], tags
    _say("lintian has no errors and no warnings but those that the overrides explain")


# -- the deb


def _apt(root: Root, *arguments: str) -> tuple[int, str]:
    """Run apt-get in the root, without questions."""
    options = ["--yes", "--no-install-recommends", "--option", "APT::Sandbox::User=root"]
    return root.ended("apt-get", *options, *arguments)


def _install(root: Root, package: Path, *options: str) -> str:
    """Install a file with apt-get; return the output. Raises `CommandError`."""
    code, said = _apt(root, "install", *options, _brought(root, package))
    if code:
        raise CommandError(f"apt-get install {package.name} ended with {code}:\n{said}")
    return said


def _brought(root: Root, package: Path) -> str:
    """Return the path of a package in the root."""
    shutil.copy(package, root.path("/tmp"))
    return f"/tmp/{package.name}"


def _status(root: Root) -> str:
    code, said = root.ended("dpkg-query", "--show", "--showformat", "${db:Status-Abbrev}${Version}", NAME)
    return said.replace(" ", "") if code == 0 else "absent"


def _pythons(root: Root) -> set[str]:
    """Return interpreters outside of the program's own directory."""
    return {path for path in root.files() if re.search(r"/bin/python[\d.]*$", path)}


def _try_deb(root: Root, deb: Packages, work: Path) -> None:
    before = root.files()
    assert _pythons(root) == set()
    said = _install(root, deb.this)
    assert _status(root) == f"ii{__version__}"
    assert root.lexists(f"/etc/systemd/system/multi-user.target.wants/{NAME}.service"), "it is not enabled"
    assert not root.lexists(f"/run/{NAME}.install"), "a mark stayed"
    assert f"{NAME}: " not in said, said
    assert _pythons(root) == set()
    assert root.run(NAME, "--version").split()[1] == __version__
    assert "configuration is valid" in root.run(NAME, "check", "--config.file", CONFIG)
    _say(f"apt installed {deb.this.name} in a Debian without Python, enabled; its configuration is valid")

    _edit(root)
    with reserved_port() as web, reserved_port() as source, reserved_port() as destination:
        _report_event(root, web, source, destination)
        trial = Trial(root, installed(root, f"/lib/systemd/system/{NAME}.service"), web, source, work)
        later = _with_another_default(deb.later, work)
        keeping = ("--option", "Dpkg::Options::=--force-confold")
        _upgraded_while_it_runs(trial, lambda: _install(root, later, *keeping))
        assert _status(root) == f"ii{LATER}"
        assert root.lexists(f"{CONFIG}.dpkg-dist"), "the new default is not next to the kept file"
        kept = _restarted_after_upgrade(trial)
        _say(f"upgraded to {LATER}: the changed config.toml stayed, and {kept} records waited throughout")

    _deb_refusal(root, deb)
    _deb_removal(root, deb, before)


def _edit(root: Root) -> None:
    """Change the settings as an operator does: uncomment a section of the shipped file, and a line of it."""
    config = root.path(CONFIG)
    text, sections = re.subn(r"# \[source\]", "[source]", config.read_text(encoding="utf-8"))
    text, lines = re.subn(r"# poll_interval.*", EDIT, text)
    assert (sections, lines) == (1, 1)
    config.write_text(text, encoding="utf-8")


def _report_event(root: Root, web: int, source: int, destination: int) -> None:
    """Write the unit's variables: a simulated metadata service, a free port, and a destination without a
    listener."""
    root.path(f"{SETTINGS}/environment").write_text(
        f"SCHEDULED_EVENTS_SOURCE_URL=http://127.0.0.1:{source}\n"
        f"SCHEDULED_EVENTS_WEB_LISTEN_ADDRESS=127.0.0.1:{web}\n"
        f"SCHEDULED_EVENTS_OTLP_ENDPOINT=http://127.0.0.1:{destination}\n"
    )


def _upgraded_while_it_runs(trial: Trial, upgrade: Callable[[], object]) -> None:
    """Run and scrape the agent until records wait in its outbox, and upgrade with it running."""
    assert trial.unit.start == (COMMAND, "run")
    with _running(trial):
        waits(trial.web, "azure_scheduled_events_up", 1)
        assert scraped(trial.web, "azure_scheduled_events_poll_interval_seconds") == 0.5, "config.toml is not read"
        waits(trial.web, "azure_scheduled_events_outbox_records", PILE, "otlp")
        _say("the agent runs as its unit starts it, was scraped, and records wait in its outbox")
        before = queued(trial.root)
        upgrade()
        polls = scraped(trial.web, "azure_scheduled_events_polls_total")
        until(lambda: scraped(trial.web, "azure_scheduled_events_polls_total") > polls)
        assert queued(trial.root)[: len(before)] == before
        # No systemd restarts it here. Requests that use new parts of the program still succeed, although its files
        # changed.
        page = httpx.get(f"http://127.0.0.1:{trial.web}/", timeout=10)
        assert page.status_code == httpx.codes.OK, page.text
    assert EDIT in trial.root.path(CONFIG).read_text(encoding="utf-8"), "config.toml was not kept"


def _restarted_after_upgrade(trial: Trial) -> int:
    """Start the agent of the later version on the same outbox. Return how many records waited; all still exist."""
    before = queued(trial.root)
    assert len(before) >= PILE
    with _running(trial):
        waits(trial.web, "azure_scheduled_events_outbox_records", len(before), "otlp")
    assert queued(trial.root)[: len(before)] == before
    aside = [entry.name for entry in trial.root.path(PRIVATE).iterdir() if "-20" in entry.name]
    assert aside == [], "the outbox was quarantined"
    return len(before)


@contextmanager
def _running(trial: Trial) -> Iterator[None]:
    """Run the agent with a simulated metadata service of the same program, which repeats its scenario."""
    scenario = (
        NAME,
        "simulate",
        "--scenario",
        "demo",
        "--speed",
        "20",
        "--repeat",
        f"--listen=127.0.0.1:{trial.source}",
    )
    with (
        trial.root.running(*scenario, environ={}, log=trial.work / "simulator"),
        agent(trial.root, trial.unit, trial.work / "agent"),
    ):
        yield


def _with_another_default(deb: Path, work: Path) -> Path:
    """Return the package with a line more in its config.toml, so that dpkg must choose between it and the changed
    file."""
    folder = work / "another"
    _output("dpkg-deb", "--raw-extract", str(deb), str(folder))
    with (folder / CONFIG.lstrip("/")).open("a", encoding="utf-8") as config:
        config.write("# a later version has more\n")
    another = work / f"another_{deb.name}"
    _output("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(folder), str(another))
    return another


def _deb_refusal(root: Root, deb: Packages) -> None:
    before, config, waiting = _digests(root), root.path(CONFIG).read_bytes(), queued(root)
    code, said = _apt(root, "install", "--allow-downgrades", _brought(root, deb.this))
    assert code != 0
    assert REFUSAL in said, said
    assert _status(root) == f"ii{LATER}"
    assert (_digests(root), root.path(CONFIG).read_bytes(), queued(root)) == (before, config, waiting)
    root.run("dpkg", "--audit")
    _say("a downgrade is rejected with a message, and changes nothing")


def _digests(root: Root) -> str:
    """Return dpkg's report about the package's files."""
    return root.ended("dpkg", "--verify", NAME)[1] + root.run("dpkg", "--listfiles", NAME)


def _deb_removal(root: Root, deb: Packages, before: set[str]) -> None:
    waiting = queued(root)
    code, said = _apt(root, "remove", NAME)
    assert code == 0, said
    assert _status(root) == f"rc{LATER}"
    gone = (COMMAND, PROGRAM_FOLDER, f"/lib/systemd/system/{NAME}.service", f"/usr/share/man/man1/{NAME}.1.gz")
    assert [path for path in gone if root.lexists(path)] == []
    assert EDIT in root.path(CONFIG).read_text(encoding="utf-8")
    assert queued(root) == waiting
    _say("removed: program and unit are deleted, configuration and outbox stay")

    # With a systemd that seems to run, but answers no request: what the scripts do then, with wrong settings.
    root.path("/run/systemd/system").mkdir(parents=True)
    root.path(CONFIG).write_text('[approval]\nmode = "always"\n', encoding="utf-8")
    said = _install(root, deb.this, "--option", "Dpkg::Options::=--force-confold")
    assert "the configuration is not valid, so the service was not started" in said, said
    assert f'{CONFIG}: [approval] mode: expected one of "off", "dry-run", "enforce"' in said, said
    assert _status(root) == f"ii{__version__}"
    root.path("/run/systemd/system").rmdir()
    assert queued(root) == waiting
    _say("installed again in an older version, which a removal allows; wrong settings are reported, not fatal")

    root.path(f"{SETTINGS}/hold").touch()
    code, said = _apt(root, "purge", NAME)
    assert code == 0, said
    assert _status(root) == "absent", _status(root)
    left = sorted(path for path in root.files() - before if not ELSEWHERE.match(path))
    assert left == ["/run/systemd", "/var/lib/private"], left  # not only the package's
    assert [path for path in root.files() if NAME in path and not path.startswith("/tmp/")] == []
    _install(root, deb.later)
    assert _status(root) == f"ii{LATER}"
    assert "configuration is valid" in root.run(NAME, "check", "--config.file", CONFIG)
    _say("purged: no file is left; it can be installed again")


# -- the rpm


def _rpm(root: Root, *arguments: str) -> tuple[int, str]:
    """Run this machine's rpm on the root's database; the scripts run in the root."""
    command = ["rpm", "--root", str(root.folder), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def _rpm_queries(rpm: Path, folder: Path, needs: Needs) -> None:
    """Check the package's metadata, and its requirements against those that rpm's own generators find in the files."""
    architecture = {"amd64": "x86_64", "arm64": "aarch64"}[needs.architecture]
    recorded = _output(
        "rpm", "--query", "--package", "--queryformat", "%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{LICENSE}", str(rpm)
    )
    assert recorded == f"{NAME} {__version__} 1 {architecture} MIT", recorded
    assert _output("rpm", "--query", "--package", "--configfiles", str(rpm)).split() == [CONFIG]
    flags = _output("rpm", "--query", "--package", "--queryformat", "[%{FILENAMES} %{FILEFLAGS:fflags}\n]", str(rpm))
    assert f"{CONFIG} cn" in flags.splitlines(), "config.toml is not noreplace"
    owned = _output("rpm", "--query", "--package", "--list", str(rpm)).splitlines()
    assert {f"/usr/lib/systemd/system/{NAME}.service", COMMAND, f"/usr/share/licenses/{NAME}/LICENSE"} <= set(owned)
    required = set(_output("rpm", "--query", "--package", "--requires", str(rpm)).splitlines())
    libraries = {line for line in required if line.startswith("lib")}
    assert libraries == set(needs.rpm())
    binaries = [path for path in folder.rglob("*") if path.is_file() and _is_elf(path)]
    generated = _generated("--requires", binaries)
    assert libraries <= generated, libraries - generated
    host = [found for library in needs.symbols for found in Path("/lib").glob(f"*-linux-gnu/{library}")]
    provided = _generated("--provides", host)
    assert libraries <= provided, libraries - provided
    _say("rpm reads the package, and its own generators find the same needs in the same files")


def _is_elf(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def _generated(what: str, files: Sequence[Path]) -> set[str]:
    """Return the output of rpm's generator for ELF files."""
    done = subprocess.run(["/usr/lib/rpm/elfdeps", what, *files], text=True, capture_output=True, check=True)
    return set(done.stdout.splitlines())


def _try_rpm(root: Root, rpm: Packages, work: Path) -> None:
    _rpm(root, "--initdb")
    code, said = _rpm(root, "--install", "--nodeps", str(rpm.this))
    assert (code, f"{NAME}: " in said) == (0, False), said
    assert root.run(NAME, "--version").split()[1] == __version__
    assert "configuration is valid" in root.run(NAME, "check", "--config.file", CONFIG)
    _edit(root)
    with reserved_port() as web, reserved_port() as source, reserved_port() as destination:
        _report_event(root, web, source, destination)
        trial = Trial(root, installed(root, f"/usr/lib/systemd/system/{NAME}.service"), web, source, work)
        _upgraded_while_it_runs(trial, lambda: _upgrade(root, rpm.later))
        kept = _restarted_after_upgrade(trial)
    code, said = _rpm(root, "--verify", "--nodeps", NAME)
    assert [line.split()[-1] for line in said.splitlines()] == [CONFIG], said
    _say(f"rpm installed and upgraded it: the changed config.toml stayed, and {kept} records waited throughout")

    waiting = queued(root)
    code, said = _rpm(root, "--upgrade", "--nodeps", str(rpm.this))
    assert code != 0
    assert "is already installed" in said, said
    code, said = _rpm(root, "--upgrade", "--nodeps", "--oldpackage", str(rpm.this))
    assert code != 0
    assert REFUSAL in said, said
    assert _rpm(root, "--query", NAME)[1].startswith(f"{NAME}-{LATER}-1"), _rpm(root, "--query", NAME)
    assert root.path(f"{PROGRAM_FOLDER}/package-version").read_text().strip() == LATER
    assert (queued(root), EDIT in root.path(CONFIG).read_text(encoding="utf-8")) == (waiting, True)
    _say("rpm rejects a downgrade, and with --oldpackage the package does, with a message; nothing changes")

    code, said = _rpm(root, "--erase", NAME)
    assert code == 0, said
    assert [path for path in (COMMAND, PROGRAM_FOLDER) if root.lexists(path)] == []
    assert EDIT in root.path(f"{CONFIG}.rpmsave").read_text(encoding="utf-8")
    assert root.lexists(OUTBOX)
    assert queued(root) == waiting
    code, said = _rpm(root, "--install", "--nodeps", str(rpm.this))
    assert code == 0, said
    assert EDIT in root.path(CONFIG).read_text(encoding="utf-8"), "the settings from before are not in use"
    assert "# poll_interval" in root.path(f"{CONFIG}.rpmnew").read_text(encoding="utf-8")
    assert not root.lexists(f"{CONFIG}.rpmsave")
    _rpm(root, "--erase", NAME)
    assert EDIT in root.path(f"{CONFIG}.rpmsave").read_text(encoding="utf-8")
    root.path(CONFIG).write_text("# written since\n", encoding="utf-8")
    code, said = _rpm(root, "--install", "--nodeps", str(rpm.this))
    assert code == 0, said
    assert root.path(CONFIG).read_text(encoding="utf-8") == "# written since\n", "newer settings were replaced"
    assert not root.lexists(f"/run/{NAME}.restore"), "a mark stayed"
    _say("erased: settings and outbox stay; installed again, also in an older version, it continues with them")


def _upgrade(root: Root, package: Path) -> None:
    code, said = _rpm(root, "--upgrade", "--nodeps", str(package))
    assert code == 0, said


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Missing, CommandError, AssertionError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
