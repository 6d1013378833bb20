"""The length of each page is limited.

Words are counted as `wc -w` counts them: code, tables, and comments included. Only the generated stories in
docs/alerts.md aren't counted: the texts of alerts, looked up one at a time. `python -m tests.project.test_word_counts`
prints the table.
"""

from __future__ import annotations

import re
import sys
from typing import Final

import pytest

from tests.support.documentation import ROOT

pytestmark = pytest.mark.linux("reads pages of the checkout")

LIMITS: Final = {
    # Start
    "README.md": 500,
    "docs/tutorial.md": 430,
    "docs/concepts.md": 600,
    # Install
    "docs/installation.md": 550,
    "docs/linux.md": 850,
    "docs/windows.md": 1000,
    "docs/kubernetes.md": 1750,
    "docs/azure.md": 650,
    "docs/tls.md": 200,
    "docs/migration.md": 180,
    # Operate
    "docs/fleet.md": 950,
    "docs/capacity.md": 750,
    "docs/alerts.md": 570,
    "docs/alertmanager.md": 600,
    "alerts/RUNBOOK.md": 2870,
    "dashboards/README.md": 450,
    "docs/limits.md": 400,
    # Approve and prepare
    "docs/approvals.md": 1190,
    "docs/policy-review.md": 550,
    "docs/event-files.md": 1250,
    "docs/handshake.md": 950,
    "docs/gate.md": 1050,
    # Consume
    "docs/records.md": 2600,
    "docs/consumers.md": 750,
    "docs/data-explorer.md": 950,
    # Reference
    "docs/settings.md": 1080,
    "docs/metrics.md": 1350,
    "docs/commands.md": 900,
    "docs/status.md": 700,
    # Project
    "docs/architecture.md": 1200,
    "docs/decisions.md": 600,
    "docs/benchmarks.md": 1100,
    "docs/support.md": 350,
    "docs/releasing.md": 750,
    "CONTRIBUTING.md": 600,
    "SECURITY.md": 980,
}
"""The maximum number of words of each page."""
STORIES: Final = re.compile(rb"<!-- stories: generated.*<!-- /stories -->", re.DOTALL)
TOTAL: Final = 26_800
"""The maximum number of words of the README and all pages in docs/ together."""


def words(page: str) -> int:
    """Return the number of words, as `wc -w` counts them, without stories; 0 if the page doesn't exist."""
    path = ROOT / page
    return len(STORIES.sub(b"", path.read_bytes()).split()) if path.is_file() else 0


def counted() -> dict[str, int]:
    """Return the number of words of each page that has a limit or is in docs/."""
    listed = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return {page: words(page) for page in (*LIMITS, *sorted(listed - set(LIMITS)))}


def total(found: dict[str, int]) -> int:
    """Return the words of the README and of docs/."""
    return sum(number for page, number in found.items() if page == "README.md" or page.startswith("docs/"))


def table(found: dict[str, int]) -> str:
    """Return the pages with their words and limits, one a line; `!` marks a page that is too long or missing."""
    lines = [f"  {'words':>6} {'limit':>6}  page"]
    for page, number in found.items():
        limit = LIMITS.get(page)
        mark = " " if limit is not None and 0 < number <= limit else "!"
        lines.append(f"{mark} {number:6} {limit or '':6}  {page}")
    mark = " " if total(found) <= TOTAL else "!"
    lines.append(f"{mark} {total(found):6} {TOTAL:6}  README.md and docs/")
    return "\n".join(lines)


def test_every_page_of_the_docs_has_a_limit() -> None:
    """A new page needs a limit, and a removed page leaves none."""
    assert {page for page, number in counted().items() if page not in LIMITS or not number} == set()


@pytest.mark.parametrize("page", LIMITS)
def test_page_is_within_its_limit(page: str) -> None:
    assert words(page) <= LIMITS[page], f"{page}: shorten it, or move a section to the page with that job"


def test_all_pages_together_are_within_the_total() -> None:
    found = counted()
    print(f"\n{table(found)}")  # pytest -s shows it
    assert total(found) <= TOTAL, table(found)


def main() -> int:
    """Print the table. Return 1 if a page is too long, is missing, or has no limit."""
    shown = table(counted())
    print(shown)
    return "\n!" in shown


if __name__ == "__main__":
    sys.exit(main())
