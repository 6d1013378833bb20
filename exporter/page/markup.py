"""Markup, escaped by construction: text becomes `Html` only by `text`, and tags take nothing but `Html`.

What comes from outside (descriptions, ids, names) is shown by `outside`: escaped, isolated from the page's own
direction, cut to a bearable length, and with every character that hides or reorders text spelled out.
"""

from __future__ import annotations

import base64
import hashlib
import html
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NewType
from urllib.parse import quote

Html = NewType("Html", str)

NOTHING: Final = Html("")
MAX_OUTSIDE: Final = 600
MAX_MARKS: Final = 3

STYLE: Final = """
:root { color-scheme: light dark;
  --page: #f4f5f7; --card: #fff; --ink: #16202c; --soft: #55626f; --line: #d9dee4; --link: #0b57b8;
  --calm: #1c7c4a; --calm-ground: #e4f4ea; --coming: #8a5200; --coming-ground: #fdf0d5;
  --on: #b3261e; --on-ground: #fce6e4; --blind: #6b3fa0; --blind-ground: #f0e8fa; }
@media (prefers-color-scheme: dark) { :root {
  --page: #0f151c; --card: #18212b; --ink: #e8edf2; --soft: #a3b0bd; --line: #2e3a46; --link: #7db4ff;
  --calm: #6fd39c; --calm-ground: #12291d; --coming: #f5be5b; --coming-ground: #2f2410;
  --on: #ff938a; --on-ground: #381815; --blind: #c9a6f5; --blind-ground: #261a37; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; overflow-wrap: break-word; }
header, main, footer { max-width: 70rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 1.25rem; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.125rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1.0625rem; margin: 0; }
p { margin: .375rem 0; }
a { color: var(--link); }
a:focus-visible { outline: .1875rem solid var(--link); outline-offset: .125rem; }
.soft, caption, dt, th { color: var(--soft); }
.verdict { margin: 1rem 0 0; padding: .875rem 1rem; border-radius: .5rem; border-left: .375rem solid;
  border-color: var(--tone); background: var(--ground); }
.verdict strong { display: block; font-size: 1.375rem; line-height: 1.3; color: var(--tone); }
.calm { --tone: var(--calm); --ground: var(--calm-ground); }
.coming { --tone: var(--coming); --ground: var(--coming-ground); }
.on { --tone: var(--on); --ground: var(--on-ground); }
.blind { --tone: var(--blind); --ground: var(--blind-ground); }
.note { border-left: .25rem solid var(--blind); padding-left: .75rem; }
article, .panel { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .875rem 1rem;
  margin: .75rem 0; }
article { border-top: .25rem solid var(--tone); }
article > .when { font-size: 1.125rem; font-weight: 600; margin: .125rem 0 .5rem; color: var(--tone); }
dl { display: grid; grid-template-columns: minmax(6.5rem, 11rem) minmax(0, 1fr); gap: .25rem 1rem; margin: 0; }
dt { font-size: .9375rem; }
dd { margin: 0; }
table + dl { border-top: 1px solid var(--line); padding-top: .5rem; }
.outside { overflow-wrap: anywhere; }
.id { font-weight: 400; font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .875em; }
time { font-variant-numeric: tabular-nums; }
table { width: 100%; border-collapse: collapse; }
caption { text-align: left; padding-bottom: .375rem; font-size: .9375rem; }
th, td { text-align: left; vertical-align: top; padding: .375rem .75rem .375rem 0; border-top: 1px solid var(--line); }
thead th { border-top: 0; font-size: .875rem; font-weight: 600; }
tbody th { color: var(--ink); font-weight: 600; }
td time { display: block; }
.bad { color: var(--on); font-weight: 600; }
.good { color: var(--calm); font-weight: 600; }
footer { padding-top: 1.5rem; padding-bottom: 2rem; font-size: .9375rem; color: var(--soft); }
nav ul { list-style: none; padding: 0; margin: 0 0 .5rem; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; }
nav a { display: inline-block; padding: .25rem 0; }
@media (max-width: 44rem) {
  dl { grid-template-columns: 5.75rem minmax(0, 1fr); gap: .375rem .75rem; }
  dt, td::before { font-size: .875rem; line-height: 1.7; }
  table, caption, tbody, tr, th { display: block; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  tr { border-top: 1px solid var(--line); padding: .5rem 0; }
  tr:first-child { border-top: 0; }
  tbody th, td { border: 0; padding: .125rem 0; }
  td { display: grid; grid-template-columns: 5.75rem minmax(0, 1fr); gap: .75rem; }
  td::before { content: attr(data-label); color: var(--soft); }
}
"""

