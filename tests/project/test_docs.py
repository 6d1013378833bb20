"""The documentation: generated parts are current, commands are run or marked as not run, and names exist."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from exporter.cli import COMMANDS, main
from exporter.config.load import load
from exporter.config.schema import SECTIONS, catalogue
from exporter.core.policy import Reason
from exporter.core.records import KINDS
from exporter.sinks.prometheus.catalogue import BY_NAME, PREFIX
from tests.support.documentation import (
    GENERATED,
    MAKEFILES,
    PAGES,
    ROOT,
    Block,
    all_blocks,
    anchors,
    blocks,
    generated_part,
    make_targets,
    name_of,
    prose,
    record_schema,
    unknown_targets,
)
from tests.support.peers import need
from tests.support.ports import reserved_port
from tests.support.status_reading import SCHEMA as STATUS_SCHEMA

pytestmark = pytest.mark.linux("judges pages of the checkout, and runs their shell blocks")

PROGRAM: Final = "azure-scheduled-events-exporter"
SHELLS: Final = ("sh", "bash", "shell", "console", "powershell")
"""Languages of blocks that a reader would copy into a shell."""
OTHERS: Final = frozenset({"text", "toml", "yaml", "json", "promql", "python", "kusto"})
RUN: Final = re.compile(r'run(?:, prints "(?P<prints>[^"]+)")?')
RUN_BY: Final = re.compile(r"run by (?P<file>[\w/.]+)::(?P<test>test_\w+)")
NOT_RUN: Final = re.compile(r"not run: \S.{15,}")
SEPARATOR: Final = "---- end of the block at line"


# -- generated parts


@pytest.mark.parametrize(("page", "part"), GENERATED)
def test_a_generated_part_is_current(page: str, part: str) -> None:
    """A page shows what the definitions are now (`make generate` writes it)."""
    made = GENERATED[page, part]().rstrip() + "\n"
    if os.environ.get("UPDATE_README"):
        place = generated_part(page, part)
        text = place.string[: place.start(2)] + made + place.string[place.end(2) :]
        (ROOT / page).write_text(text, encoding="utf-8")
    assert generated_part(page, part)[2] == made


def test_every_reason_is_explained() -> None:
    """The table of reasons has each hold reason, in the order in which the agent checks them."""
    text = (ROOT / "docs" / "approvals.md").read_text(encoding="utf-8")
    table = text.partition("| reason | when |")[2].partition("\n\n")[0]
    rows = [cell for line in table.splitlines()[2:] for cell in re.findall(r"`([a-z-]+)`", line.split("|")[1])]
    assert rows == [reason.value for reason in Reason if reason]


def test_every_kind_of_record_is_explained() -> None:
    """The table of kinds has a row for each kind, and no other."""
    text = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
    table = text.partition("| kind | when |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`([a-z.]+)`", line.split("|")[1])[0] for line in table.splitlines()[2:]]
    assert sorted(rows) == sorted(KINDS)


def test_every_member_of_a_record_is_described() -> None:
    """Each member in the schema has a description, except for those of `vm` with names that explain themselves."""
    schema = record_schema()
    parts = {"record": schema, **{name: part for name, part in schema["$defs"].items() if name != "vm"}}
    silent = [
        (name, member)
        for name, part in parts.items()
        for member, shape in part["properties"].items()
        if not shape.get("description")
    ]
    assert silent == []


def test_every_package_is_explained() -> None:
    """The table of packages has a row for each sub-package."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `exporter/(\w+)/` \|", text, re.MULTILINE))
    assert rows == {folder.parent.name for folder in (ROOT / "exporter").glob("*/__init__.py")}


def test_every_command_is_explained() -> None:
    """The table of commands has a row for each command."""
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE)) == set(COMMANDS)


# -- commands


def test_every_block_has_a_language() -> None:
    """A block is for a shell, or in a language that a test reads; none hides a command."""
    unknown = [str(block) for page in PAGES for block in blocks(page) if block.language not in {*SHELLS, *OTHERS}]
    assert unknown == []
    indented = [name_of(page) for page in PAGES if re.search(r"\n\n    (?![-*`|0-9])\S", prose(page))]
    assert indented == []


def test_every_block_fits_the_page() -> None:
    """A block of the site has no scroll bar in a window of 1,200 px; a shell block fits a terminal too."""
    wide = [
        str(block)
        for page in PAGES
        for block in blocks(page)
        for line in textwrap.dedent(block.text).splitlines()
        if len(line) > (90 if block.language in SHELLS else 115)
    ]
    assert wide == []


@pytest.mark.parametrize("block", all_blocks(*SHELLS), ids=str)
def test_every_command_is_run_or_marked_as_not_run(block: Block) -> None:
    """The line above a shell block contains `run`, the name of the test that runs it, or the reason why no test
    does."""
    if match := RUN_BY.fullmatch(block.mark):
        assert f"def {match['test']}(" in (ROOT / match["file"]).read_text(encoding="utf-8")
    else:
        assert RUN.fullmatch(block.mark) or NOT_RUN.fullmatch(block.mark), block.mark


