"""Texts for operators name a Windows tool next to each Linux tool, and the page about Windows is correct."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from deploy.windows import msi
from exporter.windows.access import service_sid
from exporter.windows.places import CONFIG_FILE, EVENTS_FOLDER, HOLD_FOLDER, LOG_FOLDER, READY_FOLDER, SECRETS_FOLDER
from exporter.windows.system import BOOT_ID_ADDRESS
from tests.support.documentation import PAGES, ROOT, blocks, name_of

LINUX_ALONE: Final = re.compile(r"\b(journalctl|systemctl|timesyncd)\b")
PAGE: Final = ROOT / "docs" / "windows.md"
NAME: Final = "azure-scheduled-events-exporter"


def paragraphs(page: Path) -> Iterator[str]:
    """Return the paragraphs and list entries of a page, without the page about Linux and sections about systemd."""
    if name_of(page) == "docs/linux.md":
        return
    for section in re.split(r"^(?=#)", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        if not re.search("systemd|Debian", section.partition("\n")[0]):
            yield from re.split(r"\n\n|\n(?=- )|\n(?=\*\*)", section)


def alert_texts() -> Iterator[str]:
    rules = yaml.safe_load((ROOT / "alerts" / "rules.yml").read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield from rule.get("annotations", {}).values()


def texts_of(value: object) -> Iterator[str]:
    """Yield every text in a JSON document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_of(each)


def messages() -> Iterator[str]:
    """Yield every text in the code, except for the part for systemd; one with placeholders as a whole."""
    for path in sorted((ROOT / "exporter").rglob("*.py")):
        if path.name in {"systemd.py", "journal.py"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield ast.unparse(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def all_texts() -> Iterator[str]:
    for page in PAGES:
        yield from paragraphs(page)
    yield from alert_texts()
    for board in sorted((ROOT / "dashboards").glob("*.json")):
        yield from texts_of(json.loads(board.read_text(encoding="utf-8")))
    for file in sorted((ROOT / "exporter" / "page").glob("*.html")):
        yield from re.split(r"\n\n", file.read_text(encoding="utf-8"))
    whole = [text for text in messages() if LINUX_ALONE.search(text)]
    # A text with placeholders is yielded as a whole and in its parts.
    yield from (text for text in whole if not any(text in other and text != other for other in whole))


def test_no_text_names_only_a_linux_tool() -> None:
    """Next to `journalctl`, `systemctl`, and the like is the place to look on Windows: in pages, alerts, dashboards,
    and all messages of the agent."""
    assert [text for text in all_texts() if LINUX_ALONE.search(text) and "Windows" not in text] == []


def test_every_text_is_searched() -> None:
    """The search finds known texts."""
    found = [text for text in all_texts() if LINUX_ALONE.search(text)]
    assert any("journalctl" in text for text in found)
    assert any("timesyncd" in text for text in found)
    assert any(alert_texts())


def test_documented_folders_are_those_of_the_service() -> None:
    """Every path below ProgramData begins with a name that `service install` creates, or the outbox."""
    known = {CONFIG_FILE, EVENTS_FOLDER, HOLD_FOLDER, LOG_FOLDER, READY_FOLDER, SECRETS_FOLDER, "outbox.db"}
    for page in (PAGE, ROOT / "alerts" / "RUNBOOK.md", ROOT / "docs" / "approvals.md"):
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(rf"ProgramData%?\\{NAME}\\([\w.]+)", text))
        assert named, name_of(page)
        assert named <= known, name_of(page)


def test_the_accounts_are_named_by_sid() -> None:
    """Names of accounts depend on the language: only a service's own name is the same everywhere."""
    text = PAGE.read_text(encoding="utf-8")
    assert f"*{service_sid(NAME)}'" in text
    granted = [
        account
        for block in blocks(PAGE)
        for line in block.text.splitlines()
        if line.startswith("icacls")
        for account in re.findall(r'"([^":]+|\$\{service\}):', line.partition("/grant")[2])
    ]
    assert granted
    assert all(account.startswith(("*S-1-5-", "${service}", "NT SERVICE\\")) for account in granted)


ICACLS: Final = re.compile(r"""icacls\s+("[^"]*"|[^\s"`]+)([^`\n]*)""")
CHANGES: Final = re.compile(r"/(grant|deny|inheritance|remove|restore|substitute|setintegritylevel)\b")


def texts_with_commands() -> Iterator[tuple[str, str]]:
    """Yield every text that could contain a Windows command: pages, messages, and shipped files."""
    for page in {*PAGES, *(ROOT / "docs").glob("*.md")}:
        yield name_of(page), page.read_text(encoding="utf-8")
    for text in messages():
        yield "a message", text
    for file in (ROOT / "deploy").rglob("*"):
        if (
            file.suffix in {".ps1", ".wxs", ".py", ".yaml", ".tpl", ".txt", ".xml", ".md"}
            and "node_modules" not in file.parts
        ):
            yield name_of(file), file.read_text(encoding="utf-8")


def late_resets(text: str) -> list[str]:
    """Return the commands that change the access list of a path without an earlier reset."""
    reset: set[str] = set()
    late = []
    for found in ICACLS.finditer(text):
        path, rest = found[1].strip('"'), found[2]
        if "/reset" in rest:
            reset.add(path)
        elif CHANGES.search(rest) and path not in reset:
            late.append(found[0])
    return late


def test_every_access_list_is_reset_before_it_is_changed() -> None:
    """/grant and /inheritance:r leave explicit entries of other accounts, and `check` would repeat its advice."""
    assert [(name, late) for name, text in texts_with_commands() for late in late_resets(text)] == []


def test_every_access_list_command_is_found() -> None:
    """The search finds known commands, and wrong ones."""
    found = [(name, found[0]) for name, text in texts_with_commands() for found in ICACLS.finditer(text)]
    for name in ("docs/windows.md", "docs/handshake.md", "a message"):
        assert sum(name == each and "/reset" in command for each, command in found) >= 2, name
    assert late_resets('icacls $a /reset\nicacls $a /grant "x:F"\nicacls "$b" /inheritance:r /grant "x:F"') == [
        'icacls "$b" /inheritance:r /grant "x:F"'
    ]


def test_the_handshake_and_the_agent_identify_a_boot_by_the_same_number() -> None:
    """The loader's number: the boot time moves when the clock is set."""
    text = (ROOT / "deploy" / "windows" / "examples" / "handshake.ps1").read_text(encoding="utf-8")
    (address,) = re.findall(r"\[IntPtr\] (0x[0-9A-F]+)", text)
    assert int(address, 16) == BOOT_ID_ADDRESS
    assert "LastBootUpTime" not in text


def test_the_event_log_command_works_without_a_registered_source() -> None:
    """A failed installation removes the source: a search by ProviderName would find nothing, and show no text."""
    text = PAGE.read_text(encoding="utf-8")
    assert f"Provider[@Name='{NAME}']" in text
    assert "$_.Properties.Value" in text
    assert f"ProviderName = '{NAME}'" not in text


@pytest.mark.parametrize("name", msi.PROPERTIES)
def test_every_property_of_the_msi_is_explained(name: str) -> None:
    """The table has each property that an administrator may give."""
    table = PAGE.read_text(encoding="utf-8").partition("| property | meaning |")[2].partition("\n\n")[0]
    assert f"`{name}`" in table