PAGE_CONTENT_TYPE: Final = "text/html; charset=utf-8"
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
PAGE_HEADERS: Final = (
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
"""To be sent with the page: nothing runs, nothing is loaded, nobody may frame it, and no proxy keeps an old one."""


def text(value: str) -> Html:
    """The page's own words."""
    return Html(html.escape(value))


def join(parts: Iterable[Html]) -> Html:
    return Html("".join(parts))


def listed(parts: Iterable[Html], between: str) -> Html:
    """The parts, with the page's own words between them."""
    return Html(text(between).join(parts))


def tag(name: str, *children: Html, **attributes: str) -> Html:
    """One element. `class_` is `class`, `data_label` is `data-label`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items() if value
    )
    return Html(f"<{name}{written}>{''.join(children)}</{name}>")


def visible(value: str) -> str:
    """The same text with each character that would hide, reorder or break it written as its code point.

    Marks that pile up on one letter would be drawn over the lines above and below: the first few are kept.
    """
    shown: list[str] = []
    marks = 0
    for char in value:
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks <= MAX_MARKS:
            shown.append(f"⟨U+{ord(char):04X}⟩" if _treacherous(char, category) else char)
    return "".join(shown)


def _treacherous(char: str, category: str) -> bool:
    return (category in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and char != "\n") or char in _INVISIBLE


_INVISIBLE: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters and symbols that look like nothing


def outside(value: str, class_: str = "", limit: int = MAX_OUTSIDE) -> Html:
    """Text that somebody else wrote."""
    shown = visible(value[:limit])
    kept = tag("bdi", text(shown), class_=f"outside {class_}".rstrip(), dir="auto")
    if len(value) <= limit:
        return kept
    return join((kept, text(f" … and {len(value) - limit} more characters; the records have them")))


def moment(value: datetime) -> Html:
    """An instant as a person compares it with a log: UTC, to the second."""
    utc = value.astimezone(UTC)
    return tag("time", text(utc.strftime("%Y-%m-%d %H:%M:%S UTC")), datetime=utc.strftime("%Y-%m-%dT%H:%M:%SZ"))


def terms(rows: Iterable[tuple[str, Html]]) -> Html:
    """Names and what they are; a row with nothing to say is left out."""
    return tag("dl", *(join((tag("dt", text(name)), tag("dd", value))) for name, value in rows if value))


def table(caption: str, heads: Iterable[str], rows: Iterable[Iterable[Html]]) -> Html:
    """A table whose first column names its rows. The roles keep it one where a narrow screen lays it out as a list."""
    heads = tuple(heads)
    head = tag("tr", *(tag("th", text(name), scope="col", role="columnheader") for name in heads), role="row")
    body = (tag("tr", *_cells(heads, tuple(row)), role="row") for row in rows)
    return tag(
        "table",
        tag("caption", text(caption)),
        tag("thead", head, role="rowgroup"),
        tag("tbody", *body, role="rowgroup"),
        role="table",
    )


def _cells(heads: tuple[str, ...], cells: tuple[Html, ...]) -> Iterable[Html]:
    yield tag("th", cells[0], scope="row", role="rowheader")
    for name, cell in zip(heads[1:], cells[1:], strict=True):
        yield tag("td", tag("span", cell), role="cell", data_label=name)


def icon(color: str) -> str:
    """A dot for the browser's tab, as an address that loads nothing."""
    dot = f'<circle cx="8" cy="8" r="7" fill="{color}"/>'
    return "data:image/svg+xml," + quote(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">{dot}</svg>')