RUNNABLE: Final = [page for page in PAGES if any(RUN.fullmatch(block.mark) for block in blocks(page))]


@pytest.mark.peer("curl")
@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """The blocks marked `run`, in order and in one shell, end with 0 and print what they promise."""
    chosen = [(block, match) for block in blocks(page) if (match := RUN.fullmatch(block.mark))]
    script = "set -e -o pipefail\n" + "".join(f'{block.text}\necho "{SEPARATOR} {block.line}"\n' for block, _ in chosen)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "SCHEDULED"))}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ.get('PATH', '')}"
    if "curl " in script:
        need("curl")
    with reserved_port() as one, reserved_port() as other:
        ports = {"8169": str(one), "10169": str(other)}
        output = _run(re.sub(r"\b(8169|10169)\b", lambda match: ports[match[1]], script), tmp_path, environ)
    for block, match in chosen:
        printed, separator, output = output.partition(f"{SEPARATOR} {block.line}\n")
        assert separator, f"{block} failed:\n{printed}"
        assert (match["prints"] or "") in printed, f"{block} printed:\n{printed}"


def _run(script: str, folder: Path, environ: dict[str, str]) -> str:
    """Return both outputs of a bash script; kill every process that it leaves running."""
    bash = shutil.which("bash")
    assert bash
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            [bash, "-c", script], cwd=folder, env=environ, stdout=output, stderr=output, start_new_session=True
        )
        try:
            process.wait(120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
        output.seek(0)
        return output.read()


def commands_named() -> list[tuple[str, str]]:
    """Yield every command line of the program in the pages: in shell blocks, and in code spans."""
    named: list[tuple[str, str]] = []
    for page in PAGES:
        lines = [line for block in blocks(page) for line in block.text.replace("\\\n", " ").splitlines()]
        shell = [line for line in lines if re.match(rf"(\S*/)?{PROGRAM} \w", line)]
        inline = re.findall(r"`([^`\n]+)`", prose(page))
        words = [text for text in inline if text.split()[0] in COMMANDS and " " in text]
        words += [text.partition(PROGRAM)[2].strip() for text in inline if text.startswith(f"{PROGRAM} ")]
        named += [(name_of(page), line.partition(PROGRAM)[2].strip()) for line in shell]
        named += [(name_of(page), text) for text in words]
    return named


def test_every_documented_flag_exists() -> None:
    """Command lines in the pages use commands and flags of the program."""
    helps: dict[str, str] = {}
    wrong = []
    for page, line in commands_named():
        command, *rest = line.partition("#")[0].split()
        if command.startswith("--") or command == "COMMAND":
            continue
        if command in COMMANDS and command not in helps:
            with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
                main([command, "--help"])
            helps[command] = out.getvalue()
        flags = [word.partition("=")[0].rstrip(",") for word in rest if word.startswith("--")]
        if any(not re.search(rf"{re.escape(flag)}\b", helps.get(command, "")) for flag in flags):
            wrong.append((page, line))
    assert wrong == []


def test_every_documented_make_target_exists() -> None:
    """`make TARGET` and `make -C FOLDER TARGET`, in pages, comments, and strings, name an existing target."""
    code = [path for folder in ("exporter", "tests", "deploy", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    named = set().union(*(make_targets(path.read_text(encoding="utf-8"), "`") for path in (*PAGES, *code)))
    named |= set().union(*(make_targets(block.text, "^") for page in PAGES for block in blocks(page)))
    assert {(".", "demo"), (".", "test"), ("deploy", "deb"), ("tests", "packages")} <= named
    assert unknown_targets(named) == set()


def test_each_makefile_lists_its_targets() -> None:
    """The root's help is ten lines; the other targets there are for other targets and for CI."""
    for folder, text in MAKEFILES.items():
        command = ["make", "--no-print-directory", "-C", str(ROOT / folder), "help"]
        done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=True)
        recorded = [line.split()[3 if folder != "." else 1] for line in done.stdout.splitlines()]
        (declared,) = re.findall(r"^\.PHONY: (.*)", text, re.MULTILINE)
        inner = {"help", *{".": ("test-all", "peers", "grafana", "pytest"), "deploy": ("locked",)}.get(folder, ())}
        assert set(recorded) | inner == set(declared.split())
        assert folder != "." or len(recorded) == 10


def test_the_loop_of_contributors_exists() -> None:
    """Each command of the loop in CONTRIBUTING.md is a target that make can run."""
    (loop,) = [block for block in blocks(ROOT / "CONTRIBUTING.md") if "make lint" in block.text]
    for line in loop.text.splitlines():
        command = [*line.partition("#")[0].split(), "--dry-run", "-C", str(ROOT)]
        done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr


# -- configuration and records in the pages


@pytest.mark.parametrize("block", all_blocks("toml"), ids=str)
def test_every_documented_configuration_is_valid(block: Block, tmp_path: Path) -> None:
    """A TOML block is a settings file; a directory of the test replaces those of the credentials and of ProgramData."""
    (tmp_path / "secrets").mkdir()
    (secret := tmp_path / "secrets" / "event-hubs").write_text(
        "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
    )
    text = block.text.replace("/run/credentials/azse/event-hubs", secret.as_posix())
    for path in re.findall(re.escape("C:\\ProgramData\\azure-scheduled-events-exporter") + r"[^']*", text):
        here = path.partition("-exporter\\")[2].replace("\\", "/")
        text = text.replace(path, (tmp_path / here).as_posix())
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    flags = argparse.Namespace(**{"config.file": str(tmp_path / "config.toml")})
    load(flags, {})


def test_the_documented_record_is_valid() -> None:
    """The example is a valid record except for the members of `vm` that it omits."""
    (example,) = [json.loads(block.text) for block in all_blocks("json") if '"specversion"' in block.text]
    schema = record_schema()
    del schema["$defs"]["vm"]["required"]
    jsonschema.Draft202012Validator(schema).validate(example)


def test_the_documented_status_is_valid() -> None:
    """The example has only members of the schema, with values that it allows, and omits others."""
    (example,) = [block.text for block in all_blocks("json") if '"azure_scheduled_events.status.v1"' in block.text]
    jsonschema.Draft202012Validator(_without_required(STATUS_SCHEMA)).validate(json.loads(example))


def _without_required(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_required(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _without_required(part) for name, part in schema.items() if name != "required"}


def test_every_documented_metric_exists() -> None:
    """Names of metrics in the pages are names of families."""
    suffixes = re.compile(r"_(bucket|sum|count)$")
    wrong = [
        (name_of(page), name)
        for page in PAGES
        for name in re.findall(rf"\b{PREFIX}([a-z_]+[a-z])\b(?!-)", page.read_text(encoding="utf-8"))
        if name not in BY_NAME and suffixes.sub("", name) not in BY_NAME
    ]
    assert wrong == []


def test_every_documented_setting_exists() -> None:
    """`section.key` in the pages is a setting, unless it is a kind of record."""
    known = {setting.name for setting in catalogue()} | {"approval.rules", "outbox.db", "web.yml"} | set(KINDS)
    outbox = (f"outbox.{word}" for word in ("unwritable", "damaged", "dropped"))
    files = (f"event_files.{word}" for word in ("failed", "stuck", "recovered"))
    logged = {*outbox, "approval.postponed", *files, "recording.failed", "recording.recovered"}
    wrong = [
        (name_of(page), name)
        for page in PAGES
        for name in re.findall(rf"`((?:{'|'.join(SECTIONS)})\.[a-z_]+)`", prose(page))
        if name not in known | logged
    ]
    assert wrong == []


# -- contributing


def test_the_checks_before_a_commit_need_no_network() -> None:
    """Each hook is local and calls a tool of .venv that `make lint` or `make types` calls as well."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repo["repo"] for repo in hooks["repos"]] == ["local"]
    for hook in hooks["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        tool = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert f"$(BIN)/{tool}" in MAKEFILES["."]


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_an_issue_form_is_complete(form: Path) -> None:
    """Each form has a name, a description, and fields with distinct ids."""
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    if form.stem == "config":
        assert set(content) == {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= set(content)
    ids = [field["id"] for field in content["body"] if field["type"] != "markdown"]
    assert ids
    assert len(ids) == len(set(ids))


# -- links and files


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_has_a_target(page: Path) -> None:
    """Relative links of a page lead to files of the repository, and their anchors to headings."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


FILE: Final = re.compile(r"`((?:exporter|tests|docs|deploy|alerts|dashboards|benchmarks|\.ci|\.github)/[\w./*-]+)`")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_documented_file_exists(page: Path) -> None:
    """Paths in code spans are files or folders of the repository."""
    text = page.read_text(encoding="utf-8")
    marks = " ".join(block.mark for block in blocks(page))
    named = {*FILE.findall(text), *re.findall(r"(?:tests|exporter)/[\w/]+(?:\.py)?", marks)}
    missing = sorted(name for name in named if not any(ROOT.glob(name.rstrip("/"))))
    assert missing == []


def test_every_page_is_in_the_navigation() -> None:
    """The site's navigation has every page of docs/ and every page that the hooks add."""
    site = yaml.safe_load((ROOT / ".mkdocs.yml").read_text(encoding="utf-8"))
    hooks = (ROOT / ".ci" / "mkdocs_hooks.py").read_text(encoding="utf-8")
    named = re.findall(r"[\w-]+\.md", json.dumps(site["nav"]))
    assert len(named) == len(set(named))
    elsewhere = set(re.findall(r'^    "[\w./]+": "([\w-]+\.md)"', hooks, re.MULTILINE))
    assert set(named) == elsewhere | {
        page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")
    }
