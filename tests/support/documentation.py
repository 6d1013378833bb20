"""The documentation as the tests read it: its pages, their fenced blocks and marks, and the generated parts."""

from __future__ import annotations

import configparser
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from benchmarks.costs import FOUND, Found, written
from exporter.cli import main
from exporter.config.schema import catalogue, outbox_path
from exporter.sinks.prometheus.catalogue import metrics_table
from exporter.windows.places import FOLDER, OUTBOX_FILE
from tests.support.event_files import EVENT_FILE_SCHEMA, STATUS_FILE_SCHEMA
from tests.support.shipped_settings import shipped_settings_table
from tests.support.terminals import Screen

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = tuple(
    sorted(
        [
            *(ROOT / "docs").rglob("*.md"),
            *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
            ROOT / "alerts" / "RUNBOOK.md",
            ROOT / "dashboards" / "README.md",
            *(ROOT / "deploy" / "consumers").rglob("README.md"),
            ROOT / "exporter" / "simulator" / "metadata" / "scenarios" / "README.md",
        ]
    )
)
"""Return every page for readers, except for the CHANGELOG, which describes the past."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page. `mark` is the text of the HTML comment on the line above; empty without one."""

    page: str
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


_BLOCK: Final = re.compile(
    r"^(?:[ ]*<!-- (?P<mark>[^\n]*) -->\n)?(?P<indent>[ ]*)```(?P<language>[a-z]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


def name_of(page: Path) -> str:
    """Return the page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        yield Block(name_of(page), line, match["language"], match["mark"] or "", match["text"])


def all_blocks(*languages: str) -> list[Block]:
    """Return the fenced blocks in these languages of all pages."""
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


def prose(page: Path) -> str:
    """Return the page without its fenced blocks and comments."""
    return re.sub(r"<!--.*?-->", "", _BLOCK.sub("", page.read_text(encoding="utf-8")), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


MAKEFILES: Final = {
    folder: (ROOT / folder / "Makefile").read_text(encoding="utf-8") for folder in (".", "deploy", "tests")
}
"""Return the text of each Makefile, by its folder."""


def make_targets(text: str, before: str) -> set[tuple[str, str]]:
    """Return each folder and target of the `make` commands after this pattern in the text."""
    called = re.findall(rf"{before}make(?: --silent)?(?: -C ([\w.]+))?((?: (?!-)[\w.=$\"()/-]+)*)", text, re.MULTILINE)
    return {(folder or ".", word) for folder, words in called for word in words.split() if word.islower()}


def unknown_targets(called: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those that no Makefile of the folder declares."""
    return {
        (folder, target)
        for folder, target in called
        if not re.search(rf"^\.PHONY:.* {re.escape(target)}(?= |$)", MAKEFILES.get(folder, ""), re.MULTILINE)
    }


# -- generated parts


def replayed() -> str:
    """Return the decisions that `replay` prints for the documented live migration: its output from the count of
    documents."""
    out = Screen()
    with contextlib.redirect_stdout(out):
        assert main(["replay", "live-migration", "--vm", "WestNO_0"]) == 0
    decisions = re.search(r"^\d+ documents?, .*", out.getvalue(), re.MULTILINE | re.DOTALL)
    assert decisions
    return f"```text\n{decisions[0].rstrip()}\n```"


def record_schema() -> dict[str, Any]:
    """Return the JSON Schema of a record from the package."""
    schema = json.loads(files("exporter").joinpath("schema", "record.v1.json").read_text(encoding="utf-8"))
    assert isinstance(schema, dict)
    return schema


def records_table() -> str:
    """Return the members of a record as Markdown tables, from the JSON Schema.

    Required members are bold; `?` after a type means that null is possible.
    """
    schema = record_schema()
    parts = {"": schema, **schema["$defs"]}
    lines: list[str] = []
    for name, part in parts.items():
        lines += [f"### `{name}`" if name else "### The CloudEvent", ""]
        if "description" in part and name:
            lines += [part["description"], ""]
        lines += ["| member | type | meaning |", "| --- | --- | --- |"]
        members = part.get("properties") or dict.fromkeys(part["required"], part["additionalProperties"])
        for member, shape in members.items():
            cell = f"**`{member}`**" if member in part.get("required", ()) else f"`{member}`"
            meaning = shape.get("description", "").replace("|", "\\|")
            lines.append(f"| {cell} | {_type(shape).replace(' (RFC 3339)', '').replace(' or null', '?')} | {meaning} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def event_file_table() -> str:
    """Return the members of an event's file."""
    return _members_table(EVENT_FILE_SCHEMA)


def event_files_status_table() -> str:
    """Return the members of `status.json`, which is next to the event files."""
    return _members_table(STATUS_FILE_SCHEMA)


def _members_table(schema: Mapping[str, Any]) -> str:
    """Return members with their descriptions, those of an object below it."""
    lines = ["| member | type | meaning |", "| --- | --- | --- |"]
    for member, shape in schema["properties"].items():
        part = schema["$defs"][shape["$ref"].rpartition("/")[2]] if "$ref" in shape else shape
        lines.append(f"| `{member}` | {_type(part)} | {part['description']} |")
        if member != "vm":
            inside = part.get("properties", {}).items()
            lines += [f"| `{member}.{name}` | {_type(inner)} | {inner['description']} |" for name, inner in inside]
    return "\n".join(lines) + "\n"


_FORMATS: Final = {"date-time": "time (RFC 3339)", "uuid": "UUID", "uri-reference": "URI reference"}


def _type(shape: Mapping[str, Any]) -> str:
    """Return a member's type as text: its enumerated values, its JSON type, or the section that describes it."""
    if "$ref" in shape:
        part = shape["$ref"].rpartition("/")[2]
        return f"[`{part}`](#{part})"
    if "const" in shape:
        return f"`{shape['const']}`"
    if "enum" in shape:
        return " ".join("null" if word is None else f"`{word}`" for word in shape["enum"])
    if "anyOf" in shape:
        return " or ".join(_type(choice) for choice in shape["anyOf"])
    types = shape.get("type", "any")
    names = [types] if isinstance(types, str) else list(types)
    form = _FORMATS.get(shape.get("format", ""))
    if "items" in shape:
        return f"array of {_type(shape['items'])}"
    return " or ".join(form if form and name == "string" else name for name in names)


def settings_table() -> str:
    """Return all settings as a Markdown table."""
    lines = ["| setting | default | flag | environment | meaning |", "| --- | --- | --- | --- | --- |"]
    for setting in catalogue():
        flag = "never a flag" if setting.secret else f"`{setting.flag}`"
        default = f"`{setting.kind.show(setting.default)}`"
        if setting.name == "outbox.path":  # of both systems, on either one
            on_windows = f"%ProgramData%\\{FOLDER}\\{OUTBOX_FILE}"
            default = f"`{setting.kind.show(outbox_path('linux'))}`, on Windows `{on_windows}`"
        meaning = setting.help.replace("|", "\\|")
        lines.append(f"| `{setting.name}` | {default} | {flag} | `{setting.env}` | {meaning} |")
        if setting.name == "approval.hold_file":
            meaning = "Tried in order: the first rule that matches decides."
            lines.append(f"| `approval.rules` | two rules | file only | file only | {meaning} |")
    return "\n".join(lines) + "\n"


def layers() -> str:
    """Return the layers of the package, from the top, as in `.importlinter`."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter", encoding="utf-8")
    return f"```text\n{contracts['importlinter:contract:layers']['layers'].strip()}\n```"


def costs_tables() -> str:
    """Return the cost of a fleet, from the measurements of `make bench WHAT=costs`."""
    return written(Found.read(FOUND.read_text(encoding="utf-8")))


GENERATED: Final = {
    ("docs/approvals.md", "shipped settings"): shipped_settings_table,
    ("docs/architecture.md", "layers"): layers,
    ("docs/settings.md", "settings"): settings_table,
    ("docs/capacity.md", "costs"): costs_tables,
    ("docs/metrics.md", "metrics"): metrics_table,
    ("docs/records.md", "records"): records_table,
    ("docs/commands.md", "replay"): replayed,
    ("docs/event-files.md", "event file"): event_file_table,
    ("docs/event-files.md", "status file"): event_files_status_table,
}
"""The generator of each generated part of each page."""


def generated_part(page: str, part: str) -> re.Match[str]:
    """Return the place of a generated part in a page; group 2 is its text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    match = re.search(rf"(<!-- {part}: generated[^\n]*-->\n)(.*?)(<!-- /{part} -->)", text, re.DOTALL)
    assert match, f"{page} has no place for {part}"
    return match
