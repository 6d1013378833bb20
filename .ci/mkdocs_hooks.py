"""Hooks of the documentation site: pages from other directories, links, and line breaks in code.

Pages are written for the repository: their links are relative paths there. On the site, a link to a page leads to the
page, and a link to any other file leads to the repository. A built page that would load something from another server
fails the build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "alerts/RUNBOOK.md": "runbook.md",
    "dashboards/README.md": "dashboards.md",
    "exporter/simulator/metadata/scenarios/README.md": "scenarios.md",
}
"""Files outside of `docs/` that are pages of the site, and their names there."""
SOURCES: Final = {page: source for source, page in PAGES.items()}
PICTURES: Final = ("dashboards/vm.png", "dashboards/fleet.png")

FENCE: Final = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
CODE: Final = re.compile(r"(?<!</span>)<code>([^<]+)</code>")
SEPARATOR: Final = re.compile(r"(?<=\w)[-._/\\=](?=[\w.{])|,")
NAME: Final = 20
"""Names of at most this many characters don't break."""
LOADED: Final = re.compile(
    r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\s>]*"
    r"|<link\b[^>]*rel=[\"']?(?:stylesheet|preconnect|preload|icon)[\"']?[^>]*href=[\"']?(?:https?:)?//[^\s>]*"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures from other directories of the repository."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for picture in PICTURES:
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Turn links within the repository into links of the site."""
    source = SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def linked(match: re.Match[str]) -> str:
        return f"{match[1]}({_target(match[2], source, page.file.src_uri, config)})"

    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(linked, part) for part in parts[::2]]
    return "".join(parts)


def on_post_page(output: str, **_: object) -> str:
    """Let code within text break after spaces, and long names after separators; `site.css` prevents other breaks."""
    return CODE.sub(_breakable, output)


def on_post_build(config: MkDocsConfig) -> None:
    """Raise PluginError if a page would load something from another server."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        match = LOADED.search(path.read_text(encoding="utf-8"))
        if match:
            raise PluginError(f"{path.name} loads from elsewhere: {match[0]}")


def _breakable(code: re.Match[str]) -> str:
    words = [SEPARATOR.sub(r"\g<0><wbr>", word) if len(word) > NAME else word for word in code[1].split(" ")]
    return f"<code>{' <wbr>'.join(words)}</code>"


def _target(target: str, source: str, page: str, config: MkDocsConfig) -> str:
    """Return the site's link for a relative link in `source`, which is the page `page`."""
    path, mark, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return target
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if not (ROOT / linked).exists():
        raise PluginError(f"{source}: the link {target} leads nowhere")
    if linked in PAGES or linked in PICTURES or linked.startswith("docs/"):
        inside = PAGES.get(linked, linked.removeprefix("docs/"))
        return posixpath.relpath(inside, posixpath.dirname(page) or ".") + mark + anchor
    kind = "tree" if (ROOT / linked).is_dir() else "blob"
    return f"{config.extra['repository']}/{kind}/main/{linked}{mark}{anchor}"
