"""Nobody on call at a Windows is sent to a tool of Linux alone, and what the page about Windows names is so."""

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
    """The paragraphs and list entries of a page, without the page about Linux and sections about systemd."""
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
    """Every text in a document of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_of(each)


def messages() -> Iterator[str]:
    """Every text in the code, but for what speaks with systemd; one with places for values as a whole."""
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
    # A text with places for values comes as a whole and in its parts.
    yield from (text for text in whole if not any(text in other and text != other for other in whole))


def test_no_text_names_a_tool_of_linux_alone() -> None:
    """Beside `journalctl`, `systemctl` and the like stands where to look on Windows: in pages, alerts, dashboards and
    in all that the agent itself says."""
    assert [text for text in all_texts() if LINUX_ALONE.search(text) and "Windows" not in text] == []


def test_the_texts_are_all_looked_at() -> None:
    """The search finds what is known to be there."""
    found = [text for text in all_texts() if LINUX_ALONE.search(text)]
    assert any("journalctl" in text for text in found)
    assert any("timesyncd" in text for text in found)
    assert any(alert_texts())


def test_the_folders_that_are_named_are_those_of_the_service() -> None:
    """Every path below ProgramData begins with a name that `service install` makes, or the outbox."""
    known = {CONFIG_FILE, EVENTS_FOLDER, HOLD_FOLDER, LOG_FOLDER, READY_FOLDER, SECRETS_FOLDER, "outbox.db"}
    for page in (PAGE, ROOT / "alerts" / "RUNBOOK.md", ROOT / "docs" / "approvals.md"):
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(rf"ProgramData%?\\{NAME}\\([\w.]+)", text))
        assert named, name_of(page)
        assert named <= known, name_of(page)


def test_the_accounts_are_named_by_sid() -> None:
    """Names of accounts differ from language to language: only a service's own is one name everywhere."""
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
    """Every text by which a command of Windows could be run: pages, messages, and what ships."""
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
    """The commands that change the access list of a path that none before them has reset."""
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


def test_the_commands_of_access_lists_are_all_found() -> None:
    """The search finds what is known to be there, and what would be wrong."""
    found = [(name, found[0]) for name, text in texts_with_commands() for found in ICACLS.finditer(text)]
    for name in ("docs/windows.md", "docs/handshake.md", "a message"):
        assert sum(name == each and "/reset" in command for each, command in found) >= 2, name
    assert late_resets('icacls $a /reset\nicacls $a /grant "x:F"\nicacls "$b" /inheritance:r /grant "x:F"') == [
        'icacls "$b" /inheritance:r /grant "x:F"'
    ]


def test_the_handshake_knows_a_reboot_by_the_number_that_the_agent_takes() -> None:
    """The loader's: the time of the boot moves when somebody sets the clock."""
    text = (ROOT / "deploy" / "windows" / "examples" / "handshake.ps1").read_text(encoding="utf-8")
    (address,) = re.findall(r"\[IntPtr\] (0x[0-9A-F]+)", text)
    assert int(address, 16) == BOOT_ID_ADDRESS
    assert "LastBootUpTime" not in text


def test_the_event_log_is_read_where_the_source_is_not_registered_any_more() -> None:
    """An installation that fails takes the source with it: by ProviderName nothing would be found, and no text told."""
    text = PAGE.read_text(encoding="utf-8")
    assert f"Provider[@Name='{NAME}']" in text
    assert "$_.Properties.Value" in text
    assert f"ProviderName = '{NAME}'" not in text


@pytest.mark.parametrize("name", msi.PROPERTIES)
def test_every_property_of_the_msi_is_explained(name: str) -> None:
    """The table has each property that an administrator may give."""
    table = PAGE.read_text(encoding="utf-8").partition("| property | meaning |")[2].partition("\n\n")[0]
    assert f"`{name}`" in table
