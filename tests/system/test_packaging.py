"""The wheel and the sdist: the wheel, in a fresh environment without anything else, is the whole agent."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Final

import pytest

from exporter import __version__

ROOT: Final = Path(__file__).parents[2]
pytestmark = pytest.mark.linux("builds what is handed out, as a release does")

NOT_SOURCE: Final = (
    *("__pycache__", ".git", ".venv*", ".*_cache", ".hypothesis", "*.egg-info"),
    *("build", "dist", "node_modules"),
)
CLEAN: Final = {
    name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "SCHEDULED", "PYTHON"))
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Yield a folder with an sdist, and the wheel that was built from only that sdist.

    Of a copy: other tests compile modules meanwhile.
    """
    folder = tmp_path_factory.mktemp("dist")
    copy = tmp_path_factory.mktemp("source") / "project"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(copy)]
    done = subprocess.run(command, text=True, capture_output=True, env=CLEAN, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def metadata(built: Path) -> Message:
    with zipfile.ZipFile(wheel(built)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_holds_only_the_package_and_its_data(built: Path) -> None:
    """Every module and data file of `exporter` is in the wheel and nothing else is: no tests, no dashboards."""
    with zipfile.ZipFile(wheel(built)) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    package = {name for name in names if ".dist-info/" not in name}
    files = [path for path in (ROOT / "exporter").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.relative_to(ROOT).as_posix() for path in files} <= package
    assert {"exporter/py.typed", "exporter/cli.py"} <= package
    assert any(name.startswith("exporter/schema/") and name.endswith(".json") for name in package)
    assert any(name.startswith("exporter/simulator/metadata/scenarios/") for name in package)
    assert all(name.startswith("exporter/") for name in package)
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_wheel_has_complete_metadata(built: Path) -> None:
    """Name, version, licence, Python, and a long description in Markdown; a plain install needs no test dependency."""
    recorded = metadata(built)
    assert (recorded["Name"], recorded["Version"]) == ("azure-scheduled-events-exporter", __version__)
    assert (recorded["License-Expression"], recorded["Requires-Python"]) == ("MIT", ">=3.11")
    assert recorded["Description-Content-Type"] == "text/markdown"
    plain = [line for line in recorded.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not any(line.startswith(("pytest", "hypothesis", "mypy", "ruff", "azure-identity")) for line in plain)


def test_the_links_of_the_page_on_pypi_are_absolute(built: Path) -> None:
    """PyPI has only the README: its links lead to the version's tag, and its pictures are absolute."""
    home = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = str(metadata(built).get_payload())
    inside = re.findall(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)", readme)
    assert inside
    for picture, text, path in inside:
        place = f"{home}/{'raw' if picture else 'blob'}/v{__version__}/{path}"
        assert f"{picture}[{text}]({place})" in shown
    assert re.findall(r"\]\((?![a-z]+:|#)", shown) == []


def test_the_sdist_can_be_tested(built: Path) -> None:
    """The sdist contains what the tests need: themselves, the alerts, dashboards, deployment files, and the
    Makefile."""
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "Dockerfile", ".ci/run", "tests/support/peers.py", "alerts/rules.yml", "README.md"} <= names
    assert {"deploy/constraints.txt", "dashboards/vm.json", "CHANGELOG.md"} <= names
    assert not any("node_modules" in name or "__pycache__" in name for name in names)


def test_the_wheel_runs_in_a_fresh_environment(built: Path, tmp_path: Path) -> None:
    """In a fresh environment with only its named dependencies, the wheel prints its version and runs the demo."""
    venv.create(tmp_path / "venv")
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-compile", str(wheel(built))]
    subprocess.run(install, env=CLEAN, cwd=tmp_path, timeout=300, check=True)
    command = str(scripts / "azure-scheduled-events-exporter")
    recorded = subprocess.run(
        [command, "--version"], text=True, capture_output=True, cwd=tmp_path, check=True, timeout=30
    )
    assert recorded.stdout.split() == ["azure-scheduled-events-exporter", __version__]
    demo = [command, "demo", "--speed", "4", "--listen", "127.0.0.1:0"]
    shown = subprocess.run(demo, text=True, capture_output=True, env=CLEAN, cwd=tmp_path, timeout=90, check=False)
    assert shown.returncode == 0, shown.stdout[-2000:] + shown.stderr[-2000:]
    environ = CLEAN | {"SCHEDULED_EVENTS_OUTBOX_PATH": str(tmp_path / "outbox.db")}
    run = [command, "run", "--web.listen-address", "127.0.0.1:0", "--source.url", "http://127.0.0.1:9"]
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True, env=environ, cwd=tmp_path) as agent:
        assert agent.stderr is not None
        assert any("agent.listening" in line for line in agent.stderr)
        agent.send_signal(signal.SIGTERM)
        agent.communicate(timeout=60)
        assert agent.returncode == 0
